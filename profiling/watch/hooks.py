"""What is switched on inside the script: patches on torch and on loaders, put in place as their modules are imported.

Nothing is imported that the script does not import itself. Every patch does its own work around the original and
passes arguments, results and exceptions through unchanged; once the capture is over it is one attribute test.
"""

import functools
import importlib.abc
import importlib.machinery
import os
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from feedline.profiling.watch.capture import Capture, Finished
from feedline.profiling.watch.passes import Pass

PASS = "_feedline_pass"
clock = time.perf_counter


class Hooks:
    def __init__(self, capture: Capture) -> None:
        self.capture = capture
        self._undo: list[Callable[[], None]] = []
        self._finder: _AfterImport | None = None
        self._inside_iter = 0
        self.targets: dict[str, Callable[[ModuleType], None]] = {
            "torch.utils.data.dataloader": self._torch_loader,
            "torchdata.stateful_dataloader.stateful_dataloader": self._torchdata_loader,
            "torchdata.nodes.loader": self._torchdata_nodes,
            "webdataset.pipeline": self._webdataset,
            "feedline.pipeline.loader": self._feedline_loader,
            "torch": self._torch,
        }

    def install(self) -> None:
        """Patch what is loaded already, and the rest as it is imported."""
        if self.capture.withhold is not None:
            self.capture.withhold.libraries.hook(self)
        for name, patch in self.targets.items():
            module = sys.modules.get(name)
            if module is not None and not _loading(module):
                patch(module)
        self._finder = _AfterImport(self.targets)
        sys.meta_path.insert(0, self._finder)
        os.register_at_fork(after_in_child=self._forked)

    def remove(self) -> None:
        if self._finder in sys.meta_path:
            sys.meta_path.remove(self._finder)
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()

    @contextmanager
    def unwatched(self) -> Generator[None]:
        """Iterators made in here belong to us, not to the script."""
        self._inside_iter += 1
        try:
            yield
        finally:
            self._inside_iter -= 1

    def _forked(self) -> None:
        # A worker or a child of the script's own: what it iterates over is not the training loop.
        self.capture.active = False
        self.capture.asking = self.capture.current = None

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """`owner.name = make(original)`, undone by `remove`."""
        original = getattr(owner, name, None)
        if original is None:
            return
        own = name in vars(owner)
        setattr(owner, name, make(original))
        self._undo.append(lambda: setattr(owner, name, original) if own else delattr(owner, name))

    # --- torch and torchdata loaders ----------------------------------------------------------------------

    def _torch_loader(self, module: ModuleType) -> None:
        self.replace(module.DataLoader, "__iter__", lambda original: self._iter(original, "torch"))
        self.replace(module._BaseDataLoaderIter, "__next__", self._next)
        loop = module._utils.worker
        self.replace(
            module._MultiProcessingDataLoaderIter,
            "__init__",
            lambda original: self._start_workers(original, loop),
        )

    def _torchdata_loader(self, module: ModuleType) -> None:
        self.replace(module.StatefulDataLoader, "__iter__", lambda original: self._iter(original, "torchdata"))
        self.replace(module._StatefulBaseDataLoaderIter, "__next__", self._next)
        self.replace(
            module._StatefulMultiProcessingDataLoaderIter,
            "__init__",
            lambda original: self._start_workers(original, module),
        )

    def _iter(self, original: Any, kind: str) -> Any:
        @functools.wraps(original)
        def __iter__(loader: Any) -> Any:
            if not self._watching:
                return original(loader)
            one = self.capture.begin_pass(loader, kind)
            with self.unwatched():
                iterator = original(loader)
            try:
                setattr(iterator, PASS, one)
            except AttributeError:  # a subclass that returns a generator: it calls us again from inside
                pass
            return iterator

        return __iter__

    @property
    def _watching(self) -> bool:
        return self.capture.active and self.capture.asking is None and not self._inside_iter

    def _next(self, original: Any) -> Any:
        capture = self.capture

        @functools.wraps(original)
        def __next__(iterator: Any) -> Any:
            one: Pass | None = iterator.__dict__.get(PASS)
            if one is None or not self._watching or one.done:
                return original(iterator)
            return fetch(capture, one, functools.partial(original, iterator))

        return __next__

    def _start_workers(self, original: Any, home: Any) -> Any:
        from feedline.profiling.watch.worker import WorkerEntry

        capture = self.capture

        @functools.wraps(original)
        def __init__(iterator: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
            loop = home._worker_loop
            # In a legs pass only rates count: its workers run unsampled.
            if not capture.active or capture.director is not None:
                return original(iterator, loader, *args, **kwargs)
            home._worker_loop = WorkerEntry(
                loop,
                module=loop.__module__,
                folder=str(capture.journal.folder),
                loader=capture.number_of(loader),
                rank=capture.rank,
                lines=capture.lines,
            )
            try:
                return original(iterator, loader, *args, **kwargs)
            finally:
                home._worker_loop = loop

        return __init__

    # --- other loaders ------------------------------------------------------------------------------------

    def _webdataset(self, module: ModuleType) -> None:
        def make(original: Any) -> Any:
            @functools.wraps(original)
            def __iter__(pipeline: Any) -> Any:
                first = pipeline.pipeline[0] if pipeline.pipeline else None
                inner = hasattr(first, "batch_sampler")  # a WebLoader: torch's loader inside is watched already
                if inner or not self._watching or "torch.utils.data._utils.worker" in _callers():
                    return original(pipeline)
                one = self.capture.begin_pass(pipeline, "webdataset", in_trainer=True)
                return Watched(self.capture, one, iter(original(pipeline)))

            return __iter__

        self.replace(module.DataPipeline, "__iter__", make)

    def _torchdata_nodes(self, module: ModuleType) -> None:
        def make(original: Any) -> Any:
            @functools.wraps(original)
            def __iter__(loader: Any) -> Any:
                if not self._watching:
                    return original(loader)
                one = self.capture.begin_pass(loader, "torchdata.nodes", in_trainer=not has_threads(loader.root))
                with self.unwatched():
                    return Watched(self.capture, one, original(loader))

            return __iter__

        def quiet(original: Any) -> Any:
            @functools.wraps(original)
            def state_dict(loader: Any) -> Any:
                with self.unwatched():  # it may call iter() to have something to tell of
                    return original(loader)

            return state_dict

        self.replace(module.Loader, "__iter__", make)
        self.replace(module.Loader, "state_dict", quiet)

    def _feedline_loader(self, module: ModuleType) -> None:
        def make(original: Any) -> Any:
            @functools.wraps(original)
            def __iter__(loader: Any) -> Any:
                if not self._watching:
                    return original(loader)
                one = self.capture.begin_pass(loader, "feedline")
                return Watched(self.capture, one, iter(original(loader)))

            return __iter__

        self.replace(module.Loader, "__iter__", make)

    # --- steps, copies, checkpoints -----------------------------------------------------------------------

    def _torch(self, torch: Any) -> None:
        capture = self.capture
        self.replace(torch.autograd, "backward", lambda original: self.timed(original, capture.backward))
        save = torch.save if capture.withhold is None else capture.withhold.libraries.torch_save(torch.save)
        save = self.timed(save, capture.pause)
        self.replace(torch, "save", lambda _: save)
        self.replace(torch.serialization, "save", lambda _: save)
        self._optimizers(sys.modules.get("torch.optim.optimizer"))
        self._autocast(torch)
        if has_cuda(torch):
            from feedline.profiling.watch.cuda import Device

            capture.device = Device(torch)
            capture.device.install(self)

    def timed(self, original: Any, tell: Callable[[float], None]) -> Any:
        capture = self.capture

        @functools.wraps(original)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if not capture.active:
                return original(*args, **kwargs)
            started = clock()
            try:
                return original(*args, **kwargs)
            finally:
                tell(clock() - started)

        return timed

    def _optimizers(self, module: Any) -> None:
        if module is None or not hasattr(module, "register_optimizer_step_pre_hook"):
            return
        before, after = around_step(self.capture)
        handles = module.register_optimizer_step_pre_hook(before), module.register_optimizer_step_post_hook(after)
        self._undo += [handle.remove for handle in handles]

    def _autocast(self, torch: Any) -> None:
        facts = self.capture.facts

        def make(original: Any) -> Any:
            @functools.wraps(original)
            def __enter__(context: Any) -> Any:
                facts.autocast = facts.autocast or bool(getattr(context, "_enabled", True))
                return original(context)

            return __enter__

        facts.autocast = False
        self.replace(torch.autocast, "__enter__", make)


def around_step(capture: Capture) -> tuple[Callable[..., None], Callable[..., None]]:
    """What torch calls before and after an optimiser's step."""
    started = [0.0]

    def before(optimizer: Any, *_: Any) -> None:
        if capture.active and capture.facts.optimizer is None:
            capture.facts.see_optimizer(optimizer)
        started[0] = clock()

    def after(*_: Any) -> None:
        seconds = clock() - started[0]
        if capture.active:
            capture.start()
            capture.optimizer_step(seconds)

    return before, after


def fetch(capture: Capture, one: Pass, original: Callable[[], Any]) -> Any:
    """The next batch of a watched iterator."""
    asked = capture.ask(one)
    director = capture.director
    try:
        batch = original() if director is None else director.next(one, original)
    except Finished:
        raise
    except BaseException as error:
        capture.end_pass(one, exhausted=isinstance(error, StopIteration))
        raise
    capture.got(one, asked, batch)
    return batch


class Watched:
    """An iterator around one that cannot be patched itself."""

    def __init__(self, capture: Capture, one: Pass, iterator: Iterator[Any]) -> None:
        self._capture, self._one, self._iterator = capture, one, iterator

    def __iter__(self) -> "Watched":
        return self

    def __next__(self) -> Any:
        if not self._capture.active or self._one.done or self._capture.asking is not None:
            return next(self._iterator)
        return fetch(self._capture, self._one, self._iterator.__next__)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._iterator, name)


