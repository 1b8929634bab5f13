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
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

from line_profiler import LineProfiler

from feedline.profiling.record.journal import Journal, LineRow
from feedline.profiling.watch.facts import innermost
from feedline.profiling.watch.feed import Feed, Feeds
from feedline.profiling.watch.legs.ways import Batches, Way, end_workers
from feedline.profiling.watch.rules import is_library

DUMP_S = 0.5
MOST_S = 60.0


class LinesWindow(Way):
    """The window of a diagnostic run in which lines are timed; the script's own loader is begun again for it, with
    workers that time theirs."""

    leg = "lines"

    def __init__(self, feeds: Feeds) -> None:
        config, journal = feeds.capture.config, feeds.capture.journal
        self.steps = config.line_steps
        self._feeds = feeds
        self._watch = LineWatch(journal, config.functions, where="trainer")
        self._in_worker = functools.partial(time_lines, str(journal.folder), config.functions)
        self._fresh: tuple[Feed, Any] | None = None  # the loader's iterator, where it has workers of ours
        feeds.patches.others = self._watch.pad_own_module
        os.register_at_fork(after_in_child=self._watch.forget)
        run_main_padded(self._watch.profiler.add_function)

    def begin(self, batches: Batches) -> int | None:
        loader = batches.feed.loader
        if not batches.feed.adapter.workers(loader):
            self._watch.add_dataset(getattr(loader, "dataset", None), getattr(loader, "collate_fn", None))
        self._open(batches.feed)
        self._watch.start()
        return 0

    def _open(self, feed: Feed) -> None:
        """The loader from its beginning, with fresh workers where it has any."""
        workers = feed.adapter.workers(feed.loader)
        again = feed.adapter.again(feed.loader, workers) if workers else None
        self._feeds.worker_lines = self._in_worker
        try:
            iterator = feed.begin_again(again)
        finally:
            self._feeds.worker_lines = None
        self._fresh = (feed, iterator) if again is not None else None

    def batch(self, batches: Batches) -> Any:
        self._watch.dump_sometimes()
        return batches.draw(lambda: self._open(batches.feed))

    def next_pass(self, batches: Batches) -> None:
        self._close()
        self._open(batches.feed)

    def too_long(self, seconds: float) -> bool:
        return self._feeds.capture.facts.world_size == 1 and seconds > MOST_S

    def end(self) -> None:
        self._watch.stop()
        self._close()

    def _close(self) -> None:
        if self._fresh is not None:
            feed, iterator = self._fresh
            end_workers(iterator)  # they write down what they counted
            feed.go_on()
        self._fresh = None


def time_lines(folder: str, functions: tuple[str, ...], dataset: Any, collate: Any) -> Callable[[Any], None]:
    """In a worker, until it ends; what comes back is called as its batches leave."""
    watch = LineWatch(Journal(Path(folder)), functions, where="workers")
    watch.add_dataset(dataset, collate)
    Finalize(None, watch.stop, exitpriority=100)
    watch.start()
    return watch.dump_sometimes


