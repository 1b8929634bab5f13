"""Prepared shards in, batches out: exact order, workers without torch, slots without copies, state that resumes.

    loader = Loader("OUT/train", batch_size=64, image_size=224, train=True, num_workers=2)
    for epoch in range(90):
        loader.set_epoch(epoch)
        for images_NHWC, labels_N in loader: ...

`draw.order` says which samples make up which batch, `workers.dispatch` has them filled, `device` takes them to the
GPU. This file ties them together and keeps the state.
"""

import os
import threading
import warnings
import weakref
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import torch

from feedline.pipeline import device, gpu_decode
from feedline.pipeline.base.errors import SampleError, TransformError, UsageError
from feedline.pipeline.base.errors import WorkerError as WorkerError
from feedline.pipeline.base.process import keep_freed_memory
from feedline.pipeline.base.settings import Policy
from feedline.pipeline.base.text import count_of
from feedline.pipeline.codecs.table import CODECS
from feedline.pipeline.device import Batch as Batch
from feedline.pipeline.draw.order import EpochPlan
from feedline.pipeline.draw.regions import Augment as Augment
from feedline.pipeline.format.remote import Prefetcher
from feedline.pipeline.loader_config import MOST_EPOCH, MOST_PX, instead_of, whole
from feedline.pipeline.loader_config import LoaderConfig as LoaderConfig
from feedline.pipeline.loader_state import Order, Place
from feedline.pipeline.ranks import check_still, default_workers, memory_bytes
from feedline.pipeline.ranks import which_rank as which_rank
from feedline.pipeline.rereading import Rereading
from feedline.pipeline.split import PreparedSplit
from feedline.pipeline.workers import counters, ship
from feedline.pipeline.workers.ahead import Ahead
from feedline.pipeline.workers.dispatch import EpochRun, Waits, Workshop
from feedline.pipeline.workers.fill import FillSpec
from feedline.pipeline.workers.fill_regions import SLOT_PX
from feedline.pipeline.workers.headcount import Headcount
from feedline.pipeline.workers.slots import SlotLayout

REMOTE_WINDOW_SHARDS = 8