def has_cuda(torch: Any) -> bool:
    """Built for CUDA (or ROCm) on a machine that has a device; asks nothing that would create a context."""
    built = getattr(torch.version, "cuda", None) or getattr(torch.version, "hip", None)
    return bool(built) and any(os.path.exists(path) for path in ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg"))  # noqa: PTH110


def has_threads(node: Any) -> bool:
    """Whether a torchdata node, or one it draws from, works outside the thread that asks it for batches."""
    for _ in range(32):
        if getattr(node, "num_workers", 0) or type(node).__name__ in ("Prefetcher", "PinMemory"):
            return True
        node = getattr(node, "source", None)
    return False


def _callers() -> set[str]:
    found: set[str] = set()
    frame = sys._getframe(1)
    while frame.f_back is not None:
        found.add(frame.f_globals.get("__name__", ""))
        frame = frame.f_back
    return found


# --- after an import ----------------------------------------------------------------------------------


def _loading(module: ModuleType) -> bool:
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


class _AfterImport(importlib.abc.MetaPathFinder):
    """Finds the wanted modules as the other finders would, and calls back when their code has run."""

    def __init__(self, targets: dict[str, Callable[[ModuleType], None]]) -> None:
        self._targets = dict(targets)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        patch = self._targets.get(fullname)
        if patch is None:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Patching(spec.loader, patch)  # type: ignore[assignment]
                return spec
        return None


class _Patching:
    """A module loader that runs the original and then the patch. A patch that fails leaves the script alone."""

    def __init__(self, original: Any, patch: Callable[[ModuleType], None]) -> None:
        self._original = original
        self._patch = patch

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._original.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._original
        if module.__spec__ is not None:
            module.__spec__.loader = self._original
        self._original.exec_module(module)
        try:
            self._patch(module)
        except Exception as error:
            complain(f"{module.__name__} could not be watched: {type(error).__name__}: {error}")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


def complain(line: str) -> None:
    folder = os.environ.get("FEEDLINE_PROFILE")
    if folder and os.path.isdir(folder):  # noqa: PTH112  pathlib may not be imported yet
        with open(f"{folder}/complaints-{os.getpid()}.txt", "a") as file:  # noqa: PTH123
            file.write(line + "\n")
