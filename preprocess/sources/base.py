"""Raw datasets, whatever their form, as columns of descriptors: where every sample's bytes are, and its label.

A source lists *tasks*, small picklable functions that each walk a piece of it (some inner tars, some folders) and
give a `Part`; they may run anywhere, in any order. `finish` puts the parts together in the tasks' order: labels,
classes, keys. A source whose bytes cannot be addressed unpacks itself into staging tars, and goes on as those.

    source = open_source("/data/imagenet").stage(folder)
    found = source.finish([task() for task in source.tasks()])

Adding a source is one file with a function `recognise(path, options) -> Source | None`, and its name in `KINDS`.
Every mistake in a source is one line: UsageError for what cannot be meant, SourceError for what is damaged.
"""

import errno
import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from feedline.pipeline.base.errors import FeedlineError, UsageError
from feedline.pipeline.format.shard_tar import safe_key
from feedline.preprocess.sources.listing import is_pattern
from feedline.preprocess.sources.reading import what_happened

KINDS = {
    "torchvision": "torchvision_sets",
    "ilsvrc": "imagenet",
    "folder": "folder",
    "parquet": "parquet",
    "shards": "webdataset",
}
"""Kind of source -> its module beside this one; asked in this order."""
SPLITS = ("train", "val", "test")
TORCHVISION = "torchvision:"

OnProgress = Callable[[int], None]
"""Called with the number of samples done."""
Classes = list[dict[str, Any]]
"""By label: {"name": …} and, for ImageNet, {"wnid": …, "names": […]}."""


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """What a user may say about a source; everything is found out if not given."""

    kind: str | None = None
    """One of KINDS, when the source could be taken for several."""
    splits: str | None = None
    """Only these splits, comma-separated: `train`, `val`."""
    devkit: str | None = None
    """ILSVRC devkit, as tar.gz or folder, when it is not beside the archives."""
    ground_truth: str | None = None
    """Truth of a flat val folder or tar: one devkit ID or class a line by alphabetical file name, or `FILE LABEL`."""
    missing_classes: str = "refuse"
    """`allow` lets classes of the devkit have no train images."""
    image_column: str | None = None
    label_column: str | None = None
    """Parquet columns, or extensions of WebDataset members, when there is a choice."""
    labels: str | None = None
    """`numbers` or `words`, where labels are written as both (`preprocess.sources.labels`)."""
    layout: str | None = None
    """`classes`: every folder is a class, whatever its name; `splits`: the folders called train, val, test alone."""
    storage_options: dict[str, Any] = field(default_factory=dict[str, Any])
    """For fsspec."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not isinstance(value, dict if name == "storage_options" else str | None):
                raise UsageError(f"source option {name} cannot be {value!r:.40}")
        if self.kind is not None and self.kind not in KINDS:
            raise UsageError(f"source kind {self.kind!r} is none of {', '.join(KINDS)}")
        strange = sorted({name.strip() for name in (self.splits or "").split(",")} - {"", *SPLITS})
        if strange:
            raise UsageError(f"splits names {strange[0]!r}, which is none of {', '.join(SPLITS)}")
        for name, choices in CHOICES.items():
            if (value := getattr(self, name)) is not None and value not in choices:
                raise UsageError(f"{name} {value!r} is neither {' nor '.join(choices)}")

    def wants(self, split: str) -> bool:
        return self.splits is None or split in [name.strip() for name in self.splits.split(",")]


CHOICES = {"missing_classes": ("refuse", "allow"), "layout": ("classes", "splits"), "labels": ("numbers", "words")}
USED_BY = {
    **dict.fromkeys(("devkit", "ground_truth", "missing_classes"), ("ilsvrc",)),
    **dict.fromkeys(("image_column", "label_column", "labels"), ("parquet", "shards")),
    "layout": ("folder",),
}
"""Option -> the kinds of source that look at it; the others are of use for all."""


@dataclass(frozen=True, kw_only=True)
class Columns:
    """All descriptors as columns; a million of them are some 100 MB."""

    keys: list[str]
    labels_N: npt.NDArray[np.int32]
    splits_N: npt.NDArray[np.int8]
    """Number of the split in `split_names`."""
    split_names: list[str]
    paths: list[str]
    path_N: npt.NDArray[np.int32]
    offsets_N: npt.NDArray[np.int64]
    lengths_N: npt.NDArray[np.int64]
    troubles: dict[int, str]
    """Row -> why it must go to quarantine."""
    crc32_N: npt.NDArray[np.uint32] | None = None
    """Of the samples' bytes, where the source knows them."""

    def __len__(self) -> int:
        return len(self.keys)


