"""Fills a batch slot: read, decode and augment each sample straight to its place. The whole of a worker's work.

The same code runs in worker processes and, with `num_workers=0`, in the trainer. What a sample looks like depends on
(seed, epoch, sample number) only, never on who fills it or what was filled before; numbers are those of
`order.class_balanced`. No torch here.
"""

import resource
import time
import traceback
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from feedline.pipeline.base.errors import DatasetError, SampleError, TransformError, first_line
from feedline.pipeline.codecs.base import Job
from feedline.pipeline.codecs.table import SampleKernel
from feedline.pipeline.draw.order import PADDING
from feedline.pipeline.draw.regions import Augment
from feedline.pipeline.format.local import ANOTHER, LocalFiles
from feedline.pipeline.workers import ship
from feedline.pipeline.workers.ahead import READS
from feedline.pipeline.workers.counters import FIELD, LOOK_EVERY, Clock
from feedline.pipeline.workers.messages import Bad
from feedline.pipeline.workers.read_threads import ReadThreads
from feedline.pipeline.workers.slots import CHANNELS, Images, Numbers

T = TypeVar("T")
_TRANSFORM_STREAM = 1
"""Keeps the user's random numbers apart from those of the crop."""
_SAMPLE, _BYTES = FIELD["sample"], FIELD["bytes_read"]
_READ, _TRANSFORM, _COLLATE = FIELD["read"], FIELD["transform"], FIELD["collate"]
_REPLACEMENTS = 16
"""`on_bad="replace"` tries this many neighbours before it gives up on the shard."""
_RUN_BYTES = 1 << 20
"""So much is read before the call that makes pixels of it: it is still in the processor's cache then."""
_MOST_IN_RUN = 64
_DECODED = 2  # of `checked`: its stored pixels were found behind its header, too
Ready = tuple[int, bytes | DatasetError | None, Job | None]
"""A sample, its bytes (or why there are none; None: padding), and what the compiled kernel is told of it."""


class GivenUp(Exception):
    """The batch is not wanted any more."""


@dataclass(frozen=True, kw_only=True)
class FillSpec:
    """Everything that decides what a slot will hold, in plain JSON; mostly as LoaderConfig has it."""

    folder: str
    shards: list[str]
    codec: str
    seed: int
    augment: dict[str, Any]
    """The fields of `regions.Augment`."""
    on_bad: str
    checksums: bool
    transform: str = ""
    batch_transform: str = ""
    """`ship.pack` of the user's functions."""
    decode: str = "cpu"
    """cpu: `PixelFiller`; gpu: `RegionFiller`, whose slots hold JPEG regions that the device decodes."""
    stored_px: int = 0
    """Images are stored raw in this size and wanted as they are: nothing is parsed. 0: they are not."""
    address: str = ""
    """Where the shards come from when they are not in `folder`."""
    storage_options: dict[str, Any] = field(default_factory=dict[str, Any])
    identity: str = ""
    """The SHA-256 of the split's manifest, where shards in `folder` may become those of another split."""
    scattered: bool = False
    """Samples are read in random order from all over the split."""


