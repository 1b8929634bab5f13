"""Inside a DataLoader worker process: what its main thread does, sampled and written down.

`WorkerEntry` takes the place of torch's worker loop as the process's target. It starts a sampler thread, counts the
batches handed over, runs the original loop and leaves one row a second, so that a worker that is killed
loses no more than that. It is pickled to the worker under spawn and forkserver, and inherited under fork.
"""

import functools
import importlib
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from feedline.profiling.record.journal import Journal
from feedline.profiling.watch.batches import sizes
from feedline.profiling.watch.evidence import HelperThread, ThreadEvidence
from feedline.profiling.watch.facts import Keeps, iterates
from feedline.profiling.watch.rules import Place, classify, frames
from feedline.profiling.watch.sampler import WORKER_HZ, StackSampler, TimeSums

SAY_S = 3.0
DATASET, INDICES, QUEUE, COLLATE, INIT, WORKER_ID, WORKERS = 1, 2, 3, 6, 9, 10, 11
"""Positions among the arguments of torch's _worker_loop, since 1.2."""
UNDIVIDED = (
    "{0}.__iter__ does not call torch.utils.data.get_worker_info(): unless it divides its samples in another way, or "
    "draws them at random, each of the {1} workers gives all of them, and an epoch has every sample {1} times. To "
    "divide them: `info = get_worker_info()`, `itertools.islice(samples, info.id, None, info.num_workers)`"
)


@dataclass(kw_only=True)
class WorkerEntry:
    """Callable with the arguments of the worker loop it stands for."""

    original: Any
    module: str  # of the original
    folder: str
    loader: int
    rank: int
    trainer: int  # its process's id
    batch_size: int | None
    lines: Any
    """Where `--lines` is asked for, what is called with the dataset and the collate function, and gives what is told
    of each item of the data queue."""

    def __getstate__(self) -> dict[str, Any]:
        # The original cannot be pickled by name while we stand in its place; the other side looks it up.
        return {**self.__dict__, "original": None}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        home: Any = importlib.import_module(self.module)
        loop = self.original or home._worker_loop
        dataset = args[DATASET]
        if isinstance(dataset, list) and len(dataset) == 1:  # as newer torch has it, which takes it out
            dataset = dataset[0]
        if isinstance(loop, WorkerEntry):
            loop = loop.original
        try:
            if self.lines is not None:
                queues = args[INDICES], WatchedQueue(args[QUEUE], tell=self.lines(dataset, args[COLLATE]))
            else:
                worker = kwargs.get("worker_id", args[WORKER_ID] if len(args) > WORKER_ID else 0)
                watch = WorkerWatch(self, worker, args[QUEUE], dataset)
                if iterates(dataset) and len(args) > WORKERS and args[WORKERS] > 1 and args[INIT] is None:
                    watch.undivided = UNDIVIDED.format(type(dataset).__name__, args[WORKERS])
                    _telling(home.WorkerInfo, watch)
                queues = WatchedQueue(args[INDICES], watch), WatchedQueue(args[QUEUE], watch, watch.count)
            args = (*args[:INDICES], *queues, *args[QUEUE + 1 :])
        except Exception:
            # The script must run, watched or not; the parent notices that this worker said nothing.
            pass
        del dataset
        return loop(*args, **kwargs)


