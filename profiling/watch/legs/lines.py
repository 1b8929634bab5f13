"""Line by line, in the trainer and in every worker: line_profiler, which by itself loses the workers silently.

A window of its own, never the verdict's: a line event costs 130–270 ns, and unprofiled Python called from a profiled
function slows 5 to 12 times. Profiled are the functions of the script's own files (main file and modules), the
dataset's access functions, its loader and collate function, and whatever is named with `--lines-of`. line_profiler
tells functions apart by padding their bytecode, which must happen before a function runs: the main file's code is
padded as it is executed, modules' functions as they are imported. Nothing is timed before the window.

Every process writes its own counts, at its end and every half second, so that a worker that is killed has spoken; the
parent merges them per function (`record.diagnostic`). Workers' times are seconds summed over all of them.
"""

import functools
import importlib
import inspect
import os
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing.util import Finalize
from pathlib import Path
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from line_profiler import LineProfiler

from feedline.profiling.record.journal import Journal
from feedline.profiling.record.rows import LineRow
from feedline.profiling.watch.after_import import Patch
from feedline.profiling.watch.facts import innermost
from feedline.profiling.watch.feed import Feed
from feedline.profiling.watch.hooks import Hooks
from feedline.profiling.watch.legs.padded_main import run_main_padded
from feedline.profiling.watch.legs.ways import Batches, Way, end_workers
from feedline.profiling.watch.rules import is_library

DUMP_S = 0.5


class LineWatch:
    """The line profiler of one process, and its file in the journal."""

    def __init__(self, journal: Journal, functions: tuple[str, ...], *, where: str) -> None:
        self.profiler: Any = LineProfiler()
        self._where = where
        self._journal = journal
        self._functions = functions
        self._known: set[int] = set()
        self._named: set[tuple[str, int]] = set()
        """Where the functions begin that the user named."""
        self._dumped = 0.0
        self._on = False

    def start(self) -> None:
        """From here on, in this thread."""
        if not self._on:
            self.add_own_functions()
            self.add_named()
            self._on = True
            self.profiler.enable()

    def stop(self) -> None:
        if self._on:
            self._on = False
            self.profiler.disable()
        self.dump()

    def forget(self) -> None:
        """In a forked child: what the parent counted is the parent's."""
        if self._on:
            self._on = False
            self.profiler.disable()

    def dump(self) -> None:
        self._dumped = time.perf_counter()
        stats = self.profiler.get_stats()
        rows = [
            LineRow(file, line, function, [[number, hits, ticks * stats.unit] for number, hits, ticks in timings])
            for (file, line, function), timings in stats.timings.items()
            if timings
        ]
        # A spawned worker has a trainer's watch too, since the probe is in every process: each has its own file.
        said = {"where": self._where, "functions": rows, "named": [list(one) for one in self._named]}
        self._journal.write(f"lines-{self._where}-{os.getpid()}", said)

    def dump_sometimes(self) -> None:
        if time.perf_counter() - self._dumped > DUMP_S:
            self.dump()

    # --- what to profile ----------------------------------------------------------------------------------

    def add(self, function: Any) -> None:
        """A function or method, once; anything else is passed over."""
        inner = _plain(function)
        if isinstance(inner, FunctionType) and id(inner) not in self._known:
            self._known.add(id(inner))
            self.profiler.add_function(inner)

    def add_code(self, code: CodeType) -> None:
        """A padded code object that has no function yet."""
        self.profiler.add_function(FunctionType(code, {}, closure=tuple(CellType() for _ in code.co_freevars)))

    def add_own_functions(self) -> None:
        for module in list(sys.modules.values()):
            self.add_functions_of(module)

    def add_functions_of(self, module: ModuleType) -> None:
        """Of a module of the script's own."""
        file = getattr(module, "__file__", None)
        if file and not is_library(file) and not _ours(module):
            for function in functions_of(module):
                self.add(function)

    def pad_own_module(self, file: str) -> Patch | None:
        """What is done with a module once it has been imported: a function that runs already as its lines shall be
        timed was never padded."""
        return self.add_functions_of if file.endswith(".py") and not is_library(file) else None

    def add_named(self) -> None:
        for name in self._functions:
            for function in find(name):
                self.add(function)
                code = getattr(_plain(function), "__code__", None)
                if code is not None:
                    self._named.add((code.co_filename, code.co_firstlineno))

    def add_dataset(self, dataset: Any, collate: Any) -> None:
        """What a worker calls for every sample and every batch."""
        for one in (dataset, innermost(dataset)):
            for name in ("__getitem__", "__getitems__", "__iter__"):
                method = getattr(type(one), name, None)
                if method is not None and "torch/utils/data/dataset.py" not in _file_of(method):
                    self.add(method)
            loader = getattr(one, "loader", None)
            for function in (loader, *called_by(loader)):
                self.add(function)
        self.add(collate)


