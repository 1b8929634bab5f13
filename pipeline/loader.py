"""Prepared shards in, batches out: exact order, workers without torch, slots without copies, state that resumes.

    loader = Loader("OUT/train", batch_size=64, image_size=224, train=True, num_workers=2)
    for epoch in range(90):
        loader.set_epoch(epoch)
        for images_NHWC, labels_N in loader: ...

`order` says which samples make up which batch, `engine` has them filled by workers, `device` takes them to the
GPU. This file ties them together and keeps the state.
"""

import os
import weakref
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from feedline.pipeline import counters, courier, gpujpeg
from feedline.pipeline.augment import Augment
from feedline.pipeline.cache import CacheSpec, Prefetcher, Shard, default_folder
from feedline.pipeline.crew import usable_cores
from feedline.pipeline.device import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    Batch,
    Delivery,
    OnCuda,
    OnDevice,
    cuda_in_use,
    make_fence,
    on_device,
    page_lock,
    show_on_host,
)
from feedline.pipeline.engine import Engine, Run, Waits
from feedline.pipeline.errors import DatasetError, FeedlineError, SampleError, TransformError, UsageError, WorkerError
from feedline.pipeline.fill import FillSpec
from feedline.pipeline.memory import Columns, SharedMemory
from feedline.pipeline.order import EpochPlan, Policy, class_balanced, subset
from feedline.pipeline.pack import SLOT_PX
from feedline.pipeline.place import place
from feedline.pipeline.shards import Index, Manifest, manifest_hash, read_index, read_manifest
from feedline.pipeline.slots import SlotLayout
from feedline.pipeline.storage import fetch_metadata, is_remote, open_cache

MOST_WORKERS = 16
STATE_VERSION = 1

live_loaders: "weakref.WeakSet[Loader]" = weakref.WeakSet()
"""Every Loader that exists. A profiler finds it through `sys.modules["feedline.pipeline.loader"]` without importing
anything, and asks each for `stats()`, whose keys are documented there."""


