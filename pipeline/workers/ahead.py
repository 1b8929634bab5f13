"""What is announced to the storage, how far ahead of the workers, and in which way. Decisions, no effects.

The plan of an epoch is known, so what comes can be asked for before it is needed, many at once, and a random order is
as fast as the storage can be. With each task go the numbers of samples that come later in the plan (`hints_N` of a
slot); the worker announces them, then fills its batch. So nothing here can change a batch, and a run that is resumed,
given up or begun ahead announces its own plan's samples.

How far (`Reach`) follows what workers waited for in reads: farther while they wait and that brings more, back while
they do not, and off where the data is cached. Storage that gives all it can is asked for no more: requests would only
queue, and reads that were not announced behind all of them. What is announced and not yet used is bounded in bytes
over all workers (`Ahead`).
"""

from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from feedline.pipeline.workers.counters import FIELD, LOOK_EVERY, Rows
from feedline.pipeline.workers.slots import HINT_BATCHES, Numbers

OFF, ADVICE, READS = range(3)
WAYS = ("off", "advice", "reads")
"""By number: nothing, `posix_fadvise`, reads of threads in the workers."""
MOST_BYTES = 64 << 20
"""Announced at a time: 2 GB/s for 30 ms; or what the batches under way hold, if that is more."""
SHARE = 16
"""One part in so many of the memory that this rank may use, at most."""
ENOUGH = 16
"""Reads looked at before anything is decided."""
WORTH = 0.02
"""Of the workers' time: what waiting for storage must take before more is announced."""
FROM_STORAGE = 0.1
"""Of the bytes read: from so much on, reads that do not wait owe it to the announcements."""
FIRST_PATIENCE, MOST_PATIENCE = 32, 4096
"""Batches without such waiting after which half as much is announced; doubled each time that this was a mistake."""
GAIN = 1.1
"""By so much the workers must read faster for a longer reach to be kept."""
BETTER = 0.8
"""Of the wait for announced ranges, what that of ranges read by threads may be at most to be preferred."""


class Seen(NamedTuple):
    """What all workers together counted, up to now or between two moments."""

    batches: int = 0
    looked_at: int = 0
    blocked: int = 0
    blocked_ns: int = 0
    bytes_read: int = 0
    storage_bytes: int = 0
    busy_ns: int = 0
    """Their time without what they waited for tasks."""

    @classmethod
    def by(cls, rows: Rows) -> "Seen":
        sums: list[int] = rows.sum(axis=0).tolist()
        told = {name: sums[FIELD[name]] for name in cls._fields[:-1]}
        return cls(**told, busy_ns=sums[FIELD["now_ns"]] - sums[FIELD["started_ns"]] - sums[FIELD["idle"]])

    def since(self, before: "Seen") -> "Seen":
        return Seen(*(now - then for now, then in zip(self, before, strict=True)))

    @property
    def wait_ms(self) -> float:
        """Of a read, on average."""
        return self.blocked_ns / max(1, self.looked_at) / 1e6

    @property
    def rate(self) -> float:
        """Bytes that a worker reads in a ns of its time."""
        return self.bytes_read / max(1, self.busy_ns)

    @property
    def waiting(self) -> float:
        """Share of the workers' time that reads took for want of their bytes; one alone may be chance."""
        return min(1.0, self.blocked_ns * LOOK_EVERY / max(1, self.busy_ns)) if self.blocked > 1 else 0.0