class LineWatch:
    """The line profiler of one process, and its file in the journal."""

    def __init__(self, journal: Journal, functions: tuple[str, ...], *, where: str) -> None:
        self.profiler: Any = LineProfiler()
        self._where = where
        self._journal = journal
        self._functions = functions
        self._named: set[tuple[str, int]] = set()  # where the functions begin that the user named
        self._dumped = 0.0
        self._on = False

    def start(self) -> None:
        """From here on, in this thread."""
        if self._on:
            return
        for module in list(sys.modules.values()):
            self._add_functions_of(module)
        for function in (function for name in self._functions for function in find(name)):
            self._add(function)
            code = getattr(_plain(function), "__code__", None)
            if code is not None:
                self._named.add((code.co_filename, code.co_firstlineno))
        self._on = True
        self.profiler.enable()

    def stop(self) -> None:
        self.forget()
        self._dump()

    def forget(self) -> None:
        """In a forked child: what the parent counted is the parent's."""
        if self._on:
            self._on = False
            self.profiler.disable()

    def dump_sometimes(self, _: Any = None) -> None:
        if time.perf_counter() - self._dumped > DUMP_S:
            self._dump()

    def _dump(self) -> None:
        self._dumped = time.perf_counter()
        stats = self.profiler.get_stats()
        rows = [
            LineRow(file, line, function, [[number, hits, ticks * stats.unit] for number, hits, ticks in timings])
            for (file, line, function), timings in stats.timings.items()
            if timings
        ]
        # A spawned worker has a trainer's watch too, since the probe is in every process: each has its own file.
        counts = {"where": self._where, "functions": rows, "named": sorted(self._named)}
        self._journal.write(f"lines-{self._where}-{os.getpid()}", counts)

    # --- what to profile ----------------------------------------------------------------------------------

    def _add(self, function: Any) -> None:
        """A function or method; anything else is passed over."""
        inner = _plain(function)
        if isinstance(inner, FunctionType):
            self.profiler.add_function(inner)

    def pad_own_module(self, file: str) -> Callable[[ModuleType], None] | None:
        """What is done with a module once it has been imported: a function that runs already as its lines shall be
        timed was never padded."""
        return self._add_functions_of if file.endswith(".py") and not is_library(file) else None

    def _add_functions_of(self, module: ModuleType) -> None:
        """Functions and methods defined in a module of the script's own (not those it imports)."""
        file = getattr(module, "__file__", None)
        if not file or is_library(file) or module.__name__.startswith("feedline."):
            return
        own = [value for value in vars(module).values() if getattr(value, "__module__", None) == module.__name__]
        for value in own:
            for member in list(vars(value).values()) if isinstance(value, type) else [value]:
                self._add(member)

    def add_dataset(self, dataset: Any, collate: Any) -> None:
        """What a worker calls for every sample and every batch."""
        for one in (dataset, innermost(dataset)):
            for name in ("__getitem__", "__getitems__", "__iter__"):
                method = getattr(type(one), name, None)
                code = getattr(method, "__code__", None)
                if not getattr(code, "co_filename", "").replace("\\", "/").endswith("torch/utils/data/dataset.py"):
                    self._add(method)
            loader = getattr(one, "loader", None)
            self._add(loader)
            # Functions of its own module that it names: torchvision's `default_loader` hands on to others.
            names = getattr(getattr(loader, "__code__", None), "co_names", ())
            for called in (getattr(loader, "__globals__", {}).get(name) for name in names):
                if getattr(called, "__module__", None) == getattr(loader, "__module__", ""):
                    self._add(called)
        self._add(collate)


def _plain(function: Any) -> Any:
    """Without its decorators, and not bound."""
    function = getattr(function, "__func__", function)
    return inspect.unwrap(function) if callable(function) else function


def find(name: str) -> Iterator[Any]:
    """`function`, `Class.method` or `module:function`; nothing when there is none."""
    module_name, _, path = name.rpartition(":")
    first, *rest = path.split(".")
    if module_name:
        try:
            found = [getattr(importlib.import_module(module_name), first, None)]
        except ImportError:
            return
    else:  # not by their `__getattr__`, which may import, or raise
        loaded = [
            one for one in list(sys.modules.values()) if not is_library(getattr(one, "__file__", None) or "<frozen")
        ]
        found = [getattr(one, "__dict__", {}).get(first) for one in loaded]
    for one in found:
        named = functools.reduce(lambda at, part: getattr(at, part, None), rest, one)
        if callable(named):
            yield named


# --- the main file ------------------------------------------------------------------------------------


def run_main_padded(pad: Callable[[FunctionType], None]) -> None:
    """The main file's functions padded before they are defined. The interpreter announces the main module's code
    through an audit event just before it runs it. A padded copy is run in its place, and then it leaves as the
    original would have; `__main__` stays the very module."""
    taken = False

    def hear(event: str, args: tuple[Any, ...]) -> None:
        nonlocal taken
        if event != "exec" or taken or not isinstance(args[0], CodeType) or args[0].co_name != "<module>":
            return
        if not sys.argv or os.path.abspath(args[0].co_filename) != os.path.abspath(sys.argv[0]):  # noqa: PTH100
            return
        # The main module is run by nobody, or (-m) by runpy; a spawned worker runs its file again, as `__mp_main__`.
        caller = sys._getframe().f_back
        namespace = sys.modules["__main__"].__dict__ if caller is None else caller.f_locals.get("run_globals")
        if namespace is not None and namespace.get("__name__") == "__main__":
            taken = True
            exec(padded(args[0], pad), namespace)
            raise SystemExit(0)

    hear.__cantrace__ = True  # type: ignore[attr-defined]  the interpreter keeps tracing off in other hooks
    sys.addaudithook(hear)


def padded(code: CodeType, pad: Callable[[FunctionType], None]) -> CodeType:
    """The same code with every function in it as `pad` leaves it."""
    constants = tuple(padded(one, pad) if isinstance(one, CodeType) else one for one in code.co_consts)
    code = code.replace(co_consts=constants)
    # Class bodies are code too; functions run with fast locals.
    is_function = code.co_flags & inspect.CO_NEWLOCALS and code.co_flags & inspect.CO_OPTIMIZED
    if code.co_name.startswith("<") or not is_function:
        return code
    function = FunctionType(code, {}, closure=tuple(CellType() for _ in code.co_freevars))
    pad(function)
    return function.__code__
