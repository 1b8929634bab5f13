"""One shard, start to end: read its members, prepare them, write the tar(s), publish, leave a receipt.

Runs on an executor and imports neither Spark nor torch. Everything it publishes depends only on the task and the
order, so a second attempt, a speculative copy or a restart writes the same bytes again. Memory: one image at a time,
plus the shard's index rows.
"""

import hashlib
import os
import re
import resource
import socket
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from feedline.pipeline.errors import FeedlineError
from feedline.pipeline.shards import ShardWriter, shard_name
from feedline.preprocess.reading import Stat, Where, read_all
from feedline.preprocess.receipts import Quarantined, Receipt, Rows, Written, receipt_name
from feedline.preprocess.resize import BadImage, Kernel, Output, fingerprint
from feedline.preprocess.store import WORK, open_store, readable

QUARANTINE = "quarantine"


@dataclass(frozen=True, kw_only=True)
class Order:
    """What all shards of a job have in common."""

    run: str
    """Unique to this run of the job: attempts of older runs cannot publish."""
    plan_hash: str
    fingerprint: str
    address: str
    storage_options: dict[str, Any]
    folders: dict[str, list[str]]
    """By split: where each output goes, relative to the address."""
    outputs: tuple[Output, ...]
    max_pixels: int
    metadata: bool
    stats: dict[str, Stat]


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
    """Position -> file to read instead (a retried quarantined sample)."""

    def where(self) -> list[Where]:
        rows = zip(self.path_N.tolist(), self.offsets_N.tolist(), self.lengths_N.tolist(), strict=True)
        listed = [Where(self.paths[path], offset, length) for path, offset, length in rows]
        for position, path in self.mended.items():
            listed[position] = Where(path, 0, -1)
        return listed


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


def write_shard(order: Order, task: ShardTask) -> Outcome:
    """Publishes the shard and its receipt. Trouble that no retry would mend comes back as `fatal`."""
    started, cpu = time.perf_counter(), time.process_time()
    outcome = Outcome(split=task.split, shard=task.shard)
    try:
        check_encoder(order)
        ShardJob(order, task, outcome).run()
    except FeedlineError as error:
        outcome.fatal = str(error)
    except OSError as error:
        outcome.fatal = str(readable(error, f"writing shard {task.shard} of {task.split} in {order.address}"))
    outcome.total_s = time.perf_counter() - started
    outcome.cpu_s = time.process_time() - cpu
    outcome.peak_rss_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return outcome


def check_encoder(order: Order) -> None:
    """Refuses an executor whose libraries would write other bytes than the plan says."""
    mine = own_fingerprint(order.outputs)
    if mine != order.fingerprint:
        raise FeedlineError(
            f"executor {socket.gethostname()} encodes differently (fingerprint {mine[:12]}, the plan has "
            f"{order.fingerprint[:12]}): give all executors the same Pillow, libjpeg-turbo and simplejpeg"
        )


@lru_cache(maxsize=4)
def own_fingerprint(outputs: tuple[Output, ...]) -> str:
    return fingerprint(outputs)


class ShardJob:
    """The state of one attempt at one shard."""

    def __init__(self, order: Order, task: ShardTask, outcome: Outcome) -> None:
        self.order, self.task, self.outcome = order, task, outcome
        self.store = open_store(order.address, order.storage_options)
        self.kernel = Kernel(order.outputs, order.max_pixels)
        self.quarantined: list[Quarantined] = []
        self.read_s = self.write_s = 0.0

    def run(self) -> None:
        with ExitStack() as attempts_end:
            attempts = [attempts_end.enter_context(self.store.attempt(self.order.run)) for _ in self.order.outputs]
            writers = [ShardWriter(attempt.file, self.task.shard) for attempt in attempts]
            with ExitStack() as writers_end:
                for writer in writers:
                    writers_end.enter_context(writer)
                self._samples(writers)
            self._publish(writers, attempts)

    def _samples(self, writers: Sequence[ShardWriter]) -> None:
        clock = time.perf_counter
        places = self.task.where()
        labels = self.task.labels_N.tolist()
        arriving = read_all(places, self.order.stats, self.order.storage_options)
        for position, (key, label, place) in enumerate(zip(self.task.keys, labels, places, strict=True)):
            before = clock()
            data = next(arriving)
            self.read_s += clock() - before
            self.outcome.bytes_in += len(data)
            try:
                if position in self.task.troubles:
                    raise BadImage(self.task.troubles[position])
                prepared = self.kernel(data)
            except BadImage as bad:
                self._quarantine(position, bad, data)
                continue
            before = clock()
            metadata = {"source": place.path, "offset": place.offset} if self.order.metadata else None
            for writer, member in zip(writers, prepared, strict=True):
                writer.add(key, member.data, member.extension, label=label, width=member.width,
                           height=member.height, metadata=metadata)  # fmt: skip
            self.write_s += clock() - before
        next(arriving, None)  # lets the reader check that the source stayed the same

    def _quarantine(self, position: int, bad: BadImage, data: bytes) -> None:
        key = self.task.keys[position]
        place = self.task.where()[position]
        file = quarantine_name(self.task.split, self.task.shard, position, key)
        self.store.write(f"{QUARANTINE}/{file}", data)
        self.quarantined.append(
            Quarantined(
                split=self.task.split,
                key=key,
                label=int(self.task.labels_N[position]),
                reason=bad.reason,
                detail=re.sub(r"0x[0-9a-f]+", "0x…", bad.detail),
                source=place.path,
                offset=place.offset,
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