class Filler:
    """Reads samples, checks their CRC, and does what `on_bad` says. What lands in the slot is the subclass's `fill`:

    (samples_N, epoch, px, the slot's bytes, labels_N) -> how many samples are there (fewer than asked for where bad
    ones are skipped), how many bytes they take, and what was bad. Raises SampleError with `on_bad="raise"`,
    TransformError for whatever a transform of the user's raises, and GivenUp.
    """

    def __init__(self, spec: FillSpec, columns: dict[str, npt.NDArray[Any]], clock: Clock) -> None:
        """`columns`: label, shard, offset, length, crc32, and checked (a byte per sample: above 0 once its CRC was
        right)."""
        self.spec = spec
        self.clock = clock
        self.wanted: Callable[[], bool] = lambda: True
        """Whether the batch under way still is; asked before each sample that is announced, read or transformed."""
        self.augment = Augment(**spec.augment)
        self._labels_N = columns["label"]
        self._count = len(self._labels_N)
        self._where = tuple(columns[name].data for name in ("shard", "offset", "length", "crc32"))
        self._checked = columns["checked"].data
        self._reads = 0
        self._threads = ReadThreads()
        self._files = LocalFiles(Path(spec.folder), spec.shards, scattered=spec.scattered, identity=spec.identity)
        if spec.address:
            from feedline.pipeline.format.remote import RemoteFiles

            self._files = RemoteFiles(Path(spec.folder), spec.shards, spec.address, spec.storage_options)

    def announce(self, samples_N: Numbers, way: int) -> None:
        """Tells the storage what will be read soon, until the batch is given up."""
        shards, offsets, lengths, _ = self._where
        announced_bytes, switches, started_ns = 0, _switches(), time.perf_counter_ns()
        for sample in samples_N.tolist():
            if not self.wanted():
                break
            shard, offset, length = shards[sample], offsets[sample], lengths[sample]
            if way == READS:
                with suppress(OSError, DatasetError):  # it is said when it is needed
                    held = self._files.opened(shard)
                    self._threads.read(held.number, offset, length)
            else:
                self._files.announce(shard, offset, length)
            announced_bytes += length
        row, count = self.clock.row, len(samples_N)
        row[FIELD["announced_bytes"]] += announced_bytes
        if _switches() - switches > count // 2:  # slow to be taken in: as if they had been read, so many looked at
            looks = -(-count // LOOK_EVERY)
            row[FIELD["looked_at"]] += looks
            row[FIELD["blocked"]] += looks
            row[FIELD["blocked_ns"]] += (time.perf_counter_ns() - started_ns) * looks // count
        self.clock.mark(_READ)

    def _looked_at(self, read: Callable[..., T], *where: Any) -> T:
        """Notes of a read whether it waited, by the kernel's account of when the thread gave up its core."""
        switches, started_ns = _switches(), time.perf_counter_ns()
        data = read(*where)
        took_ns, row = time.perf_counter_ns() - started_ns, self.clock.row
        row[FIELD["looked_at"]] += 1
        if _switches() != switches:
            row[FIELD["blocked"]] += 1
            row[FIELD["blocked_ns"]] += took_ns
        return data

    def one_by_one(self, samples_N: Numbers, labels_N: Numbers, put: Callable[[int, int], None], bad: Bad) -> int:
        """Has `put(sample, position)` fill one place after the other; returns how many are filled. A DatasetError of
        `put` is what makes a sample a bad one."""
        position = 0
        for sample in samples_N.tolist():
            if not self.wanted():
                raise GivenUp
            used = self._attempt(sample, position, put, bad)
            if used is not None:
                labels_N[position] = PADDING if used == PADDING else self._labels_N[used % self._count]
                position += 1
        self.clock.mark(_COLLATE)
        return position

    def _attempt(self, sample: int, position: int, put: Callable[[int, int], None], bad: Bad) -> int | None:
        """Uses the sample, or what `on_bad` puts in its place; the number of what was used, None for nothing."""
        candidate = sample
        for _ in range(_REPLACEMENTS):
            try:
                put(candidate, position)
                return candidate
            except DatasetError as error:
                reason = first_line(error)
                if self.spec.on_bad == "raise" or ANOTHER in reason:
                    raise SampleError(reason, candidate % self._count) from error
                bad.append((candidate % self._count, reason))
            self.clock.row[FIELD["bad_samples"]] += 1
            if self.spec.on_bad == "skip":
                return None
            candidate = (candidate + 1) % self._count
            while self._labels_N[candidate] < 0:  # not of the part in use
                candidate = (candidate + 1) % self._count
        nor = f"nor can any of the {_REPLACEMENTS - 1} after it be used in its place"
        raise SampleError(nor, sample % self._count)

    def read(self, sample: int) -> bytes:
        """A sample's checked bytes. Raises DatasetError."""
        self.clock.row[_SAMPLE] = sample = sample % self._count
        shards, offsets, lengths, crcs = self._where
        self._reads += 1
        where, read = (shards[sample], offsets[sample], lengths[sample]), self._files.read
        data = read(*where) if self._reads % LOOK_EVERY else self._looked_at(read, *where)
        if not self._checked[sample] or self._files.from_afar:
            if self.spec.checksums and zlib.crc32(data) != crcs[sample]:
                data = self._files.read_afresh(*where)
                if zlib.crc32(data) != crcs[sample]:
                    raise DatasetError("its bytes are not those that were written (wrong CRC)")
            self._checked[sample] = 1
        self.clock.row[_BYTES] += len(data)
        self.clock.mark(_READ)
        return data


class PixelFiller(Filler):
    """The slot holds uint8 NHWC."""

    def __init__(self, spec: FillSpec, columns: dict[str, npt.NDArray[Any]], clock: Clock) -> None:
        super().__init__(spec, columns, clock)
        self._kernel = SampleKernel(spec.codec, self.augment, spec.seed)
        self._transform = ship.unpack(spec.transform) if spec.transform else None
        self._wants_rng = self._transform is not None and ship.takes_rng(self._transform)
        self._batch_transform = ship.unpack(spec.batch_transform) if spec.batch_transform else None

    def fill(self, samples_N: Numbers, epoch: int, px: int, images: Images,
             labels_N: Numbers) -> tuple[int, int, Bad]:  # fmt: skip
        size_bytes = px * px * CHANNELS
        images_NHWC = images[: len(samples_N) * size_bytes].reshape(-1, px, px, CHANNELS)
        bad: Bad = []
        if px == self.spec.stored_px:

            def put(sample: int, position: int) -> None:
                self._decode(sample, epoch, images_NHWC[position])

            filled = self.one_by_one(samples_N, labels_N, put, bad)
        else:
            filled = self._in_runs(samples_N.tolist(), epoch, images_NHWC, labels_N, bad)
        if self._batch_transform is not None:
            self._change_batch(self._batch_transform, images_NHWC[:filled], labels_N[:filled])
        return filled, filled * size_bytes, bad

    def _in_runs(self, samples: list[int], epoch: int, images_NHWC: Images, labels_N: Numbers, bad: Bad) -> int:
        """As `one_by_one`, but each call of the compiled kernel fills as many places as it can."""

        def put(sample: int, position: int, first: Ready) -> None:
            self._decode(sample, epoch, images_NHWC[position], first[1] if sample == first[0] else None)

        shown: list[int] = []
        begun = 0
        while begun < len(samples):
            run = self._read_run(samples[begun : begun + _MOST_IN_RUN], epoch, images_NHWC.shape[1])
            begun += len(run)
            while run:
                together = self._together(run, epoch, images_NHWC[len(shown) :])
                shown += [sample for sample, _, _ in run[:together]]
                for first in run[together : together + 1]:
                    used = self._attempt(first[0], len(shown), partial(put, first=first), bad)
                    shown += [] if used is None else [used]
                run = run[together + 1 :]
        shown_N = np.array(shown, np.int64)
        labels_N[: len(shown)] = np.where(shown_N == PADDING, PADDING, self._labels_N[shown_N % self._count])
        self.clock.mark(_COLLATE)
        return len(shown)

    def _read_run(self, samples: list[int], epoch: int, px: int) -> list[Ready]:
        """The first of the samples, up to _RUN_BYTES of them, and to one without a job."""
        run: list[Ready] = []
        size_bytes = 0
        for sample in samples:
            if not self.wanted():
                raise GivenUp
            data: bytes | DatasetError | None = None
            job: Job | None = None
            if sample != PADDING:
                try:
                    data = self.read(sample)
                    job = self._kernel.job(data, px, sample, epoch)
                    size_bytes += len(data)
                except DatasetError as error:  # told when its turn comes
                    data = error
            run.append((sample, data, job))
            self.clock.decoded()
            if job is None or size_bytes >= _RUN_BYTES:
                break
        return run

    def _together(self, run: list[Ready], epoch: int, out_NHWC: Images) -> int:
        """Fills the first places from the first samples in one call; how many, before one that is done alone."""
        jobs = [job for _, _, job in run if job is not None]  # only the last has none
        filled = self._kernel.together(jobs, out_NHWC, self.clock)
        if self._transform is not None:
            for (sample, _, _), out_HWC in zip(run[:filled], out_NHWC, strict=False):
                if not self.wanted():
                    raise GivenUp
                self._change(self._transform, sample, epoch, out_HWC)
        return filled

    def _decode(self, sample: int, epoch: int, out_HWC: Images, read: bytes | DatasetError | None = None) -> None:
        """`read`: the sample's bytes, if they were, and found to be nothing that is filled together."""
        if sample == PADDING:
            out_HWC[:] = 0
            return
        if isinstance(read, DatasetError):
            raise read
        stored = len(out_HWC) == self.spec.stored_px
        number = sample % self._count
        if read is None and stored and self._checked[number] == _DECODED:
            self._copy(number, out_HWC)
        else:
            data = self.read(sample) if read is None else read
            fill = self._kernel if read is None else self._kernel.alone
            try:
                fill(data, out_HWC, sample, epoch, self.clock)
            except (ValueError, RuntimeError, OSError) as error:
                raise DatasetError(f"it cannot be decoded: {first_line(error)}") from error
            if stored:
                self._checked[number] = _DECODED
        if self._transform is not None:
            self._change(self._transform, sample, epoch, out_HWC)

    def _copy(self, sample: int, out_HWC: Images) -> None:
        """The pixels are the end of a raw member, whatever its header's length, once these were seen to be right."""
        self.clock.row[_SAMPLE] = sample
        shards, offsets, lengths, _ = self._where
        self._reads += 1
        where, read = (shards[sample], offsets[sample] + lengths[sample], out_HWC), self._files.read_into
        read(*where) if self._reads % LOOK_EVERY else self._looked_at(read, *where)
        self.clock.row[_BYTES] += out_HWC.nbytes
        self.clock.mark(_READ)

    def _change(self, transform: Callable[..., Any], sample: int, epoch: int, out_HWC: Images) -> None:
        """The user's function on one image, with a generator keyed by (seed, epoch, sample) if it wants one."""
        self.clock.row[_SAMPLE] = number = sample % self._count
        try:
            if self._wants_rng:
                rng = np.random.default_rng((self.spec.seed, epoch, sample, _TRANSFORM_STREAM))
                result = transform(out_HWC, rng=rng)
            else:
                result = transform(out_HWC)
        except Exception as error:
            raise TransformError(f"the transform raised {where_raised(error)}", number) from error
        _put(result, out_HWC, "the transform", number)
        self.clock.mark(_TRANSFORM)

    def _change_batch(self, transform: Callable[..., Any], images_NHWC: Images, labels_N: Numbers) -> None:
        try:
            result = transform(images_NHWC, labels_N)
        except Exception as error:
            raise TransformError(f"the batch transform raised {where_raised(error)}") from error
        if result is not None:
            if not isinstance(result, tuple) or len(result) != 2:
                kind = type(result).__name__
                raise TransformError(f"the batch transform returned {kind}, not (images, labels) or None")
            _put(result[0], images_NHWC, "the batch transform")
            _put(result[1], labels_N, "the batch transform")
        self.clock.mark(_TRANSFORM)


def _switches() -> int:
    """Times that this thread gave up its core, to wait for something."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


def _put(result: Any, out: npt.NDArray[Any], who: str, sample: int = -1) -> None:
    """Raises TransformError for what NumPy would cast or spread in silence: floats in 0..1 became a black image."""
    array = np.asarray(result)
    fits = array.dtype == out.dtype if out.dtype == np.uint8 else array.dtype.kind in "iu"
    if not fits or array.shape != out.shape:
        what = f"{array.dtype} of shape {array.shape}, not {out.dtype} of shape {out.shape}"
        raise TransformError(f"{who} returned {what}: normalise on the device or in the training step", sample)
    if result is not out:
        out[:] = array


def where_raised(error: BaseException) -> str:
    """Of an error that is not ours, one line with its kind, its text and the place."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {first_line(error)} ({last.filename}:{last.lineno})"
