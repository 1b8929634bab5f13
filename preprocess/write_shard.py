"""One shard, start to end: read its members, prepare them, write the tar(s), publish, leave a receipt.

Runs on an executor and imports neither Spark nor torch. Everything it publishes depends only on the task and the
order, so a second attempt, a speculative copy or a restart writes the same bytes again. Memory: one image at a time,
plus two shards' index rows.
"""

import gc
import hashlib
import os
import re
import resource
import socket
import time
import zlib
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from feedline.pipeline.base.errors import FeedlineError
from feedline.pipeline.base.files import write_error
from feedline.pipeline.base.process import keep_freed_memory
from feedline.pipeline.format.shard_tar import ShardWriter, shard_name
from feedline.preprocess.fingerprint import Fingerprint, fingerprint
from feedline.preprocess.picture import BadImage, Kernel, Output
from feedline.preprocess.receipts import Quarantined, Receipt, Rows, Written, receipt_name
from feedline.preprocess.sources.reading import Stat, Where, read_all
from feedline.preprocess.store import WORK, open_store

QUARANTINE = "quarantine"
KEPT_BYTES = 32 << 20
"""Of an executor's freed memory, for its next image. One giant's goes back."""


@dataclass(frozen=True, kw_only=True)
class Order:
    """What all shards of a job have in common."""

    run: str
    """Unique to this run of the job: attempts of older runs cannot publish."""
    plan_hash: str
    fingerprint: Fingerprint
    address: str
    storage_options: dict[str, Any]
    mended_in: str
    """Address of the dataset whose quarantine holds the files that are tried again."""
    folders: dict[str, list[str]]
    """By split: where each output goes, relative to the address."""
    outputs: tuple[Output, ...]
    max_pixels: int
    metadata: bool
    source_storage_options: dict[str, Any] = field(default_factory=dict[str, Any])
    staging: str = ""
    """Folder of staging tars, gone when the job ends: samples from there are said to be from `source`."""
    source: str = ""


@dataclass(frozen=True, kw_only=True)
class ShardTask:
    """The descriptors of one shard, in the order they are written."""

    split: str
    shard: int
    keys: list[str]
    labels_N: npt.NDArray[np.int32]
    paths: list[str]
    path_N: npt.NDArray[np.int32]
    offsets_N: npt.NDArray[np.int64]
    lengths_N: npt.NDArray[np.int64]
    troubles: dict[int, str]
    """Position -> why this sample goes to quarantine whatever its bytes are."""
    mended: dict[int, str] = field(default_factory=dict[int, str])
    """Position -> file in quarantine to read instead (a sample to be tried again)."""
    crc32_N: npt.NDArray[np.uint32] | None = None
    """Of the samples' bytes, where the source knows them; what was mended has others."""
    stats_P2: npt.NDArray[np.int64] | None = None
    """Size and time (ns) of each path when the plan was made, -1 where that is not known; None watches nothing."""

    def where(self) -> list[Where]:
        rows = zip(self.path_N.tolist(), self.offsets_N.tolist(), self.lengths_N.tolist(), strict=True)
        return [Where(self.paths[path], offset, length) for path, offset, length in rows]

    def stats(self) -> dict[str, Stat]:
        rows = [] if self.stats_P2 is None else self.stats_P2.tolist()
        return {path: Stat(*said) for path, said in zip(self.paths, rows, strict=bool(rows)) if said[0] >= 0}

    def origin(self, position: int, order: Order) -> tuple[str, int]:
        """(path, offset) that people and KEY.json are told; offset -1: unpacked from there, the key says which."""
        path = self.paths[int(self.path_N[position])]
        staged = is_staged(path, order.staging)
        return (order.source, -1) if staged else (path, int(self.offsets_N[position]))


def is_staged(path: str, staging: str) -> bool:
    """Whether it lies in the folder of what was unpacked; "" is none."""
    return bool(staging) and path.startswith(f"{staging}/")


@dataclass(kw_only=True)
class Outcome:
    """What the driver hears of a shard; the rest is in its receipt."""

    split: str
    shard: int
    host: str = field(default_factory=lambda: f"{socket.gethostname()}:{os.getpid()}")
    samples: int = 0
    quarantined: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    stage_s: dict[str, float] = field(default_factory=dict[str, float])
    total_s: float = 0.0
    cpu_s: float = 0.0
    peak_rss_bytes: int = 0
    fatal: str = ""
    """Why the job cannot go on: nothing that another attempt would mend."""