class Loader:
    """An iterable of batches over one prepared split.

    Each `iter()` begins an epoch: the one given to `set_epoch`, else the one after the last. After
    `load_state_dict` the first `iter()` continues where the state was taken.

    At an epoch's end workers go on into the one that is expected next, as far as slots are free. Another epoch, state
    or image size costs what they had made of it, and the time of a run of samples.
    """

    def __init__(self, split: str | Path, config: LoaderConfig | None = None, **options: Any) -> None:
        """`options` are the fields of LoaderConfig. Raises UsageError or DatasetError, before any process starts."""
        unknown = sorted(set(options) - {option.name for option in fields(LoaderConfig)})
        if unknown:
            raise UsageError(f"Loader has no option {unknown[0]!r}: {instead_of(unknown[0])}")
        self.config = config = replace(config or LoaderConfig(), **options)
        self.split = PreparedSplit(split, config)
        self.manifest = self.split.manifest
        self.rank, self.world_size = which_rank(config.rank, config.world_size)
        auto = config.num_workers == "auto"
        self._headcount = Headcount(default_workers(), self.world_size) if auto else None
        self._workers = config.num_workers if isinstance(config.num_workers, int) else default_workers()
        self.device = None if config.device is None else torch.device(config.device)
        self._policy: Policy = config.policy or ("drop" if config.train else "pad")
        window = REMOTE_WINDOW_SHARDS if self.split.address else 0
        self._window_shards = window if config.window_shards is None else config.window_shards
        if config.keep_freed_memory and not torch.cuda.is_available():
            keep_freed_memory()
        self._gpu_decodes = config.decode == "gpu" and self._can_cut() and gpu_decode.available(self.device)
        self._image_size = config.image_size
        self._order = Order.of(config, self.split.folder, self.split.identity, self._window_shards)
        self._waits = Waits()
        self._bad: list[dict[str, str]] = []  # of these, as `stats` names them
        self._ahead = Ahead(
            self.split.lengths_N, batch_size=config.batch_size, workers=self.num_workers,
            tasks=max(1, self._workers * config.prefetch_factor), memory_bytes=memory_bytes(),
        )  # fmt: skip
        self._rereading = Rereading([one.bytes for one in self.manifest.shards], memory_bytes(), self._window_shards)
        self._place = Place()
        """Where the delivered batches end, or what was named or resumed since."""
        self._named: Place | None = None
        """What was named or resumed since the last `iter()`."""
        self._finished: int | None = None
        """The epoch that was gone through last."""
        self._run: EpochRun | None = None
        self._workshops: list[Workshop] = []  # none or one; a list, so that the finaliser can share it
        self._rows: counters.Rows | None = None
        self._delivery: device.Deliver | None = None
        self._prefetcher: Prefetcher | None = None
        self._turn, self._turn_of = threading.Lock(), os.getpid()
        weakref.finalize(self, _close, self._workshops)
        plan = self._plan(Place())
        self._length = len(plan)
        if self._policy == "drop" and not len(plan):
            samples = count_of(plan.size // self.world_size, "sample")
            warnings.warn(f"no batch of {config.batch_size} in the {samples} of rank {self.rank}: "
                          "take a smaller batch_size or policy='wrap'", stacklevel=2)  # fmt: skip

    @classmethod
    def like(cls, dataloader: Any, split: str | Path, **options: Any) -> "Loader":
        """A loader with the batch size, workers, shuffling and torchvision transforms of a torch DataLoader.

        A `generator` becomes the seed it was made with (`config.seed`), a DistributedSampler the seed and the place.
        Without shuffling, samples come in the shards' order, all of them on every rank. Without ToTensor images stay
        uint8 NHWC. `options` win over what is taken. Raises UsageError, by name, for what cannot be carried over:
        other samplers, ranks that each shuffle for themselves, `collate_fn`, a dataset's own code, …
        """
        from feedline.pipeline.like import check_same_data, options_like  # torch.utils.data: nobody else needs it

        loader = cls(split, **options_like(dataloader, options))
        stored, whole = loader.split.stored_labels_N, loader.config.drawing.whole > 0
        check_same_data(dataloader.dataset, loader.manifest, stored, whole=whole)
        return loader

    def __reduce__(self) -> NoReturn:
        """Raises UsageError: unpickled where mp.spawn has started a process, it would be rank 0 of 1 in each."""
        what = "a Loader cannot be pickled or copied, as its rank and its workers belong to its process"
        raise UsageError(f"{what}: pass on the split's path and the LoaderConfig, and make a Loader in each process")

    @property
    def num_workers(self) -> int:
        """As many as there are; with "auto" as there are now."""
        return self._workers if self._headcount is None else self._headcount.workers

    def __len__(self) -> int:
        """Batches per whole epoch on this rank; after a resume the first may be shorter (`batches_left`)."""
        return self._length

    @property
    def batches_left(self) -> int:
        """Those that the next `iter()` gives on each rank."""
        return len(self._plan(self._next_start()))

    def set_epoch(self, epoch: int) -> None:
        """The epoch that the next `iter()` begins. Keeps the position if it is the one resumed within."""
        epoch = whole("epoch", epoch, 0, MOST_EPOCH)
        place = self._named or self._place
        if place.epoch != epoch or place.begins == "with the next epoch":
            self._place = self._named = Place(epoch)
        elif self._named is not None:
            self._place = self._named = replace(place, begins="here")

    def set_image_size(self, px: int) -> None:
        """From the next epoch on (progressive resizing)."""
        self._image_size = whole("image_size", px, 1, MOST_PX)

    def state_dict(self) -> dict[str, Any]:
        """Where the delivered batches end, or the epoch named since begins, in plain JSON. O(1); what was only
        prefetched does not count."""
        return self._order.state(self._place)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The next `iter()` continues there, with whatever workers, ranks and batch size this loader has.

        Raises UsageError for the state of another dataset or order (seed, shuffle, window_shards, subset,
        class_balanced), and for what is none.
        """
        self._place = self._named = self._order.place(state)

    def __iter__(self) -> Iterator[Batch]:
        with self._one_thread():
            return self._begin()

    @contextmanager
    def _one_thread(self) -> Generator[None]:
        if self._turn_of != os.getpid():  # in a forked child nobody has it
            self._turn, self._turn_of = threading.Lock(), os.getpid()
        if not self._turn.acquire(blocking=False):
            raise UsageError("two threads take batches of one Loader at once: make a Loader for each")
        try:
            yield
        finally:
            self._turn.release()

    def _begin(self) -> Iterator[Batch]:
        check_still(self.rank, self.world_size, given=(config := self.config).rank is not None)
        if self._workshops and self._workshops[0].process != os.getpid():  # our parent's, who forked us
            self._run = self._prefetcher = None  # whose lock may be held, by a thread that is not here
            _close(self._workshops)
        try:
            if self._run is not None:
                self._run.close()
            self.split.check_same()
            start, upload = self._next_start(), gpu_decode.decode if self._gpu_decodes else device.copy_pixels
            if self._delivery is None:  # made with the first workshop, when CUDA is surely up
                self._delivery = device.deliver_to(self.device, config, upload)
            if self._workshops and (self._workshops[0].torn or self._workshops[0].layout.px < self._image_size):
                _close(self._workshops)  # or the images have outgrown the slots
            if not self._workshops:
                self._workshops.append(self._new_workshop(self._delivery))
            then = self._expected_after(start.epoch)
            self._run = self._workshops[0].begin(self._plan(start), self._image_size, then)
        except BaseException:  # a worker ended between two epochs, or Ctrl-C
            self._run = None
            _close(self._workshops)
            raise
        if self._prefetcher is not None:
            self._prefetcher.close()
        self._prefetcher = self.split.prefetch(self._run.plan, self._window_shards or REMOTE_WINDOW_SHARDS)
        self._place, self._named = start, None
        return _Batches(self, self._run, self._delivery)

    def _next_start(self) -> Place:
        """Where the next `iter()` begins: of which nothing was taken begins again."""
        place = self._named or self._place
        done = place.begins == "here if anything is left" and place.samples and not len(self._plan(place))
        if done or place.begins == "with the next epoch":
            return Place(place.epoch + 1)
        return replace(place, begins="here")

    def _expected_after(self, epoch: int) -> EpochPlan | None:
        """What workers go on into: the next epoch or the same again, whichever way this one followed the last. None
        in the first: a loader that is gone through once makes nothing in vain."""
        if self._finished is None or not self.num_workers or not self.config.persistent_workers:
            return None
        following = epoch + (epoch - self._finished)
        return self._plan(Place(following)) if following in (epoch, epoch + 1) else None

    def stats(self) -> dict[str, Any]:
        """Where the time went since the loader was made, in plain JSON:

        `trainer` {wait_s: blocked in next(), copy_s, copied_batches: more were held than there are slots to spare},
        `workers` [{worker: its number, pid (0: none yet), alive_s, all `COUNTS` and, as `seconds`, `STAGES` of
        `pipeline/workers/counters.py`, and other}]: also of what they have made ahead, of the next epoch too;
        `stages`: the same over all workers as fractions (sum 1), `bad` [{key, reason}], and epoch, samples, batches:
        of what was delivered; num_workers (now), rank, world_size.

        `ahead` {way: "off", "advice" (posix_fadvise) or "reads" (of threads), why, batches: how many beyond those
        under way are announced, most_bytes: announced and not read yet, announced_bytes, blocked_fraction: of the
        reads looked at, those that waited for storage, blocked_s: of all workers' time, so}, `storage_bytes`: what
        workers (or shard windows) had from there, by the kernel's account (0 where a file system keeps none),
        `headcount` (None but with num_workers="auto") {most, settled, why, changes [{batch, workers, why}]}, `notes`:
        for people.
        """
        rows = counters.NONE if self._rows is None else self._rows[:-1]
        started = counters.FIELD["started_ns"]
        workers = [{"worker": n, **counters.describe(row)} for n, row in enumerate(rows) if row[started]]
        trainer = dict(vars(self._waits))
        bad = trainer.pop("bad")[len(self._bad) :]
        self._bad += [{"key": self.split.key(sample), "reason": reason} for sample, reason in bad]
        return {
            "split": str(self.split.folder),
            "epoch": self._place.epoch,
            "samples": trainer.pop("samples"),
            "batches": trainer.pop("batches"),
            "num_workers": self.num_workers,
            "rank": self.rank,
            "world_size": self.world_size,
            "trainer": trainer,
            "workers": workers,
            "stages": counters.fractions(workers),
            "bad": [*self._bad],
            "ahead": self._ahead.describe(rows),
            "storage_bytes": counters.total(self._rows, "storage_bytes") + self.split.whole_shards.storage_bytes,
            "headcount": None if self._headcount is None else self._headcount.describe(),
            "notes": [note for note in (self._rereading.note, self._prefetcher and self._prefetcher.trouble) if note],
        }

    def close(self) -> None:
        """Ends the workers; so do the loader's own end and the interpreter's. Iterating again starts new ones."""
        self._run = self._delivery = None  # which may have sent a batch ahead
        _close(self._workshops)
        if self._prefetcher is not None:
            self._prefetcher.close()

    @property
    def worker_pids(self) -> list[int]:
        return self._workshops[0].crew.pids if self._workshops else []

    def _plan(self, start: Place) -> EpochPlan:
        config = self.config
        return EpochPlan(
            samples=self.manifest.samples,
            seed=config.seed,
            epoch=start.epoch,
            batch_size=config.batch_size,
            world_size=self.world_size,
            rank=self.rank,
            policy=self._policy,
            short_last_batch=config.short_last_batch,
            shuffle=config.train if config.shuffle is None else config.shuffle,
            start=start.samples,
            chosen=self.split.part_N,
            balanced_N=self.split.labels_N if config.class_balanced else None,
            shards_N=self.split.shards_N if self._window_shards else None,
            window_shards=self._window_shards,
        )

    def _new_workshop(self, delivery: device.Deliver) -> Workshop:
        config = self.config
        px = max(self._image_size, SLOT_PX if self._gpu_decodes else 0)
        workshop = Workshop(
            self._fill_spec(), self.split.memory, self.split.layout, SlotLayout(batch_size=config.batch_size, px=px),
            workers=self._workers, prefetch=config.prefetch_factor, fence=partial(device.fence, delivery),
            where=self.split.where, waits=self._waits, ahead=self._ahead, headcount=self._headcount,
            trim=config.short_last_batch, before=self._rows,
        )  # fmt: skip
        self._rows = workshop.rows
        try:
            if device.locks_pages(config.pin_memory, delivery):
                workshop.on_close.append(device.page_lock(workshop.memory, self.device))
        except BaseException:
            workshop.close()
            raise
        return workshop

    def _fill_spec(self) -> FillSpec:
        config, drawing = self.config, self.config.drawing
        stored = drawing.shows_as_stored and not self.split.address
        return FillSpec(
            folder=str(self.split.folder.absolute()),
            shards=self.manifest.shard_names,
            codec=self.manifest.codec,
            seed=config.seed,
            augment=asdict(drawing),
            on_bad=config.on_bad,
            decode="gpu" if self._gpu_decodes else "cpu",
            stored_px=self.split.stored_px if stored else 0,
            address=self.split.address,
            identity="" if self.split.address else self.split.identity,
            storage_options=config.storage_options,
            scattered=self._order.settings["shuffle"] and not self._window_shards,
            checksums=config.checksums,
            transform=ship.pack(config.transform) if config.transform else "",
            batch_transform=ship.pack(config.batch_transform) if config.batch_transform else "",
        )

    def _can_cut(self) -> bool:
        if not CODECS[self.manifest.codec].cuttable:
            raise UsageError(f"decode='gpu' needs JPEG shards; {self.split.folder} has codec {self.manifest.codec}")
        pads = self._policy == "pad" and not self.config.short_last_batch
        if self.config.transform or self.config.batch_transform or pads:
            raise UsageError("decode='gpu' leaves no pixels in the workers for transforms, nor padding: drop or wrap")
        return True

    def _next_batch(self, run: EpochRun, deliver: device.Deliver) -> Batch:
        """One batch to the user, counted; the epoch's end and a dead worker change what the next `iter()` does."""
        if self._run is not run or self._workshops[0].torn:
            if run.taken == len(run.plan):
                raise StopIteration  # as it was told before
            why = "its epoch failed or was interrupted, its loader was closed or began another"
            raise UsageError(f"this iterator has ended: {why}")
        if self._workshops[0].process != os.getpid():
            raise UsageError("this iterator is that of the process that forked this one: begin a new one here")
        try:
            batch = deliver(run)
        except StopIteration:
            run.close()
            if not run.plan.start:
                read = counters.total(self._rows, "bytes_read")
                self._rereading.epoch_ended(run.plan.epoch, read, self.stats()["storage_bytes"])
            self._run, self._finished = None, run.plan.epoch
            self._place = self._named or Place(run.plan.epoch + 1)
            if not self.config.persistent_workers:
                _close(self._workshops)
            raise
        except (SampleError, TransformError) as error:  # this epoch cannot go on
            self._run = None
            run.close()
            told = self.split.told(error.sample, error.reason) if error.sample >= 0 else error.reason
            raise type(error)(told, error.sample) from error
        except Exception:  # a dead worker, say: of what is under way nobody knows
            self._run = None
            with suppress(Exception):  # after a fault of CUDA its fences may fail, too
                _close(self._workshops)
            raise
        run.handed_over(batch[1].numel())
        self._place = Place(run.plan.epoch, run.plan.delivered(run.taken), "with the next epoch")
        if self._prefetcher is not None:
            self._prefetcher.reached(self._place.samples)
        return batch


class _Batches(Iterator[Batch]):
    """The iterator of one epoch. Holds on to no batch it has handed over: slots must come back."""

    def __init__(self, loader: Loader, run: EpochRun, deliver: device.Deliver) -> None:
        self._loader, self._run, self._deliver = loader, run, deliver

    def __next__(self) -> Batch:
        with self._loader._one_thread():
            return self._loader._next_batch(self._run, self._deliver)


def _close(workshops: list[Workshop]) -> None:
    while workshops:
        workshops.pop().close()