class Sample(NamedTuple):
    """One sample as a task finds it."""

    name: str
    """As in the source, with extension; keys are made of it. Different images have different names."""
    path: str
    offset: int
    """Absolute, in the file or object at the path."""
    length: int
    label: str = ""
    """As the source writes it, which `finish` numbers; "" is none."""
    trouble: str = ""
    """Why it cannot be used whatever its bytes are."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """What one task found: samples of one split, in a stable order; columns as those of `Columns` and `Sample`."""

    split: str
    names: list[str]
    labels: list[str]
    paths: list[str]
    path_N: npt.NDArray[np.int32]
    """Number in `paths`."""
    offsets_N: npt.NDArray[np.int64]
    lengths_N: npt.NDArray[np.int64]
    troubles: dict[int, str] = field(default_factory=dict[int, str])
    crc32_N: npt.NDArray[np.uint32] | None = None
    """Of the samples' bytes, where an index has them."""
    passed_over: dict[str, int] = field(default_factory=dict[str, int])
    """What was there and is no sample: what, how many."""
    in_classes: bool = False
    """Names begin with `CLASS/`, which keys leave out where the file's own name carries it."""

    def __len__(self) -> int:
        return len(self.names)

    @classmethod
    def of(cls, split: str, rows: Sequence[Sample], walked: Iterable[str] = (), **more: Any) -> "Part":
        """`walked` are paths that count even where nothing was found."""
        paths = {path: place for place, path in enumerate(dict.fromkeys([*walked, *(row.path for row in rows)]))}
        return cls(
            split=split,
            names=[row.name for row in rows],
            labels=[row.label for row in rows],
            paths=list(paths),
            path_N=np.array([paths[row.path] for row in rows], np.int32),
            offsets_N=np.array([row.offset for row in rows], np.int64),
            lengths_N=np.array([row.length for row in rows], np.int64),
            troubles={place: row.trouble for place, row in enumerate(rows) if row.trouble},
            **more,
        )