@dataclass(frozen=True, kw_only=True)
class LoaderConfig:
    """What `Loader(split, ...)` takes; names mean what they mean in torch's DataLoader."""

    batch_size: int = 64
    """Per rank."""
    image_size: int = 224
    """Side of the square output, px; `set_image_size` changes it from the next epoch on."""
    train: bool = True
    """Random resized crop and flip, shuffled; else resize, centre crop, in index order."""
    num_workers: int | None = None
    """0: in the trainer itself. None: one per usable core (affinity, cgroup quota), at most MOST_WORKERS."""
    prefetch_factor: int = 2
    """Batches under way per worker."""
    persistent_workers: bool = True
    """Keep the workers between epochs."""
    pin_memory: bool | None = None
    """Page-lock the slots. None: where `device` is a CUDA device or CUDA is in use already."""
    seed: int = 0
    device: str | torch.device | None = None
    """None: uint8 NHWC on the CPU. Else normalised, channels_last NCHW in `dtype`, there."""
    dtype: torch.dtype = torch.float32
    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD
    shuffle: bool | None = None
    """None: as `train` says."""
    policy: Policy | None = None
    """What becomes of an uneven end. None: drop in training, pad (label −1) in evaluation."""
    short_last_batch: bool = False
    """With `pad`: the padding is cut off again, as a DataLoader without drop_last has it; it may be empty."""
    rank: int | None = None
    world_size: int | None = None
    """None: from the process group, else from RANK and WORLD_SIZE, else 0 of 1."""
    subset: int | None = None
    """Only this many of the samples, the same in every epoch; chosen by the seed."""
    class_balanced: bool = False
    """Every class as often as the largest: small ones repeat."""
    window_shards: int | None = None
    """0: full random order. n: shards in random order, mixed within n of them. None: 0 on disk, else 8."""
    storage_options: dict[str, Any] = field(default_factory=dict[str, Any])
    """For remote splits: what fsspec takes (plain JSON)."""
    cache_dir: str | Path | None = None
    """Where remote shards are kept; shared by everyone on the host. None: $FEEDLINE_CACHE or ~/.cache/feedline."""
    cache_bytes: int = 64 << 30
    """The cache's size at most; 0: none, every sample is a range request."""
    on_bad: Literal["raise", "skip", "replace"] = "raise"
    """A sample that cannot be read, is not what was written, or cannot be decoded."""
    checksums: bool = True
    """Check each sample's CRC the first time it is read."""
    decode: Literal["cpu", "gpu"] = "cpu"
    """gpu: workers only cut the JPEG regions out, nvJPEG decodes them on `device`; falls back with a warning."""
    augment: Augment | None = None
    """None: what `train` says, with the usual parameters."""
    transform: Callable[..., Any] | None = None
    """The user's own, on each image in the worker: (image_HWC uint8[, rng]) -> image_HWC uint8 of the same size."""
    batch_transform: Callable[..., Any] | None = None
    """On each batch in the worker: (images_NHWC, labels_N) -> None (written in place) or a new pair."""

    def __post_init__(self) -> None:
        for name in ("batch_size", "image_size", "prefetch_factor"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise UsageError(f"{name} must be a whole number of at least 1, not {value!r}")
        if self.num_workers is not None and self.num_workers < 0:
            raise UsageError(f"num_workers must be 0 or more, not {self.num_workers}")
        if self.decode not in ("cpu", "gpu"):
            raise UsageError(f"decode must be cpu or gpu, not {self.decode!r}")
        if self.policy not in (None, "drop", "pad", "wrap"):
            raise UsageError(f"policy must be drop, pad or wrap, not {self.policy!r}")
        if self.on_bad not in ("raise", "skip", "replace"):
            raise UsageError(f"on_bad must be raise, skip or replace, not {self.on_bad!r}")


class Loader:
    """An iterable of batches over one prepared split.

    Each `iter()` begins an epoch: the one given to `set_epoch`, else the one after the last. After
    `load_state_dict` the first `iter()` continues where the state was taken.
    """

    def __init__(self, split: str | Path, config: LoaderConfig | None = None, **options: Any) -> None:
        """`options` are the fields of LoaderConfig. Raises UsageError or DatasetError, before any process starts."""
        unknown = sorted(set(options) - {one.name for one in fields(LoaderConfig)})
        if unknown:
            raise UsageError(f"Loader has no option {unknown[0]!r}; see LoaderConfig")
        self.config = config = replace(config or LoaderConfig(), **options)
        self._address = str(split) if is_remote(str(split)) else ""
        self._cache_spec = CacheSpec(folder=Path(config.cache_dir or default_folder()), most_bytes=config.cache_bytes)
        self.folder = Path(str(split).removeprefix("file://"))
        if self._address:
            self.folder = fetch_metadata(self._address, config.storage_options, self._cache_spec)
        self._window_shards = (8 if self._address else 0) if config.window_shards is None else config.window_shards
        self.manifest: Manifest = read_manifest(self.folder)
        self.rank, self.world_size = place(config.rank, config.world_size)
        self.num_workers = default_workers() if config.num_workers is None else config.num_workers
        self.device = None if config.device is None else torch.device(config.device)
        self._manifest_hash = manifest_hash(self.folder)
        self._names = _SampleNames(self.folder, self.manifest)
        index = read_index(self.folder, self.manifest)
        self._columns, self._columns_layout = _share_index(index)
        self._stored_px = _stored_px(index) if self.manifest.codec == "raw" else 0
        shared = Columns.unpack(self._columns.view, self._columns_layout)
        self._labels_N, self._shards_N = shared["label"], shared["shard"]
        self._packed = config.decode == "gpu" and self._can_pack() and gpujpeg.available(self.device)
        self._image_size = config.image_size
        self._waits = Waits()
        self._epoch = self._delivered = 0
        self._resumed = self._begun = self._named = False
        self._run: Run | None = None
        self._engines: list[Engine] = []  # none or one; a list, so that the finaliser can share it
        self._retired: list[dict[str, Any]] = []
        self._on_device: OnDevice | None = None
        self._prefetcher: Prefetcher | None = None
        weakref.finalize(self, _close, self._engines)
        live_loaders.add(self)

    @classmethod
    def like(cls, dataloader: Any, split: str | Path, **options: Any) -> "Loader":
        """A loader with the batch size, workers, order and torchvision transforms of a torch DataLoader.

        `options` win over what is taken from it. Raises UsageError for what cannot be carried over.
        """
        from feedline.pipeline.like import options_like  # it needs torch.utils.data; nobody else here does

        return cls(split, **(options_like(dataloader, read_manifest(Path(split)).classes) | options))

    def __len__(self) -> int:
        """Batches per whole epoch on this rank; after a resume the rest of the first epoch is shorter."""
        return len(self._plan(self._epoch, 0))

    def set_epoch(self, epoch: int) -> None:
        """The epoch that the next `iter()` begins. Keeps the position if it is the one resumed within."""
        if epoch != self._epoch:
            self._delivered, self._resumed = 0, False
        self._epoch, self._begun, self._named = epoch, False, True

    def set_image_size(self, px: int) -> None:
        """From the next epoch on (progressive resizing)."""
        if px < 1:
            raise UsageError(f"image_size must be at least 1, not {px}")
        self._image_size = px

    def state_dict(self) -> dict[str, Any]:
        """Where the delivered batches end, in plain JSON. O(1); what was only prefetched does not count."""
        return {
            "version": STATE_VERSION,
            "seed": self.config.seed,
            "epoch": self._epoch,
            "samples": self._delivered,
            "manifest": self._manifest_hash,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The next `iter()` continues there, with whatever workers, ranks and batch size this loader has.

        Raises UsageError for the state of another dataset, seed or version.
        """
        if state.get("version") != STATE_VERSION:
            raise UsageError(f"this is not a loader's state of version {STATE_VERSION}: {state!r:.80}")
        if state["manifest"] != self._manifest_hash:
            raise UsageError(f"the state is of another dataset than {self.folder}: it was prepared anew since")
        if state["seed"] != self.config.seed:
            raise UsageError(f"the state was made with seed {state['seed']}, this loader has {self.config.seed}")
        self._epoch, self._delivered = state["epoch"], state["samples"]
        self._resumed, self._begun, self._named = True, False, False

    def __iter__(self) -> Iterator[Batch]:
        if self._run is not None:
            self._run.close()
        self._choose_epoch()
        delivery = self._ready_device()
        engine = self._ready_engine()
        plan = self._plan(self._epoch, self._delivered)
        self._start_prefetching(plan)
        self._run = Run(engine, plan, self._epoch, self._image_size, self._waits, trim=self.config.short_last_batch)
        return _Batches(self, self._run, delivery.begin() if delivery else show_on_host)

    def stats(self) -> dict[str, Any]:
        """Where the time went since the loader was made, in plain JSON:

        `trainer` {wait_s: blocked in next(), slot_wait_s: no slot was free for a worker, copy_s, copied_batches},
        `workers` [{pid, samples, batches, bytes_read, bad_samples, alive_s, seconds {read, decode, transform,
        collate, send, idle, other}}], `stages`: the same over all workers as fractions (sum 1), `bad` [{key,
        reason}], and epoch, samples and batches delivered, num_workers, rank, world_size.
        """
        workers = _merge(self._retired, self._engines[0].worker_stats() if self._engines else [])
        waits = self._waits
        return {
            "split": str(self.folder),
            "epoch": self._epoch,
            "samples": waits.samples,
            "batches": waits.batches,
            "num_workers": self.num_workers,
            "rank": self.rank,
            "world_size": self.world_size,
            "trainer": {
                "wait_s": waits.trainer_wait_s,
                "slot_wait_s": waits.slot_wait_s,
                "copy_s": waits.copy_s,
                "copied_batches": waits.copied_batches,
            },
            "workers": workers,
            "stages": counters.fractions(workers),
            "bad": [{"key": self._names.key(sample), "reason": reason} for sample, reason in waits.bad],
        }

    def close(self) -> None:
        """Ends the workers; so do the loader's own end and the interpreter's. Iterating again starts new ones."""
        self._run = None
        self._retire_engine()
        if self._prefetcher is not None:
            self._prefetcher.close()

    def _choose_epoch(self) -> None:
        """Which epoch this iteration is of, and where in it it begins."""
        if not self._resumed:
            # one that was left in the middle is over, one of which nothing was taken is not
            self._epoch += self._begun and self._delivered > 0
            self._delivered = 0
        elif not self._named and self._delivered and not len(self._plan(self._epoch, self._delivered)):
            self._epoch, self._delivered = self._epoch + 1, 0  # the state was taken behind an epoch's last batch
        self._resumed, self._begun = False, True

    @property
    def worker_pids(self) -> list[int]:
        return self._engines[0].pids if self._engines else []

    def _plan(self, epoch: int, delivered: int) -> EpochPlan:
        config = self.config
        return EpochPlan(
            samples=self.manifest.samples,
            seed=config.seed,
            epoch=epoch,
            batch_size=config.batch_size,
            world_size=self.world_size,
            rank=self.rank,
            policy=config.policy or ("drop" if config.train else "pad"),
            shuffle=config.train if config.shuffle is None else config.shuffle,
            start=delivered,
            chosen=self._chosen(epoch),
            shards_N=self._shards_N if self._window_shards else None,
            window_shards=self._window_shards,
        )

    def _chosen(self, epoch: int) -> npt.NDArray[np.int64] | None:
        config = self.config
        if config.class_balanced:
            return class_balanced(self._labels_N, config.seed, epoch)
        return subset(self.manifest.samples, config.subset, config.seed) if config.subset is not None else None

    def _ready_engine(self) -> Engine:
        """The workers that are there, or new ones if there are none or the images have outgrown the slots."""
        if self._engines and self._engines[0].layout.px < self._image_size:
            self._retire_engine()
        if not self._engines:
            self._engines.append(self._new_engine())
        return self._engines[0]

    def _retire_engine(self) -> None:
        for engine in self._engines:
            self._retired = _merge(self._retired, engine.worker_stats())
        _close(self._engines)

    def _new_engine(self) -> Engine:
        config = self.config
        on_gpu = self._on_device if isinstance(self._on_device, OnCuda) else None
        engine = Engine(
            self._fill_spec(),
            self._columns,
            self._columns_layout,
            SlotLayout(batch_size=config.batch_size, px=max(self._image_size, SLOT_PX if self._packed else 0)),
            workers=self.num_workers,
            depth=max(1, self.num_workers * config.prefetch_factor),
            fence=lambda: make_fence(on_gpu),
            where=self._names.where,
        )
        pinned = config.pin_memory
        if on_gpu or pinned or (pinned is None and cuda_in_use()):
            engine.on_close(page_lock(engine.memory))
        return engine

    def _fill_spec(self) -> FillSpec:
        config = self.config
        return FillSpec(
            folder=str(self.folder.absolute()),
            shards=[shard.name for shard in self.manifest.shards],
            codec=self.manifest.codec,
            seed=config.seed,
            augment=asdict(config.augment or Augment(train=config.train)),
            on_bad=config.on_bad,
            packed=self._packed,
            gather_px=self._stored_px if self._wants_stored() else 0,
            address=self._address,
            storage_options=config.storage_options,
            checksums=config.checksums,
            transform=courier.pack(config.transform) if config.transform else "",
            batch_transform=courier.pack(config.batch_transform) if config.batch_transform else "",
        )

    def _can_pack(self) -> bool:
        if self.manifest.codec not in ("jpeg", "keep"):
            raise UsageError(f"decode='gpu' needs JPEG shards; {self.folder} has codec {self.manifest.codec}")
        if self.config.transform or self.config.batch_transform or self.config.policy == "pad":
            raise UsageError("decode='gpu' leaves no pixels in the workers for transforms, nor padding: drop or wrap")
        return True

    def _wants_stored(self) -> bool:
        """Raw images are wanted exactly as they are stored, so that batches can be copied whole."""
        config = self.config
        augment = config.augment or Augment(train=config.train)
        still = not augment.train and augment.crop_fraction == 1
        return still and config.transform is None and not self._address

    def _ready_device(self) -> OnDevice | None:
        """What turns host batches into the device's; made with the first engine, when CUDA is surely up."""
        if self.device is not None and self._on_device is None:
            config = self.config
            self._on_device = on_device(self.device, config.dtype, config.mean, config.std)
        return self._on_device

    def _start_prefetching(self, plan: EpochPlan) -> None:
        """Remote shards, in the order in which the rest of the epoch reads them first."""
        if self._prefetcher is not None:
            self._prefetcher.close()
        self._prefetcher = None
        if not (self._address and self.config.cache_bytes):
            return
        cache = open_cache(self._address, self.config.storage_options, self.folder, self._cache_spec)
        order, needs = np.unique(self._shards_N[plan.order_N[plan.start :]], return_index=True)
        by_need = np.argsort(needs, kind="stable")
        infos = [self.manifest.shards[int(order[shard])] for shard in by_need]
        shards = [Shard(info.name, info.bytes, info.sha256) for info in infos]
        self._prefetcher = Prefetcher(cache, shards, (needs[by_need] + plan.start).tolist(), self._window_shards or 8)
        self._prefetcher.reached(plan.start)

    def _hand_over(self, run: Run, deliver: Delivery) -> Batch:
        """One batch to the user, counted; the epoch's end and a dead worker change what the next `iter()` does."""
        if self._run is not run:
            raise UsageError("this iterator has ended: the loader has begun another epoch since")
        try:
            number, images, labels_N = deliver(run)
        except StopIteration:
            self._end_epoch()
            raise
        except WorkerError as error:
            self._retire_engine()
            raise WorkerError(str(error)) from None
        except SampleError as error:
            raise DatasetError(f"{self._names.where(error.sample)}: {error.reason}") from error
        except TransformError as error:
            where = f"{self._names.where(error.sample)}: " if error.sample >= 0 else ""
            raise FeedlineError(f"{where}{error.reason}") from error
        self._delivered = run.plan.delivered(number + 1)
        if self._prefetcher is not None:
            self._prefetcher.reached(self._delivered)
        return images, labels_N

    def _end_epoch(self) -> None:
        self._run = None
        self._epoch, self._delivered, self._begun = self._epoch + 1, 0, False
        if not self.config.persistent_workers:
            self._retire_engine()


class _Batches:
    """The iterator of one epoch. Holds on to no batch it has handed over: slots must come back."""

    def __init__(self, loader: Loader, run: Run, deliver: Delivery) -> None:
        self._loader, self._run, self._deliver = loader, run, deliver

    def __iter__(self) -> "_Batches":
        return self

    def __next__(self) -> Batch:
        return self._loader._hand_over(self._run, self._deliver)


class _SampleNames:
    """The key and shard of a sample, for messages; reads the key column only when there is something to say."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self._folder, self._manifest = folder, manifest
        self._index: Index | None = None

    def _read(self) -> Index:
        self._index = self._index or read_index(self._folder)
        return self._index

    def key(self, sample: int) -> str:
        return self._read().key(sample)

    def where(self, sample: int) -> str:
        shard = self._manifest.shards[int(self._read().shards_N[sample])].name
        return f"{self._folder / shard}: sample {self.key(sample)!r}"


def default_workers() -> int:
    """One per core this rank may use: affinity and cgroup quota, shared with the other ranks of the host."""
    ranks_here = max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    return max(1, min(MOST_WORKERS, usable_cores() // ranks_here))


def _share_index(index: Index) -> tuple[SharedMemory, dict[str, list[Any]]]:
    """The columns workers need, in memory they map; and a byte per sample that says its CRC was checked."""
    return Columns.pack(
        {
            "label": index.labels_N,
            "shard": index.shards_N,
            "offset": index.offsets_N,
            "length": index.lengths_N,
            "crc32": index.crc32_N,
            "checked": np.zeros(len(index), np.uint8),
        }
    )


def _stored_px(index: Index) -> int:
    """The side of all images where they are all square and equal; 0 where they are not."""
    if not len(index):
        return 0
    px = int(index.widths_N[0])
    return px if bool((index.widths_N == px).all() and (index.heights_N == px).all()) else 0


def _merge(before: list[dict[str, Any]], now: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Worker by worker, what earlier processes did and what the present ones have done."""
    merged = [*now, *before[len(now) :]]
    for number, earlier in enumerate(before[: len(now)]):
        merged[number] = _sum(earlier, now[number])
    return merged


def _sum(earlier: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    seconds = {stage: earlier["seconds"][stage] + now["seconds"][stage] for stage in now["seconds"]}
    counts = {name: earlier[name] + now[name] for name in now if name not in ("pid", "seconds")}
    return {**counts, "pid": now["pid"], "seconds": seconds}


def _close(engines: list[Engine]) -> None:
    while engines:
        engines.pop().close()
