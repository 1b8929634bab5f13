"""One shard, start to end: read its members, prepare them, write the tar(s), publish, leave a receipt.

Runs on an executor and imports neither Spark nor torch. Everything it publishes depends only on the task and the
order, so a second attempt, a speculative copy or a restart writes the same bytes again. Memory: one image at a time,
plus two shards' index rows.
"""

import gc
import re
import resource
import socket
import time
import zlib
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from feedline.pipeline.base.errors import FeedlineError
from feedline.pipeline.base.files import write_error
from feedline.pipeline.base.process import keep_freed_memory
from feedline.pipeline.format.manifest import ShardInfo
from feedline.pipeline.format.shard_tar import ShardWriter, shard_name
from feedline.preprocess.config import PrepareConfig
from feedline.preprocess.fingerprint import Fingerprint, fingerprint
from feedline.preprocess.picture import STEPS, BadImage, Preparer
from feedline.preprocess.plan import ShardTask, is_staged, origins
from feedline.preprocess.quarantine import QUARANTINE, Quarantined, file_name
from feedline.preprocess.receipts import Receipt, Rows, receipt_name
from feedline.preprocess.sources.reading import read_all
from feedline.preprocess.sources.tar_headers import NO_BYTES
from feedline.preprocess.store import WORK, open_store

KEPT_BYTES = 32 << 20
"""Of an executor's freed memory, for its next image. One giant's goes back."""
STAGES = ("read", *STEPS, "write")
"""Of a shard's time."""


@dataclass(frozen=True, kw_only=True)
class Order:
    """What all shards of a job have in common."""

    run: str
    """Unique to this run of the job: attempts of older runs cannot publish."""
    plan_hash: str
    fingerprint: Fingerprint
    config: PrepareConfig
    """Its `out`, an absolute path or an address, holds the quarantined files that are tried again."""
    address: str
    """Where the shards go: `out`, or a folder in it where what is to replace a dataset is made."""
    staging: str = ""
    """Folder of staging tars, gone when the job is done: samples from there are said to be from the source."""


@dataclass(kw_only=True)
class Outcome:
    """What the driver hears of a shard; the rest is in its receipt."""

    host: str = field(default_factory=socket.gethostname)
    samples: int = 0
    quarantined: int = 0
    stage_s: dict[str, float] = field(default_factory=dict[str, float])
    """By STAGES."""
    total_s: float = 0.0
    peak_rss_bytes: int = 0
    fatal: str = ""
    """Why the job cannot go on: nothing that another attempt would mend."""


OnOutcome = Callable[[Outcome], None]
"""Called once for each shard. May raise, which ends the run."""


@cache
def settle() -> None:
    """Once in an executor's process, before its first shard; for the rest of its life.

    Images, tars and their buffers come and go by the hundred kilobytes: without page faults for each. And Spark
    collects garbage after every task: what is imported by now is no garbage and need not be looked through.
    """
    keep_freed_memory(KEPT_BYTES)
    gc.collect()
    gc.freeze()


def write_shards(order: Order, tasks: Iterable[ShardTask], on_outcome: OnOutcome) -> None:
    """Writes the shards and their receipts; each is synced and published while the next one's images are worked on.

    `on_outcome` hears of each, on another thread, when it is published; after one with trouble that no retry would
    mend (`fatal`) no further shard is.
    """
    with ThreadPoolExecutor(1, "feedline-publish") as publisher:

        def publish(job: ShardJob) -> Outcome:
            on_outcome(outcome := job.publish())
            return outcome

        publishing: Future[Outcome] | None = None
        for task in tasks:
            with ExitStack() as if_not_published:
                job = if_not_published.enter_context(closing(ShardJob(order, task)))
                job.make()
                if publishing is not None and publishing.result().fatal:
                    return
                publishing = publisher.submit(publish, job)
                if_not_published.pop_all()
        if publishing is not None:
            publishing.result()


