"""Inside a DataLoader worker process: what its main thread does, sampled and written down.

`WorkerEntry` takes the place of torch's worker loop as the process's target. It starts a sampler thread, counts the
batches handed over, runs the original loop and leaves one row every half second, so that a worker that is killed
loses no more than that. It is pickled to the worker under spawn and forkserver, and inherited under fork.
"""

import importlib
import os
import threading
import time
from multiprocessing.util import Finalize
from pathlib import Path
from types import FrameType
from typing import Any

from feedline.profiling.record.journal import Journal
from feedline.profiling.watch.batches import batch_samples
from feedline.profiling.watch.data_paths import PathCollector
from feedline.profiling.watch.rules import Place
from feedline.profiling.watch.stacks import StackSampler, fair_switching
from feedline.profiling.watch.time_sums import Feeder, TimeSums
from feedline.profiling.watch.worker_rules import classify

SAY_S = 3.0
WORKER_ID = 10  # position of worker_id among the arguments of torch's _worker_loop, since 1.2


class WorkerEntry:
    """Callable with the arguments of the worker loop it stands for."""

    def __init__(self, original: Any, *, module: str, folder: str, loader: int, rank: int, lines: Any = None) -> None:
        self.original = original
        self.module = module
        self.folder = folder
        self.loader = loader
        self.rank = rank
        self.lines = lines
        """Where `--lines` is asked for: an object with `in_worker(args) -> args`."""

    def __getstate__(self) -> dict[str, Any]:
        # The original cannot be pickled by name while we stand in its place; the other side looks it up.
        return {**self.__dict__, "original": None}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        loop = self.original or _unwrapped(importlib.import_module(self.module)._worker_loop)
        try:
            args = self._prepare(args, kwargs)
        except Exception:
            # The script must run, watched or not; the parent notices that this worker said nothing.
            pass
        return loop(*args, **kwargs)

    def _prepare(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        worker = kwargs.get("worker_id", args[WORKER_ID] if len(args) > WORKER_ID else 0)
        if self.lines is not None:
            return self.lines.in_worker(args)
        watch = WorkerWatch(Journal(Path(self.folder)), worker=worker, loader=self.loader, rank=self.rank)
        queue = 3  # data_queue
        return (*args[:queue], CountingQueue(args[queue], watch.sums), *args[queue + 1 :])


def _unwrapped(loop: Any) -> Any:
    return loop.original if isinstance(loop, WorkerEntry) else loop


class CountingQueue:
    """The worker's data queue, with a count of what went through."""

    def __init__(self, queue: Any, sums: TimeSums) -> None:
        self._queue = queue
        self._sums = sums

    def put(self, item: Any, *args: Any, **kwargs: Any) -> None:
        began_s = time.thread_time()
        count = batch_samples(item[1]) if isinstance(item, tuple) and len(item) == 2 else None
        if count is not None:
            self._sums.batches += 1
            self._sums.samples += count
        self._sums.hook_s += time.thread_time() - began_s
        self._queue.put(item, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)


class WorkerWatch:
    """The sampler of one worker process and its file."""

    def __init__(self, journal: Journal, *, worker: int, loader: int, rank: int) -> None:
        fair_switching()
        self.sums = TimeSums()
        self._feeder = Feeder()
        self._journal = journal
        self._rank = rank
        self._name = f"worker-{os.getpid()}"
        self._main = threading.main_thread().ident or 0
        self._about = {
            "pid": os.getpid(), "worker": worker, "loader": loader, "rank": rank, "created": time.time(),
        }  # fmt: skip
        self._paths = PathCollector.active()
        self._paths.start()
        self._sampler = StackSampler(self._look, journal)
        self._say()
        Finalize(None, self._leave, exitpriority=100)
        self._sampler.start()

    def _look(self, frames: dict[int, FrameType], seconds: float) -> None:
        place = classify(frames.get(self._main))
        feeding = self._feeder.works(frames, seconds)
        if place.stage == "idle" and feeding:
            place = Place("send", "queues.py:_feed")
        self.sums.add(place, seconds)
        left = self._journal.has_left(self._rank)
        if left or self.sums.due:
            self._journal.append(self._name, [self.sums.take()])
        if left:
            self._sampler.stop()  # nothing more is to be seen
        if left or time.perf_counter() - self._said > SAY_S:
            self._say(left=left)

    def _leave(self) -> None:
        self._sampler.stop()
        self._journal.append(self._name, [self.sums.take()])
        self._say(left=True, ended=True)

    def _say(self, *, left: bool = False, ended: bool = False) -> None:
        self._said = time.perf_counter()
        said = {"ended": ended, "left": left, "sampler_cpu_s": self._sampler.cpu_s, "looks": self._sampler.looks}
        put = {"puts": self.sums.batches, "hook_s": self.sums.hook_s}
        self._journal.write(self._name, {**self._about, **said, **put, "paths": self._paths.found})