@cache
def settle() -> None:
    """Once in an executor's process, before its first shard; for the rest of its life.

    Images, tars and their buffers come and go by the hundred kilobytes: without page faults for each. And Spark
    collects garbage after every task: what is imported by now is no garbage and need not be looked through.
    """
    keep_freed_memory(KEPT_BYTES)
    gc.collect()
    gc.freeze()


def write_shards(order: Order, tasks: Sequence[ShardTask]) -> list[Outcome]:
    """Writes the shards and their receipts; each is synced and published while the next one's images are worked on.

    One outcome a shard, up to the first with trouble that no retry would mend: that one says so (`fatal`).
    """
    outcomes: list[Outcome] = []
    with ExitStack() as end, ThreadPoolExecutor(1, "feedline-publish") as publisher:
        publishing: Future[None] = publisher.submit(lambda: None)
        for task in tasks:
            job = ShardJob(order, task)
            end.callback(job.discard)
            job.make()
            publishing.result()
            if outcomes and outcomes[-1].fatal:
                break
            outcomes.append(job.outcome)
            publishing = publisher.submit(job.publish)
        publishing.result()
    return outcomes


def check_encoder(order: Order) -> None:
    """Refuses an executor whose libraries would write other bytes than the plan says."""
    mine = fingerprint(order.outputs)
    if mine != order.fingerprint:
        raise FeedlineError(
            f"executor {socket.gethostname()} encodes differently or reads other formats (fingerprint {mine}; "
            f"the plan has {order.fingerprint}): give all executors the same Pillow, libjpeg-turbo and simplejpeg"
        )