class Reach:
    """How many batches beyond the one that is handed out are announced; 0: nothing is, not even that one."""

    def __init__(self, least: int, most: int) -> None:
        """`least`: one for each worker, or what is announced is needed at once. `most`: by their bytes."""
        self.least, self.most = least, max(least, most)
        self.batches, self.way = least, ADVICE
        self.why = "until there is something to go by"
        self._before = Seen()
        self._steady_from = self._calm = 0
        self._patience, self._shrunk = FIRST_PATIENCE, False
        self._shorter_rate = 0.0
        """Of reading, before the last step farther; 0: that step is not on trial."""
        self._enough_from, self._enough_patience = 0, FIRST_PATIENCE
        """No step farther before so many batches are done; for how many more, when the next one brings nothing."""
        self._advice: Seen | None = None
        """While threads read, on trial: what was seen before."""
        self._tried = False

    def told(self, now: Seen) -> None:
        """Of all that workers have counted so far."""
        seen = now.since(self._before)
        if seen.looked_at < ENOUGH * (1 + 3 * (self._advice is not None)):
            return
        self._before = now
        if now.batches >= self._steady_from and self._decide(seen, now.batches):  # else: of before the last change
            self._steady_from = now.batches + self.batches + self.least

    def _decide(self, seen: Seen, done: int) -> bool:
        """Whether anything was changed. `done`: batches so far."""
        if self._advice is not None:
            return self._judge(seen, self._advice)
        if seen.waiting <= WORTH:
            return self._calmed(seen)
        self._calm = 0
        if self._shrunk:
            self._patience, self._shrunk = min(2 * self._patience, MOST_PATIENCE), False
        spent = f"{seen.waiting:.0%} of the workers' time went into waiting for storage"
        if self.batches >= 2 * self.least and 2 * seen.blocked >= seen.looked_at and not self._tried:
            self._advice, self.way, self.why = seen, READS, f"{spent} despite advice: threads are tried"
        elif self._shorter_rate and seen.rate < GAIN * self._shorter_rate:
            self.batches, self._shorter_rate = max(self.least, self.batches // 2), 0.0
            self._enough_from = done + self._enough_patience
            self._enough_patience = min(2 * self._enough_patience, MOST_PATIENCE)
            self.why = f"{spent}: farther ahead brought no more"
        elif self.batches >= self.most or done < self._enough_from:
            if self.batches >= self.most:
                self.why = f"{spent}: no farther, for memory"
            return False
        else:
            self._shorter_rate = seen.rate if self.batches else 0.0
            self.batches = min(self.most, max(self.least, 2 * self.batches))
            self.why = spent
        return True

    def _judge(self, reads: Seen, advice: Seen) -> bool:
        better = reads.wait_ms < BETTER * advice.wait_ms
        self._advice, self._tried, self.way = None, True, READS if better else ADVICE
        self._shorter_rate *= not better
        self.why = (
            f"a read waited {reads.wait_ms:.2g} ms behind threads' reads, {advice.wait_ms:.2g} ms behind advice"
        )
        return True

    def _calmed(self, seen: Seen) -> bool:
        if self.batches and seen.storage_bytes > FROM_STORAGE * seen.bytes_read:  # FUSE keeps no account of them
            self._calm, self.why = 0, "what is announced has come when it is read"
            return False
        self._shorter_rate = 0.0
        self._calm += seen.batches
        if not self.batches or self._calm < self._patience:
            return False
        self.batches = self.batches // 2 if self.batches >= 2 * self.least else 0
        self.why = f"next to no read waited in {self._calm} batches" + (": the data is cached" * (not self.batches))
        self._calm, self._shrunk = 0, True
        return True


class Run(Protocol):
    """What `Ahead` asks of a `dispatch.EpochRun`."""

    batches: int
    sent: int
    """Tasks; the next one's batch has this number."""
    announced: int
    """Batches whose samples were announced, or handed out without."""
    announced_bytes: dict[int, int]
    """By batch, of those whose task is not done."""

    def samples(self, batch: int) -> Numbers: ...


class Ahead:
    """One loader's account of what is announced."""

    def __init__(self, lengths_N: npt.NDArray[Any], *, batch_size: int, workers: int, tasks: int,
                 memory_bytes: int) -> None:  # fmt: skip
        """`lengths_N`: bytes of each sample of the split. `workers`: at first. `tasks`: under way at most.
        `memory_bytes`: that this rank may use."""
        self._lengths_N = lengths_N
        batch_bytes = batch_size * float(lengths_N.mean() if len(lengths_N) else 0)
        self.most_bytes = int(min(memory_bytes / SHARE, max(MOST_BYTES, (tasks + workers) * batch_bytes)))
        self.reach = Reach(max(1, workers), int(self.most_bytes / max(1.0, batch_bytes)))
        self.under_way_bytes = 0

    def hints(self, runs: Iterable[Run]) -> list[Numbers]:
        """Samples to announce with the next task: of its own batch where that was not done, and of what comes later,
        in this run and then in the one that is begun ahead."""
        hints: list[Numbers] = []
        left = 1 + self.reach.batches if self.reach.batches else 0
        for run in runs:
            run.announced = max(run.announced, run.sent)
            end = min(run.batches, run.sent + left)
            while run.announced < end:
                samples_N = None if len(hints) == HINT_BATCHES else self._fitting(run)
                if samples_N is None:
                    return hints
                hints.append(samples_N)
            left -= end - run.sent
        return hints

    def _fitting(self, run: Run) -> Numbers | None:
        """Of the run's next batch. None while there is no room; of one that is larger than all of it, what fits."""
        samples_N = run.samples(run.announced)
        samples_N = samples_N[samples_N >= 0] % len(self._lengths_N)
        ends_N = np.cumsum(self._lengths_N[samples_N], dtype=np.int64)
        count = int(np.searchsorted(ends_N, self.most_bytes - self.under_way_bytes, side="right"))
        if count < len(samples_N) and self.under_way_bytes:
            return None
        size_bytes = int(ends_N[count - 1]) if count else 0
        run.announced_bytes[run.announced] = size_bytes
        self.under_way_bytes += size_bytes
        run.announced += 1
        return samples_N[:count]

    def done(self, run: Run, batch: int) -> None:
        self.under_way_bytes -= run.announced_bytes.pop(batch, 0)

    def given_up(self, run: Run) -> None:
        """What has been announced of it stays with the kernel, which drops it when it needs the memory."""
        self.under_way_bytes -= sum(run.announced_bytes.values())
        run.announced_bytes.clear()
        run.announced = run.batches

    def describe(self, rows: Rows) -> dict[str, Any]:
        """Plain JSON, as `Loader.stats` shows it."""
        seen = Seen.by(rows)
        return {
            "way": WAYS[self.reach.way] if self.reach.batches else WAYS[OFF],
            "why": self.reach.why,
            "batches": self.reach.batches,
            "most_bytes": self.most_bytes,
            "announced_bytes": int(rows[:, FIELD["announced_bytes"]].sum()),
            "blocked_fraction": seen.blocked / max(1, seen.looked_at),
            "blocked_s": seen.blocked_ns * LOOK_EVERY / 1e9,
        }