class WorkerWatch:
    """The sampler of one worker process and its file."""

    def __init__(self, entry: WorkerEntry, worker: int, queue: Any, dataset: Any) -> None:
        """`queue` is the one that its batches leave by."""
        self.sums = TimeSums()
        self.hook_s = 0.0  # CPU time of counting batches
        self.inside: str | None = None  # the stage of the queue's call that it is in
        self.undivided = ""  # what is said with the first batch, unless its dataset has asked for its part until then
        self._feeder = HelperThread(lambda: getattr(queue, "_thread", None))
        self._journal = Journal(Path(entry.folder))
        self._left = f"left-{entry.trainer}"
        self._name = f"worker-{os.getpid()}"
        self._batch_size, self._stateful = entry.batch_size, entry.module.startswith("torchdata.")
        self._main = threading.get_ident()
        self._keeps, self._kept = Keeps(dataset), dict[str, int]()
        self._evidence = ThreadEvidence(threading.get_native_id())
        self._about = {"pid": os.getpid(), "worker": worker, "loader": entry.loader, "rank": entry.rank}
        self._about["trainer"] = entry.trainer
        self._sampler = StackSampler(self._look, self._journal, rate_hz=WORKER_HZ)
        self._say()
        from multiprocessing.util import Finalize  # here: the trainer imports this file too, and sooner without

        Finalize(None, self._leave, exitpriority=100)
        self._sampler.start()

    def count(self, item: Any) -> None:
        """Of the data queue: a batch, unless it is one of the loader's own messages."""
        began_s = time.thread_time()
        batch = item[1] if isinstance(item, tuple) and len(item) == 2 else None
        if self._stateful and isinstance(batch, tuple) and len(batch) == 3:
            batch = batch[0]  # beside the worker's number and its state
        samples = None if batch is None else sizes(batch, self._batch_size)[0]
        if samples is not None:
            if self.undivided:
                self._journal.complain(self.undivided)
                self.undivided = ""
            self.sums.batches += 1
            self.sums.samples += samples
        self.hook_s += time.thread_time() - began_s

    def ends(self) -> None:
        """The loop is told to; its dataset is there yet."""
        self._kept = self._keeps.grown()

    def _look(self, frames_by_thread: dict[int, FrameType], seconds: float, _: bool | None) -> None:
        spent, inside = self._evidence.spent(), self.inside
        blocked = functools.partial(self._evidence.mostly_blocked_in, spent, seconds)
        frame = frames_by_thread.get(self._main)
        place = Place(inside, "worker.py:_worker_loop") if inside else classify(frame, blocked)
        if self._feeds(frames_by_thread, seconds) and inside == "idle":
            place = Place("send", "queues.py:_feed")
        self.sums.add(place, seconds, spent)
        left = self._journal.has(self._left)
        if left or self.sums.due:
            self._journal.append(self._name, self.sums.take(self._sampler.cpu_s))
        if left:
            self._sampler.stop()  # nothing more is to be seen
        if left or time.perf_counter() - self._said > SAY_S:
            self._say(left=left)

    def _feeds(self, frames_by_thread: dict[int, FrameType], seconds: float) -> bool:
        """Whether the thread of this worker's queue mostly serialises batches: it is past its wait for one and uses
        the CPU. Blocked on a full pipe, it waits for the trainer."""
        frame, cpu_s = self._feeder.look(frames_by_thread)
        if cpu_s is not None and cpu_s <= 0.25 * seconds:
            return False
        for one in frames(frame):
            if one.f_code.co_name == "wait" and one.f_code.co_filename.endswith("threading.py"):
                return False
            if one.f_code.co_name == "_feed":
                return True
        return False

    def _leave(self) -> None:
        self._sampler.stop()
        self._journal.append(self._name, self.sums.take(self._sampler.cpu_s))
        self._say(left=True, ended=True)

    def _say(self, *, left: bool = False, ended: bool = False) -> None:
        self._said = time.perf_counter()
        seen = {"sampler_cpu_s": self._sampler.cpu_s, "hook_s": self.hook_s}
        seen |= {"ended": ended, "left": left, "keeps": self._keeps.grown() or self._kept}
        self._journal.write(self._name, self._about | seen)


class WatchedQueue:
    """One of the worker's queues: what is put into it is told, and the watch knows while it is in here."""

    def __init__(
        self, queue: Any, watch: WorkerWatch | None = None, tell: Callable[[Any], None] | None = None
    ) -> None:
        self._queue, self._watch, self._tell = queue, watch, tell

    def get(self, *args: Any, **kwargs: Any) -> Any:
        asked = self._doing("idle", self._queue.get, *args, **kwargs)
        if asked is None and self._watch is not None:
            self._watch.ends()
        return asked

    def put(self, item: Any, *args: Any, **kwargs: Any) -> None:
        if self._tell is not None:
            self._tell(item)
        self._doing("send", self._queue.put, item, *args, **kwargs)

    def _doing(self, stage: str, work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self._watch is None:
            return work(*args, **kwargs)
        self._watch.inside = stage
        try:
            return work(*args, **kwargs)
        finally:
            self._watch.inside = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)


def _telling(info: Any, watch: WorkerWatch) -> None:
    """Has torch's WorkerInfo tell that it was asked; it stays the class that it is, for it may be pickled."""
    plain = info.__getattribute__

    def asked(self: Any, name: str) -> Any:
        if name in ("id", "num_workers", "seed"):
            watch.undivided = ""
        return plain(self, name)

    replaced: Any = asked
    info.__getattribute__ = replaced