def _plain(function: Any) -> Any:
    """Without its decorators, and not bound."""
    inner = inspect.unwrap(function) if callable(function) else function
    return inner.__func__ if isinstance(inner, MethodType) else inner


def called_by(function: Any) -> Iterator[Any]:
    """Functions of its own module that a function names: what torchvision's `default_loader` hands on to."""
    code, names = getattr(function, "__code__", None), getattr(function, "__globals__", {})
    found = [names.get(name) for name in getattr(code, "co_names", ())]
    yield from (one for one in found if getattr(one, "__module__", None) == getattr(function, "__module__", ""))


def _ours(module: ModuleType) -> bool:
    return module.__name__.startswith("feedline.")


def _file_of(function: Any) -> str:
    return getattr(getattr(function, "__code__", None), "co_filename", "").replace("\\", "/")


def functions_of(module: ModuleType) -> Iterator[Any]:
    """Functions and methods defined in a module (not those it imports)."""
    for value in list(vars(module).values()):
        if getattr(value, "__module__", None) != module.__name__:
            continue
        if isinstance(value, type):
            for member in list(vars(value).values()):
                yield getattr(member, "__func__", member)
        else:
            yield value


def find(name: str) -> Iterator[Any]:
    """`function`, `Class.method` or `module:function`; nothing when there is none."""
    module_name, _, path = name.rpartition(":")
    if module_name:
        try:
            modules = [importlib.import_module(module_name)]
        except ImportError:
            return
    else:
        loaded = list(sys.modules.values())
        modules = [one for one in loaded if not is_library(getattr(one, "__file__", None) or "<frozen")]
    for module in modules:
        found: Any = module
        for part in path.split("."):
            found = getattr(found, part, None)
        if callable(found):
            yield found


class WorkerLines:
    """Picklable: what `profiling.watch.worker.WorkerEntry` calls inside a worker."""

    def __init__(self, folder: str, functions: tuple[str, ...]) -> None:
        self.folder = folder
        self.functions = functions

    def in_worker(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Start profiling this worker; returns the worker loop's arguments with its data queue wrapped."""
        watch = LineWatch(Journal(Path(self.folder)), self.functions, where="workers")
        dataset = args[1][0] if isinstance(args[1], list) and len(args[1]) == 1 else args[1]
        watch.add_dataset(dataset, args[6])
        Finalize(None, watch.stop, exitpriority=100)
        watch.start()
        return (*args[:3], DumpingQueue(args[3], watch), *args[4:])


class DumpingQueue:
    """The worker's data queue: counts are written down as batches leave."""

    def __init__(self, queue: Any, watch: LineWatch) -> None:
        self._queue = queue
        self._watch = watch

    def put(self, *args: Any, **kwargs: Any) -> None:
        self._queue.put(*args, **kwargs)
        self._watch.dump_sometimes()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)


class LinesWindow(Way):
    """The window of a diagnostic run in which lines are timed; the script's own loader is begun again for it, with
    workers that time theirs."""

    leg = "lines"

    def __init__(self, hooks: Hooks) -> None:
        options, journal = hooks.capture.options, hooks.capture.journal
        self.steps = options.line_steps
        self._hooks = hooks
        self._watch = LineWatch(journal, options.functions, where="trainer")
        self._workers = WorkerLines(str(journal.folder), options.functions)
        self._close: Callable[[], None] | None = None
        hooks.others = self._watch.pad_own_module
        os.register_at_fork(after_in_child=self._watch.forget)
        run_main_padded(self._watch.add_code)

    def begin(self, batches: Batches) -> int | None:
        loader = batches.feed.loader
        if not batches.feed.adapter.workers(loader):
            self._watch.add_dataset(getattr(loader, "dataset", None), getattr(loader, "collate_fn", None))
        self._open(batches.feed)
        self._watch.start()
        return 0

    def _open(self, feed: Feed) -> None:
        """The loader from its beginning, with fresh workers where it has any."""
        loader, workers = feed.loader, feed.adapter.workers(feed.loader)
        again = feed.adapter.again(loader, workers) if workers else None
        self._hooks.time_worker_lines = self._workers
        try:
            iterator = feed.begin_again(again)
        finally:
            self._hooks.time_worker_lines = None
        self._close = functools.partial(self._end_workers, feed, iterator) if again is not None else None

    def _end_workers(self, feed: Feed, iterator: Any) -> None:
        """They write down what they counted."""
        end_workers(iterator)
        feed.go_on()

    def batch(self, batches: Batches) -> Any:
        self._watch.dump_sometimes()
        try:
            return batches.feed.draw()
        except StopIteration:
            self._open(batches.feed)
            return batches.feed.draw()

    def end(self) -> None:
        self._watch.stop()
        if self._close is not None:
            self._close()
        self._close = None