Task = Callable[[], Part]
"""A piece of the walk; it can be pickled."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """All of a source: what the plan is made of."""

    columns: Columns
    classes: Classes
    notes: list[str]
    """Lines that a user may want to read."""


class Source:
    """A raw dataset. One that must be unpacked has a `stage` that gives another; others have `tasks` and `finish`."""

    kind: str

    def stage(self, folder: Path, on_progress: OnProgress = lambda _: None) -> "Source":
        """What to go on with: unpacked into tars in `folder`, sequentially, the same bytes each time, if it must be.
        All tasks must see that folder until the end."""
        return self

    def tasks(self) -> Sequence[Task]:
        raise NotImplementedError("stage() comes first")

    def finish(self, parts: Sequence[Part]) -> Found:
        """The whole, from the tasks' parts in the tasks' order. Raises SourceError when they do not fit."""
        raise NotImplementedError("stage() comes first")


def open_source(path: str, **options: Any) -> Source:
    """Finds out what lies at `path`: a folder, file, address, or `torchvision:NAME:ROOT`.

    Only looks around: names, first bytes, an outer tar's headers. Raises UsageError for a path that does not exist or
    is none of the known kinds.
    """
    parsed = parse_options(options)
    path = path.removeprefix("file://")
    is_local = "://" not in path
    kinds = [*KINDS] if parsed.kind is None else [parsed.kind]
    if path.startswith(TORCHVISION):
        kinds = [kind for kind in kinds if kind == "torchvision"]
    elif is_local and not is_pattern(path):
        place = Path(path)
        if not place.exists():
            raise UsageError(f"{path} does not exist: give the folder or archive of the raw images")
        if not (place.is_dir() or place.is_file()):
            raise UsageError(f"{path} is neither a folder nor a file: give the folder or archive of the raw images")
        if not os.access(place, os.R_OK):
            raise UsageError(f"{path} cannot be read: {os.strerror(errno.EACCES)}")
        if place.is_dir() and next(place.iterdir(), None) is None:
            raise UsageError(f"{path} is an empty folder: give the folder or archive of the raw images")
    for kind in kinds:
        try:
            source = import_module(f"feedline.preprocess.sources.{KINDS[kind]}").recognise(path, parsed)
        except FeedlineError:
            raise
        except Exception as error:
            if is_local:
                raise
            # every store's own library has its own errors
            raise UsageError(f"{path} cannot be read: {what_happened(error)}") from error
        if source is not None:
            check_used(parsed, source.kind, path)
            return source
    raise UsageError(
        f"{path} is not {f'a {parsed.kind} source' if parsed.kind else 'a source of a known kind'}: give a folder "
        "with the ILSVRC archives, class folders, WebDataset tars or Parquet files, or torchvision:NAME:ROOT"
    )


def parse_options(options: dict[str, Any]) -> SourceOptions:
    known = [option.name for option in fields(SourceOptions)]
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise UsageError(f"source option {unknown[0]!r} is none of {', '.join(known)}")
    return SourceOptions(**options)


def check_used(options: SourceOptions, kind: str, path: str) -> None:
    """Raises UsageError for an option that this kind of source would pass over in silence."""
    for option, kinds in USED_BY.items():
        if getattr(options, option) != getattr(SourceOptions, option) and kind not in kinds:
            raise UsageError(f"source option {option} is of no use for {path}, which is of kind {kind}")


# --- putting parts together ---------------------------------------------------------------------------


def found(
    parts: Sequence[Part], classes: Classes, label_of: Mapping[str, int | str], notes: Sequence[str] = ()
) -> Found:
    """All parts, in order. `label_of` a label as it is written: its number, or why it is none."""
    counts = Counter[str]()
    for part in parts:
        counts.update(part.passed_over)
    over = [f"passed over ({count:,}): {what}" for what, count in sorted(counts.items())]
    return Found(columns=joined(parts, label_of), classes=classes, notes=[*notes, *over])


def joined(parts: Sequence[Part], label_of: Mapping[str, int | str]) -> Columns:
    """One table from all parts."""
    split_names = sorted({part.split for part in parts}, key=lambda name: (name != "train", name))
    paths: dict[str, int] = {}
    path_numbers = [
        np.array([paths.setdefault(path, len(paths)) for path in part.paths], np.int32)[part.path_N] for part in parts
    ]
    words = [word for part in parts for word in part.labels]
    unusable = {word: label for word, label in label_of.items() if isinstance(label, str)}
    numbers = {**label_of, **dict.fromkeys(("", *unusable), -1)}
    troubles = {row: unusable[word] for row, word in enumerate(words) if word in unusable} if unusable else {}
    start = 0
    for part in parts:
        troubles |= {start + row: why for row, why in part.troubles.items()}
        start += len(part)
    checksums = [part.crc32_N for part in parts if part.crc32_N is not None]
    return Columns(
        keys=unique_keys(parts),
        labels_N=np.fromiter(map(numbers.__getitem__, words), np.int32, len(words)),
        splits_N=stacked([np.full(len(part), split_names.index(part.split)) for part in parts], np.int8),
        split_names=split_names,
        paths=list(paths),
        path_N=stacked(path_numbers, np.int32),
        offsets_N=stacked([part.offsets_N for part in parts], np.int64),
        lengths_N=stacked([part.lengths_N for part in parts], np.int64),
        troubles=troubles,
        crc32_N=stacked(checksums, np.uint32) if checksums and len(checksums) == len(parts) else None,
    )


def stacked(columns: Sequence[npt.NDArray[Any]], kind: type) -> npt.NDArray[Any]:
    return np.concatenate([np.empty(0, kind), *columns], dtype=kind, casting="unsafe")


def unique_keys(parts: Sequence[Part]) -> list[str]:
    """Keys from names. Within a split, a name whose key another name has taken gets `-` and 8 hex digits of its hash.

    The same name twice keeps the same key: that is a duplicate, which the plan sends to quarantine.
    """
    keys: list[str] = []
    taken: dict[tuple[str, str], str] = {}
    for part in parts:
        for name in part.names:
            short = name
            if part.in_classes:  # ImageNet's own file names carry their class or are unique
                class_name, _, file_name = name.partition("/")
                short = file_name if file_name.startswith((f"{class_name}_", "ILSVRC2012_val_")) else name
            if not short.isascii():  # bytes that are no UTF-8 become U+FFFD: an index cannot hold them
                short = short.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
            key = safe_key(without_extension(short))
            while taken.setdefault((part.split, key), name) != name:
                key += f"-{hashlib.blake2b(name.encode('utf-8', 'surrogateescape'), digest_size=4).hexdigest()}"
            keys.append(key)
    return keys


def without_extension(name: str) -> str:
    stem, dot, extension = name.rpartition(".")
    return stem if dot and "/" not in extension and stem.rpartition("/")[2] else name
