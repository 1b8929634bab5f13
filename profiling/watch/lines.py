"""Line by line, in the trainer and in every worker: line_profiler, which by itself loses the workers silently.

A pass of its own, never the verdict's: a line event costs 130–270 ns, and unprofiled Python called from a profiled
function slows 5 to 12 times. Profiled are the functions of the script's own files (main file and modules), the
dataset's access functions, its loader and collate function, and whatever is named with `--lines-of`; in the trainer
from the first batch on. line_profiler tells functions apart by padding their bytecode, which must happen before a
function runs: the main file's code is padded as it is executed, modules' functions once they are imported.

Every process writes its own counts, at its end and every half second, so that a worker that is killed has spoken; the
parent merges them per function. Workers' times are seconds summed over all of them.
"""

import dis
import importlib
import inspect
import linecache
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from multiprocessing.util import Finalize
from pathlib import Path
from types import CellType, CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any

from line_profiler import LineProfiler

from feedline.profiling.record.journal import Journal
from feedline.profiling.record.recording import Line
from feedline.profiling.watch.capture import Capture
from feedline.profiling.watch.worker_rules import is_library

DUMP_S = 0.5
MOST_FUNCTIONS = 12
"""Functions in a recording, those with the most time first; beside those that the user named."""
NOP = bytes((dis.opmap["NOP"], 0))

# --- in the script's processes ------------------------------------------------------------------------


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
            [file, line, function, [[number, hits, ticks * stats.unit] for number, hits, ticks in timings]]
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
            file = getattr(module, "__file__", None)
            if file and not is_library(file) and not _ours(module):
                for function in functions_of(module):
                    self.add(function)

    def add_named(self) -> None:
        for name in self._functions:
            for function in find(name):
                self.add(function)
                code = getattr(_plain(function), "__code__", None)
                if code is not None:
                    self._named.add((code.co_filename, code.co_firstlineno))

    def add_dataset(self, dataset: Any, collate: Any) -> None:
        """What a worker calls for every sample and every batch."""
        from feedline.profiling.watch.facts import innermost

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


def prepare(capture: Capture) -> None:
    """Set a script up for the line pass, before anything of it runs."""
    from feedline.profiling.watch.legs.write_guard import Withhold

    options = capture.options
    withhold = Withhold(Path(options.scratch), capture.journal)
    withhold.install()
    capture.withhold = withhold
    watch = LineWatch(capture.journal, options.functions, where="trainer")
    capture.lines = WorkerLines(str(capture.journal.folder), options.functions)
    capture.line_watch = watch
    os.register_at_fork(after_in_child=watch.forget)
    run_main_padded(watch)


# --- the main file ------------------------------------------------------------------------------------


def run_main_padded(watch: LineWatch) -> None:
    """Arrange that the main file's functions are padded and known before they are defined.

    The interpreter announces the main module's code through an audit event just before it runs it. Ours runs a padded
    copy in its place and then leaves as the original would have; `__main__` stays the very module.
    """
    state = {"taken": False}

    def hear(event: str, args: tuple[Any, ...]) -> None:
        if event != "exec" or state["taken"] or not _is_main(args[0]):
            return
        namespace = _namespace(sys._getframe().f_back)
        if namespace is None:
            return
        state["taken"] = True
        exec(padded_copy(args[0], watch.add_code), namespace)
        raise SystemExit(0)

    hear.__cantrace__ = True  # type: ignore[attr-defined]  the interpreter keeps tracing off in other hooks
    sys.addaudithook(hear)


def _namespace(caller: FrameType | None) -> dict[str, Any] | None:
    """Where the main module is about to run: called by nobody, or (-m) by runpy. None for what merely runs the same
    file: a spawned worker runs it again, as `__mp_main__`."""
    found = sys.modules["__main__"].__dict__ if caller is None else caller.f_locals.get("run_globals")
    return found if found is not None and found.get("__name__") == "__main__" else None


def _is_main(code: Any) -> bool:
    if not isinstance(code, CodeType) or code.co_name != "<module>" or not sys.argv:
        return False
    return os.path.abspath(code.co_filename) == os.path.abspath(sys.argv[0])  # noqa: PTH100


def padded_copy(code: CodeType, tell: Callable[[CodeType], None]) -> CodeType:
    """The same code with every function in it padded as line_profiler would; tells each padded function."""
    seen: defaultdict[bytes, int] = defaultdict(int)

    def pad(inner: CodeType) -> CodeType:
        constants = tuple(pad(one) if isinstance(one, CodeType) else one for one in inner.co_consts)
        inner = inner.replace(co_consts=constants)
        if inner.co_name.startswith("<") or not inner.co_flags & inspect.CO_NEWLOCALS or not _is_function(inner):
            return inner
        seen[inner.co_code] += 1  # twins need padding of different length
        inner = inner.replace(co_code=inner.co_code + NOP * seen[inner.co_code])
        tell(inner)
        return inner

    return code.replace(co_consts=tuple(pad(one) if isinstance(one, CodeType) else one for one in code.co_consts))


def _is_function(code: CodeType) -> bool:
    """Class bodies are code too; functions run with fast locals."""
    return bool(code.co_flags & inspect.CO_OPTIMIZED)


# --- in the parent ------------------------------------------------------------------------------------


def collect(journal: Journal) -> list[Line]:
    """Merged over processes per function, the functions with the most time first, lines in their order. What the user
    named is kept, however little it took."""
    merged: dict[tuple[str, int, str, str], dict[int, list[float]]] = {}
    named: set[tuple[str, int]] = set()
    for said in journal.all("lines-"):
        named |= {(file, first) for file, first in said.get("named", [])}
        for file, first, function, timings in said["functions"]:
            lines = merged.setdefault((file, first, function, said["where"]), defaultdict(lambda: [0.0, 0.0]))
            for number, hits, seconds in timings:
                lines[number][0] += hits
                lines[number][1] += seconds
    totals = {key: sum(seconds for _, seconds in lines.values()) for key, lines in merged.items()}
    ranked = sorted(merged, key=lambda key: -totals[key])
    kept = [key for place, key in enumerate(ranked) if place < MOST_FUNCTIONS or key[:2] in named]
    return [line for key in kept for line in _lines_of(key, merged[key], totals[key])]


def _lines_of(key: tuple[str, int, str, str], lines: dict[int, list[float]], total_s: float) -> Iterator[Line]:
    file, _, function, where = key
    for number, (hits, seconds) in sorted(lines.items()):
        yield Line(
            file=file,
            function=function,
            line=number,
            hits=int(hits),
            seconds=seconds,
            fraction=seconds / total_s if total_s else 0.0,
            source=linecache.getline(file, number).strip(),
            where=where,
        )
