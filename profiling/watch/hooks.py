"""What is switched on inside the script: patches on torch and on loaders, put in place as their modules are imported.

Nothing is imported that the script does not import itself. Every patch does its own work around the original and
passes arguments, results and exceptions through unchanged; once the capture is over it is one attribute test.
"""

import functools
import os
import sys
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

from feedline.profiling.watch.after_import import AfterImport, Patch, is_loading
from feedline.profiling.watch.capture import Capture
from feedline.profiling.watch.feed import Feeds
from feedline.profiling.watch.loader_contract import WatchedLoader
from feedline.profiling.watch.loaders import LOADERS

clock = time.perf_counter


class Hooks:
    def __init__(self, capture: Capture) -> None:
        self.capture = capture
        self.feeds = Feeds(capture)
        self.open = self.feeds.open
        self.unwatched = capture.unwatched
        self.time_worker_lines: Any = None
        """Picklable, while worker processes that start shall have their lines timed (`lines.WorkerLines`)."""
        self.targets: dict[str, Patch] = {"torch": self._torch}
        """Module -> what is done once it has been imported."""
        self.others: Callable[[str], Patch | None] | None = None
        """The same for all other modules, by the file they come from."""
        for adapter in LOADERS:
            self.targets[adapter.module] = functools.partial(self._attach, adapter)
        self._undo: list[Callable[[], None]] = []
        self._finder: AfterImport | None = None

    def after_import(self, module: str, patch: Patch) -> None:
        """One more patch of that module, behind those it has."""
        before = self.targets.get(module)

        def both(imported: ModuleType) -> None:
            if before is not None:
                before(imported)
            patch(imported)

        self.targets[module] = both

    def install(self) -> None:
        """Patch what is loaded already, and the rest as it is imported."""
        for name, patch in self.targets.items():
            module = sys.modules.get(name)
            if module is not None and not is_loading(module):
                patch(module)
        self._finder = AfterImport(self.targets, self.others, self.capture.journal.complain)
        sys.meta_path.insert(0, self._finder)
        os.register_at_fork(after_in_child=self._forked)

    def remove(self) -> None:
        if self._finder in sys.meta_path:
            sys.meta_path.remove(self._finder)
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()

    def _forked(self) -> None:
        # A worker or a child of the script's own: what it iterates over is not the training loop.
        self.capture.active = False
        self.capture.asking = self.capture.loop.current = None
        self.feeds.director = None

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        original = getattr(owner, name, None)
        if original is None:
            return
        own = name in vars(owner)
        setattr(owner, name, make(original))
        self._undo.append(lambda: setattr(owner, name, original) if own else delattr(owner, name))

    # --- loaders ------------------------------------------------------------------------------------------

    def _attach(self, adapter: WatchedLoader, module: ModuleType) -> None:
        adapter.attach(module, self)

    def is_ours(self) -> bool:
        return self.capture.ours > 0

    def worker_entry(self, loop: Any, loader: Any) -> Any:
        from feedline.profiling.watch.worker import WorkerEntry

        capture = self.capture
        if not capture.active and self.time_worker_lines is None:  # of a leg only rates count
            return None
        return WorkerEntry(
            loop,
            module=loop.__module__,
            folder=str(capture.journal.folder),
            loader=capture.loaders.known(loader) or 0,
            rank=capture.rank,
            lines=self.time_worker_lines,
        )

    # --- steps, copies, checkpoints -----------------------------------------------------------------------

    def _torch(self, torch: Any) -> None:
        capture = self.capture
        self.replace(torch.autograd, "backward", lambda original: self.timed(original, capture.backward))
        save = self.timed(torch.save, capture.pause)
        self.replace(torch, "save", lambda _: save)
        self.replace(torch.serialization, "save", lambda _: save)
        self._optimizers(sys.modules.get("torch.optim.optimizer"))
        self._autocast(torch)
        if has_cuda(torch):
            from feedline.profiling.watch.cuda import Device

            capture.device = device = Device(torch, capture)
            device.install(self)

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


def has_cuda(torch: Any) -> bool:
    """Built for CUDA (or ROCm) on a machine that has a device; asks nothing that would create a context."""
    built = getattr(torch.version, "cuda", None) or getattr(torch.version, "hip", None)
    return bool(built) and any(os.path.exists(path) for path in ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg"))  # noqa: PTH110
