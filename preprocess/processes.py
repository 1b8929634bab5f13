"""Processes of this machine as an engine of `prepare`: no Java, no Spark.

Each worker is a fresh interpreter (`python -m feedline.preprocess.processes`) at the other end of a pipe. It asks for
a shard when it has made the one before, whose publication goes on meanwhile, and tells of each that is published.
A worker that dies is replaced, and its shards are made again, each alone in its worker then, so that a shard over
which a second worker dies is known. Workers end when their pipe closes, and with the process that started them.
"""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any, Self

from feedline.pipeline.base.errors import FeedlineError
from feedline.pipeline.base.process import die_with, how_it_ended, start_python, usable_cores, wait_or_kill
from feedline.preprocess.engine import Engine, EngineRun
from feedline.preprocess.fingerprint import inherit, loaded_code
from feedline.preprocess.plan import ShardTask
from feedline.preprocess.write_shard import OnOutcome, Order, Outcome, settle, write_shards

GRACE_S = 2.0
"""How long a worker may take to discard what it has begun before it is killed."""
ERROR_BYTES = 4096
MOST_DEATHS = 2
"""Of workers over one shard, or before they asked for any, until the job ends."""


@dataclass(kw_only=True)
class ProcessEngine(Engine):
    """Tasks in processes of this machine, which import what they need while the job is indexed and planned."""

    processes: int | None = None
    """None: one for each core that may be used."""
    pool: "Pool | None" = None

    @contextmanager
    def begin(self) -> Generator[None]:
        with Pool() as pool:
            pool.grow(self.processes or usable_cores())
            self.pool = pool
            try:
                yield
            finally:
                self.pool = None

    def run(self, order: Order, tasks: Sequence[ShardTask], on_outcome: OnOutcome) -> EngineRun:
        times = [time.monotonic()]
        processes = min(self.processes or usable_cores(), len(tasks))
        with self.pool or Pool() as pool:
            for outcome in pool.outcomes(order, tasks, processes):
                on_outcome(outcome)
            times += [pool.began, time.monotonic()]
        start_s, run_s, stop_s = (later - sooner for sooner, later in pairwise([*times, time.monotonic()]))
        return EngineRun(start_s=start_s, run_s=run_s, stop_s=stop_s, parallelism=processes,
                         master=f"{processes} processes")  # fmt: skip


@dataclass(eq=False)
class PoolWorker:
    process: subprocess.Popen[bytes]
    pipe: "Connection[Any, Any]"
    started: bool = False
    asks: bool = False
    tasks: list[ShardTask] = field(default_factory=list[ShardTask])
    """Handed to it and not published yet: at most one being published and one being made."""


class Pool:
    """The workers, and the shards that are left."""

    def __init__(self) -> None:
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115 closed with the pool
        self.waiting: deque[ShardTask] = deque()
        self.workers: list[PoolWorker] = []
        self.deaths: Counter[tuple[str, int]] = Counter()
        self.failed_starts = 0
        self.began = 0.0
        """When the first worker asked for a shard."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Ends all workers; what they have not published they discard, or the next run does."""
        for worker in self.workers:
            worker.pipe.close()
            worker.process.terminate()
        for worker in self.workers:
            end(worker)
        self.workers.clear()
        self.errors.close()

    def outcomes(self, order: Order, tasks: Sequence[ShardTask], processes: int) -> Generator[Outcome]:
        """Of every shard, once it is published. Raises FeedlineError where a worker died a second time over one."""
        self.waiting += tasks
        self.order = order, loaded_code()  # now: a process that starts after an upgrade has another
        self.grow(processes)
        for worker in self.workers:
            tell(worker, self.order)
        while self.waiting or any(worker.tasks for worker in self.workers):
            ready = wait([worker.pipe for worker in self.workers])
            for worker in [worker for worker in self.workers if worker.pipe in ready]:
                try:
                    message = worker.pipe.recv()
                except (EOFError, OSError):
                    self.replace(worker)
                    continue
                if message is None:
                    self.began = self.began or time.monotonic()
                    worker.started = worker.asks = True
                else:
                    worker.tasks.pop(0)
                    yield message
            self.hand_out()

    def grow(self, processes: int) -> None:
        """To so many workers, which wait for the order before they ask for a shard."""
        while len(self.workers) < processes:
            ours, theirs = Pipe()
            with theirs:
                process = start_python("feedline.preprocess.processes", (str(theirs.fileno()), str(os.getpid())),
                                       [theirs.fileno()], stderr=self.errors)  # fmt: skip
            self.workers.append(PoolWorker(process, ours))

    def hand_out(self) -> None:
        """A shard to every worker that asks. One that a worker died over is in no worker beside another."""
        for worker in self.workers:
            if worker.asks and self.waiting:
                both = [*worker.tasks, self.waiting[0]]
                if len(both) == 1 or not any(self.deaths[task.split, task.shard] for task in both):
                    tell(worker, self.waiting[0])
                    worker.tasks.append(self.waiting.popleft())
                    worker.asks = False

    def replace(self, worker: PoolWorker) -> None:
        """Its shards are the next to be made again."""
        self.workers.remove(worker)
        end(worker)
        status = worker.process.returncode
        how = f"{how_it_ended(status)}{self.last_error() if status > 0 else ''}"
        if not worker.started:
            self.failed_starts += 1
            if self.failed_starts == MOST_DEATHS:
                raise FeedlineError(f"a process of prepare {how} before it began: run again to resume")
        for task in worker.tasks:
            self.deaths[task.split, task.shard] += 1
            if self.deaths[task.split, task.shard] == MOST_DEATHS:
                raise FeedlineError(f"two processes died over shard {task.shard} of {task.split}; the last {how}: "
                                    "run the same command again to resume")  # fmt: skip
        self.waiting.extendleft(reversed(worker.tasks))
        self.grow(len(self.workers) + 1)
        tell(self.workers[-1], self.order)

    def last_error(self) -> str:
        """The last line that a worker wrote to its stderr, in brackets; "" when there is none."""
        file = self.errors.fileno()  # whose place in the file is the workers' too: it is not moved
        text = os.pread(file, ERROR_BYTES, max(0, os.fstat(file).st_size - ERROR_BYTES))
        lines = text.decode(errors="replace").split("\n")
        return next((f" ({line.strip()[:300]})" for line in reversed(lines) if line.strip()), "")


def tell(worker: PoolWorker, message: object) -> None:
    with suppress(OSError):  # it has died: its pipe's end is the next thing we hear of it
        worker.pipe.send(message)


def end(worker: PoolWorker) -> None:
    """Waits for its end, which a closed pipe or a signal has brought about; kills it where that takes long."""
    worker.pipe.close()
    wait_or_kill(worker.process, GRACE_S)


# --- in a worker --------------------------------------------------------------------------------------


def main(descriptor: int, parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what a Ctrl-C ends
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # attempts are discarded on the way out
    die_with(parent)
    settle()
    one_at_a_time = threading.Lock()
    with Connection(descriptor) as pipe:

        def say(message: Outcome | None) -> None:
            with one_at_a_time:
                pipe.send(message)

        def asked_for() -> Generator[ShardTask]:
            with suppress(EOFError, OSError):  # the parent has closed its end
                while True:
                    say(None)
                    yield pipe.recv()

        order, code = pipe.recv()
        inherit(order.config.outputs, order.fingerprint, code)
        write_shards(order, asked_for(), say)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