class ShardJob:
    """The state of one attempt at one shard: `make`, then `publish` or `close`, maybe on another thread."""

    def __init__(self, order: Order, task: ShardTask) -> None:
        self.order, self.task, self.outcome = order, task, Outcome()
        self.quarantined: list[Quarantined] = []
        self.bytes_in = 0
        self.read_s = self.write_s = 0.0
        self._attempts_end = ExitStack()

    def make(self) -> None:
        """Reads, prepares and writes the samples; nobody sees them yet."""
        config = self.order.config
        with self._accounted():
            self._check_executor()
            self._sources, self._offsets_N = origins(self.task, config.source, self.order.staging)
            self.store = open_store(self.order.address, dict(config.storage_options))
            self.preparer = Preparer(config.outputs, config.max_pixels)
            attempts = [self.store.attempt(self.order.run) for _ in config.outputs]
            self._attempts = [self._attempts_end.enter_context(attempt) for attempt in attempts]
            self._writers = [ShardWriter(attempt, self.task.shard) for attempt in self._attempts]
            with ExitStack() as writers_end:
                for writer in self._writers:
                    writers_end.enter_context(writer)
                self._write_samples()

    def publish(self) -> Outcome:
        """What became of the shard. Nothing is published when making it failed."""
        with closing(self), self._accounted():
            if not self.outcome.fatal:
                started = time.perf_counter()
                self._publish()
                self.write_s += time.perf_counter() - started
                self.outcome.samples = len(self._writers[0].rows)
                self.outcome.quarantined = len(self.quarantined)
                self.outcome.stage_s = {"read": self.read_s, **self.preparer.seconds, "write": self.write_s}
        return self.outcome

    def close(self) -> None:
        """Removes what was written and not published; again does nothing."""
        self._attempts_end.close()

    def _check_executor(self) -> None:
        """Refuses libraries that would write other bytes than the plan says, and a machine that cannot see what was
        unpacked."""
        order, mine = self.order, fingerprint(self.order.config.outputs)
        if mine != order.fingerprint:
            raise FeedlineError(
                f"executor {socket.gethostname()} encodes differently or reads other formats (fingerprint {mine}; "
                f"the plan has {order.fingerprint}): give all executors the same Pillow, libjpeg-turbo and simplejpeg"
            )
        if not all(Path(path).exists() for path in self.task.paths if is_staged(path, order.staging)):
            raise FeedlineError(
                f"executor {socket.gethostname()} does not see what {order.config.source} was unpacked to "
                f"({order.staging}): give an OUT folder that all executors share, or --master local[*]"
            )

    @contextmanager
    def _accounted(self) -> Generator[None]:
        """Adds the time, and keeps what no retry would mend as the outcome's."""
        outcome, started = self.outcome, time.perf_counter()
        try:
            yield
        except FeedlineError as error:
            outcome.fatal = str(error)
        except OSError as error:
            doing = f"writing shard {self.task.shard} of {self.task.split} in {self.order.address}"
            outcome.fatal = str(write_error(error, doing))
        outcome.total_s += time.perf_counter() - started
        outcome.peak_rss_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def _write_samples(self) -> None:
        clock, task = time.perf_counter, self.task
        labels = task.labels_N.tolist()
        crcs = None if task.crc32_N is None else task.crc32_N.tolist()
        arriving = self._read()
        for position, (key, label) in enumerate(zip(task.keys, labels, strict=True)):
            before = clock()
            data = next(arriving)
            self.read_s += clock() - before
            self.bytes_in += len(data)
            try:
                trouble = task.troubles.get(position)
                if trouble and not (trouble in NO_BYTES and position in task.mended and label >= 0):
                    raise BadImage(trouble)
                if crcs is not None and position not in task.mended and zlib.crc32(data) != crcs[position]:
                    raise BadImage("damaged", "its bytes are not those that the source's index knows (CRC-32)")
                prepared = self.preparer(data)
            except BadImage as bad:
                self._quarantine(position, bad, data)
                continue
            before = clock()
            metadata = self._origin(position) if self.order.config.metadata else None
            for writer, member in zip(self._writers, prepared, strict=True):
                writer.add(key, member.data, member.extension, label=label, width=member.width,
                           height=member.height, metadata=metadata)  # fmt: skip
            self.write_s += clock() - before
        next(arriving, None)  # its own last check

    def _read(self) -> Generator[bytes]:
        """The samples' bytes, in order, from their source or from where they were mended."""
        task, config = self.task, self.order.config
        places = [place for position, place in enumerate(task.where()) if position not in task.mended]
        arriving = read_all(places, task.stats(), config.source_storage_options)
        for position in range(len(task)):
            if position not in task.mended:
                yield next(arriving)
                continue
            file = f"{QUARANTINE}/{task.mended[position]}"
            data = open_store(config.out, dict(config.storage_options)).read(file)
            if data is None:
                raise FeedlineError(f"{config.out}/{file} is gone: put it back to try it again")
            yield data
        next(arriving, None)  # lets the reader check that the source stayed the same

    def _origin(self, position: int) -> dict[str, Any]:
        return {"source": self._sources[position], "offset": int(self._offsets_N[position])}

    def _quarantine(self, position: int, bad: BadImage, data: bytes) -> None:
        task = self.task
        row = Quarantined(
            **self._origin(position),
            split=task.split,
            key=task.keys[position],
            label=int(task.labels_N[position]),
            reason=bad.reason,
            detail=re.sub(r"\b0x[0-9a-f]+", "0x…", bad.detail),
            length=len(data),
            file=file_name(task.split, task.shard, position, task.keys[position]),
            shard=task.shard,
            position=position,
        )
        place = f"{QUARANTINE}/{row.file}"
        if self.order.config.overwrite or self.store.size(place) is None:  # else this plan's own, or mended since
            self.store.write(place, data)
        self.quarantined.append(row)

    def _publish(self) -> None:
        order, task = self.order, self.task
        folders = order.config.folders(task.split)
        shards: list[ShardInfo] = []
        for writer, attempt, folder in zip(self._writers, self._attempts, folders, strict=True):
            name = self.store.publish(attempt, folder, shard_name(task.split, task.shard), writer.sha256)
            shard = ShardInfo(
                name=name,
                samples=len(writer.rows),
                planned_samples=len(task),
                bytes=writer.bytes,
                sha256=writer.sha256,
                fingerprint=order.fingerprint.encoder,
            )
            shards.append(shard)
        receipt = Receipt(
            bytes_in=self.bytes_in,
            formats=order.fingerprint.formats,
            shards=shards,
            rows=[Rows.of(writer.rows) for writer in self._writers],
            quarantined=self.quarantined,
            notes=dict(self.preparer.notes),
            stamp=task.stamp,
        )
        self.store.write(f"{WORK}/{receipt_name(order.plan_hash, task.split, task.shard)}", receipt.to_bytes())