class ShardJob:
    """The state of one attempt at one shard: `make`, then `publish` or `discard`, maybe on another thread."""

    def __init__(self, order: Order, task: ShardTask) -> None:
        self.order, self.task = order, task
        self.outcome = Outcome(split=task.split, shard=task.shard)
        self.quarantined: list[Quarantined] = []
        self.read_s = self.write_s = 0.0
        self._attempts_end = ExitStack()

    def make(self) -> None:
        """Reads, prepares and writes the samples; nobody sees them yet."""
        with self._accounted():
            check_encoder(self.order)
            self.store = open_store(self.order.address, self.order.storage_options)
            self.kernel = Kernel(self.order.outputs, self.order.max_pixels)
            attempts = [self.store.attempt(self.order.run) for _ in self.order.outputs]
            self._attempts = [self._attempts_end.enter_context(attempt) for attempt in attempts]
            self._writers = [ShardWriter(attempt.file, self.task.shard) for attempt in self._attempts]
            with ExitStack() as writers_end:
                for writer in self._writers:
                    writers_end.enter_context(writer)
                self._samples(self._writers)

    def publish(self) -> None:
        """Nothing when making it failed: then there is nothing to be seen."""
        if not self.outcome.fatal:
            with self._accounted():
                self._publish(self._writers, self._attempts)
        self.discard()

    def discard(self) -> None:
        """Removes what was written and not published; again does nothing."""
        self._attempts_end.close()

    @contextmanager
    def _accounted(self) -> Generator[None]:
        """Adds the time, and keeps what no retry would mend as the outcome's."""
        started, cpu = time.perf_counter(), time.thread_time()
        outcome = self.outcome
        try:
            yield
        except FeedlineError as error:
            outcome.fatal = str(error)
        except OSError as error:
            doing = f"writing shard {self.task.shard} of {self.task.split} in {self.order.address}"
            outcome.fatal = str(write_error(error, doing))
        outcome.total_s += time.perf_counter() - started
        outcome.cpu_s += time.thread_time() - cpu
        outcome.peak_rss_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def _samples(self, writers: Sequence[ShardWriter]) -> None:
        clock = time.perf_counter
        labels = self.task.labels_N.tolist()
        crcs = None if self.task.crc32_N is None else self.task.crc32_N.tolist()
        arriving = self._read()
        for position, (key, label) in enumerate(zip(self.task.keys, labels, strict=True)):
            before = clock()
            data = next(arriving)
            self.read_s += clock() - before
            self.outcome.bytes_in += len(data)
            try:
                if position in self.task.troubles:
                    raise BadImage(self.task.troubles[position])
                if crcs is not None and position not in self.task.mended and zlib.crc32(data) != crcs[position]:
                    raise BadImage("damaged", "its bytes are not those that the source's index knows (CRC-32)")
                prepared = self.kernel(data)
            except BadImage as bad:
                self._quarantine(position, bad, data)
                continue
            before = clock()
            metadata = self._metadata(position) if self.order.metadata else None
            for writer, member in zip(writers, prepared, strict=True):
                writer.add(key, member.data, member.extension, label=label, width=member.width,
                           height=member.height, metadata=metadata)  # fmt: skip
            self.write_s += clock() - before
        next(arriving, None)  # its own last check

    def _read(self) -> Generator[bytes]:
        """The samples' bytes, in order, from their source or from where they were mended."""
        mended = self.task.mended
        places = [place for position, place in enumerate(self.task.where()) if position not in mended]
        arriving = read_all(places, self.task.stats(), self.order.source_storage_options)
        for position in range(len(self.task.keys)):
            yield self._mended(mended[position]) if position in mended else next(arriving)
        next(arriving, None)  # lets the reader check that the source stayed the same

    def _mended(self, file: str) -> bytes:
        place = open_store(self.order.mended_in, self.order.storage_options)
        data = place.read(f"{QUARANTINE}/{file}")
        if data is None:
            raise FeedlineError(f"{place.address}/{QUARANTINE}/{file} is gone: put it back to try it again")
        return data

    def _metadata(self, position: int) -> dict[str, Any]:
        source, offset = self.task.origin(position, self.order)
        return {"source": source, "offset": offset}

    def _quarantine(self, position: int, bad: BadImage, data: bytes) -> None:
        key = self.task.keys[position]
        source, offset = self.task.origin(position, self.order)
        file = quarantine_name(self.task.split, self.task.shard, position, key)
        self.store.write(f"{QUARANTINE}/{file}", data)
        self.quarantined.append(
            Quarantined(
                split=self.task.split,
                key=key,
                label=int(self.task.labels_N[position]),
                reason=bad.reason,
                detail=re.sub(r"\b0x[0-9a-f]+", "0x…", bad.detail),
                source=source,
                offset=offset,
                length=len(data),
                file=file,
                shard=self.task.shard,
                position=position,
            )
        )

    def _publish(self, writers: Sequence[ShardWriter], attempts: Sequence[Any]) -> None:
        before = time.perf_counter()
        name = shard_name(self.task.split, self.task.shard)
        written: list[Written] = []
        for writer, attempt, folder in zip(writers, attempts, self.order.folders[self.task.split], strict=True):
            final = attempt.publish(folder, name, writer.sha256)
            written.append(Written(name=final, bytes=writer.bytes, sha256=writer.sha256, samples=len(writer.rows)))
        receipt = Receipt(
            plan_hash=self.order.plan_hash,
            fingerprint=self.order.fingerprint,
            split=self.task.split,
            shard=self.task.shard,
            planned_samples=len(self.task.keys),
            bytes_in=self.outcome.bytes_in,
            outputs=written,
            rows=[Rows.of(writer.rows) for writer in writers],
            quarantined=self.quarantined,
            notes=dict(self.kernel.notes),
        )
        self.store.write(
            f"{WORK}/{receipt_name(self.order.plan_hash, self.task.split, self.task.shard)}", receipt.to_bytes()
        )
        self.write_s += time.perf_counter() - before
        self._account(writers)

    def _account(self, writers: Sequence[ShardWriter]) -> None:
        self.outcome.samples = len(writers[0].rows)
        self.outcome.quarantined = len(self.quarantined)
        self.outcome.bytes_out = sum(writer.bytes for writer in writers)
        self.outcome.stage_s = {"read": self.read_s, **self.kernel.seconds, "write": self.write_s}


def quarantine_name(split: str, shard: int, position: int, key: str) -> str:
    """A plain, unique, stable file name that still shows which sample it is."""
    tail = re.sub(r"[^A-Za-z0-9_.-]+", "_", key.rpartition("/")[2])[:64]
    digest = hashlib.sha256(key.encode()).hexdigest()[:8]
    return f"{split}-{shard:06d}-{position:05d}-{tail}-{digest}.bin"
