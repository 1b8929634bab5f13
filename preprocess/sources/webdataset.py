"""Existing WebDataset tars, local or remote: consecutive members with one name up to the first dot are one sample.

The label is `KEY.cls` (a number, or a class in words: `preprocess.sources.labels`) or the `label` of `KEY.json`.
A dataset prepared by feedline is one too: its index is read and its manifest's classes are kept, no header is walked.
Compressed tars are unpacked first. A remote tar without an index streams past once, because its headers are too close
together for a request each.
"""

import gzip
import json
import re
import shutil
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from feedline.pipeline.base.errors import UsageError
from feedline.pipeline.base.files import write_error
from feedline.pipeline.format.manifest import MANIFEST
from feedline.preprocess.sources.base import (
    Classes,
    Found,
    IndexTask,
    OnProgress,
    Part,
    Sample,
    Source,
    SourceError,
    SourceOptions,
    joined,
    passed_over,
)
from feedline.preprocess.sources.imagenet_places import TRAIN, WNID_TAR
from feedline.preprocess.sources.labels import class_entry, class_names, kind_of, number_in, odd_label
from feedline.preprocess.sources.listing import IMAGE_EXTENSIONS, Listed, expand, is_pattern
from feedline.preprocess.sources.prepared import recognise_prepared
from feedline.preprocess.sources.tar_headers import Member, Read, reader, walk

BASE_AND_EXTENSION = re.compile(r"((?:.*/|)[^./][^./]*)[.]([^/]*)")
LABEL_EXTENSIONS = ("cls", "label", "json")
LABELS_COMPARED = 100
"""Samples of each tar in which a second label is read too and must be the same."""
JSON_LABELS = ("label", "cls", "class", "target", "class_id")
LABEL_MAX_BYTES = 1 << 20
CONTROL = re.compile("[\0-\x1f\x7f-\x9f\ud800-\udfff]")
"""In no label: it is of another encoding, or several."""
WINDOW_BYTES = 4096
"""Covers an image's successor: its header, a label's header and data."""
COMPRESSED = (".tar.gz", ".tgz")


@dataclass(frozen=True, kw_only=True)
class ShardWalk:
    """Walks one tar."""

    split: str
    path: str
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    image: str | None = None
    label: str | None = None
    """Extensions, when there is a choice."""

    def run(self) -> Part:
        rows: list[Sample] = []
        imageless = 0
        with reader(self.path, self.options, WINDOW_BYTES) as (read, size):
            for key, members in samples(walk(read, 0, size, self.path), self.path):
                image = self._image(key, members)
                if image is None:
                    imageless += 1
                    continue
                member = members[image]
                label = self._label(key, members, read, both=len(rows) < LABELS_COMPARED)
                trouble = member.trouble or ("label cannot be read" if label is None else "")
                rows.append(
                    Sample(f"{key}.{image}", self.path, member.offset, member.length, -1, trouble, label or "")
                )
        missing = {"samples without an image": imageless} if imageless else {}
        return Part.of(self.split, rows, [self.path], passed_over=missing)

    def _image(self, key: str, members: Mapping[str, Member]) -> str | None:
        """Its extension. Raises SourceError for a sample with two images."""
        if self.image is not None:
            return self.image if self.image in members else None
        images = [name for name in members if f".{name}" in IMAGE_EXTENSIONS]
        if len(images) > 1:
            raise SourceError(
                f"{self.path}: sample {key!r} has two images, {images[0]} and {images[1]}: say which is meant, "
                f"like --source-option image_column={images[0]}"
            )
        return images[0] if images else None

    def _label(self, key: str, members: Mapping[str, Member], read: Read, both: bool) -> str | None:
        """As it is written; "" when there is none, None when it cannot be read. `both`: a second one is compared."""
        names = [name for name in ((self.label,) if self.label else LABEL_EXTENSIONS) if name in members]
        words = [label_word(name, members[name], read) for name in names[: 2 if both else 1]]
        if len(words) == 2 and words[0] and words[1] and words[0] != words[1]:
            raise SourceError(
                f"{self.path}: sample {key!r} has two labels, {words[0]!r} in {names[0]} and {words[1]!r} in "
                f"{names[1]}: say which is meant, like --source-option label_column={names[0]}"
            )
        return words[0] if words else ""


def samples(members: Iterable[Member], where: str) -> Iterator[tuple[str, dict[str, Member]]]:
    """(key, its members by extension in lower case); hidden files and files without an extension belong to none.

    An extension that comes again begins the same key's next sample. Raises SourceError at the first class tar: no
    image will come, and all of the train tar would stream by.
    """
    key, sample = "", dict[str, Member]()
    for member in members:
        if WNID_TAR.fullmatch(member.name.rpartition("/")[2]):
            raise SourceError(
                f"{where} holds class tars ({member.name}): name it {TRAIN}, as downloaded, or unpack it one level"
            )
        if found := BASE_AND_EXTENSION.fullmatch(member.name):
            extension = found[2].lower()
            if sample and (found[1] != key or extension in sample):
                yield key, sample
                sample = {}
            key = found[1]
            sample[extension] = member
    if sample:
        yield key, sample


def label_word(extension: str, member: Member, read: Read) -> str | None:
    if member.trouble or member.length > LABEL_MAX_BYTES:
        return None
    try:
        label: Any = read(member.offset, member.length).decode("utf-8-sig")
        if extension.rpartition(".")[2] == "json":
            values = json.loads(label)
            names = [name for name in JSON_LABELS if name in values] if isinstance(values, dict) else []
            label = values[names[0]] if names else None
    except (ValueError, RecursionError):
        return None
    if label is None:
        return ""
    word = str(label).strip()
    return (
        None if isinstance(label, bool) or not isinstance(label, int | float | str) or CONTROL.search(word) else word
    )


@dataclass(kw_only=True)
class ShardsSource(Source):
    where: str
    tars: list[Listed]
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    """For fsspec."""
    classes: Classes | None = None
    """By label, when known beforehand."""
    if_empty: str = "its tars hold no images with an extension like .jpg"
    image: str | None = None
    label: str | None = None
    """Extensions of the members that are meant, when there is a choice."""
    labels: str | None = None
    """`numbers` or `words`, when the user says so."""
    notes: list[str] = field(default_factory=list[str])
    kind = "shards"

    def __post_init__(self) -> None:
        self.needs_staging = any(tar.path.endswith(COMPRESSED) for tar in self.tars)

    def stage(self, folder: Path, on_progress: OnProgress = lambda _: None) -> Source:
        """Unpacks what is compressed; the rest stays where it is."""
        tars = [
            replace(tar, path=unpacked(tar.path, folder / f"{number:05d}-{tar.split}.tar", self.options))
            if tar.path.endswith(COMPRESSED)
            else tar
            for number, tar in enumerate(self.tars)
        ]
        return replace(self, tars=tars)

    def tasks(self) -> Sequence[IndexTask]:
        return [
            ShardWalk(split=tar.split, path=tar.path, options=self.options, image=self.image, label=self.label)
            for tar in self.tars
        ]

    def finish(self, parts: Sequence[Part]) -> Found:
        """A split none of whose samples has a label (a published test split) is left out, and that is said."""
        if not any(len(part) for part in parts):
            raise SourceError(f"{self.where}: {self.if_empty}")
        classes, label_of, notes = self._classes(parts)
        parts = [labelled(part, label_of) for part in parts]
        kept = {part.split for part in parts if bool(np.any(part.labels_N >= 0))}
        if not kept:
            raise SourceError(
                f"{self.where}: no image in its tars has a label (KEY.cls, or a label in KEY.json): add them, say "
                "--source-option label_column=EXTENSION, or extract the tars into class folders and give those"
            )
        left_out = Counter[str]()
        for part in parts:
            left_out.update({part.split: len(part)} if part.split not in kept else {})
        notes = [
            *self.notes,
            *notes,
            *(f"left out: {split}, none of whose {n:,} samples has a label" for split, n in sorted(left_out.items())),
            *passed_over(parts),
        ]
        columns = joined(with_tars_in_names([part for part in parts if part.split in kept]))
        return Found(columns=columns, classes=classes, notes=notes)

    def _classes(self, parts: Sequence[Part]) -> tuple[Classes, Mapping[str, int | str], list[str]]:
        """(classes, label as written -> label or why it is none, notes). Raises SourceError for an odd label."""
        counts = Counter(word for part in parts for word in part.written_labels if word)
        if self.labels is None and (odd := odd_label(counts)):
            raise SourceError(
                f"{self._place(odd[0], parts)} has the label {odd[0]!r}, others have {odd[1]!r}: mend it, or say "
                "--source-option labels=numbers (what is none goes to quarantine) or labels=words (each is a class)"
            )
        numbers = self.labels == "numbers" or (
            self.labels is None and all(kind_of(word) == "number" for word in counts)
        )
        classes, notes = self.classes, list[str]()
        if classes is None:
            names, notes = class_names(counts, numbers, lambda word: self._place(word, parts))
            classes = [{"name": name} if numbers else class_entry(name) for name in names]
        if numbers:
            return classes, {word: number_in(word, len(classes)) for word in counts}, notes
        known = {
            str(entry[key]): label for key in ("name", "wnid") for label, entry in enumerate(classes) if key in entry
        }
        return classes, {word: known.get(word, "label names no class") for word in counts}, notes

    def _place(self, word: str, parts: Sequence[Part]) -> str:
        """Of the first sample with this label."""
        tar, part = next(pair for pair in zip(self.tars, parts, strict=True) if word in pair[1].written_labels)
        return f"{self.where}: sample {part.names[part.written_labels.index(word)]!r} of {tar.under}"


def labelled(part: Part, label_of: Mapping[str, int | str]) -> Part:
    """A sample without a label keeps -1; one whose label is none gets a trouble."""
    labels = [label_of[word] if word else -1 for word in part.written_labels]
    troubles = {row: label for row, label in enumerate(labels) if isinstance(label, str)}
    labels_N = np.array([-1 if isinstance(label, str) else label for label in labels], np.int32)
    return replace(part, labels_N=labels_N, troubles=troubles | part.troubles)


def with_tars_in_names(parts: Sequence[Part]) -> Sequence[Part]:
    """Where two tars of a split use one key, all names get their tar's in front: many tars count from zero."""
    keys = [{(part.split, name.rpartition(".")[0]) for name in part.names} for part in parts]
    if len(set[tuple[str, str]]().union(*keys)) == sum(len(of_part) for of_part in keys):
        return parts
    stems = [PurePosixPath(part.paths[0]).stem for part in parts]
    if len(set(zip(stems, (part.split for part in parts), strict=True))) < len(parts):
        stems = [f"{number:05d}-{stem}" for number, stem in enumerate(stems)]
    return [
        replace(part, names=[f"{stem}/{name}" for name in part.names])
        for part, stem in zip(parts, stems, strict=True)
    ]  # fmt: skip


def unpacked(path: str, target: Path, options: dict[str, Any]) -> str:
    """The path of the plain tar. A whole one from an earlier run is used again."""
    import fsspec

    if target.exists():
        return str(target)
    partial = target.with_suffix(".partial")
    try:
        opened: Any = fsspec.open(path, "rb", **options)
        with opened as packed, gzip.open(packed) as plain, partial.open("wb") as file:
            shutil.copyfileobj(plain, file, 1 << 20)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise SourceError(f"{path} is cut short or damaged ({error}): copy or download it again") from error
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise write_error(error, f"unpacking {path} in {target.parent}") from error
    partial.replace(target)
    return str(target)


# --- recognising --------------------------------------------------------------------------------------


def recognise(path: str, options: SourceOptions) -> Source | None:
    if not is_pattern(path) and not path.endswith((".tar", *COMPRESSED)):
        prepared = expand(path, (MANIFEST,), options.storage_options)
        if prepared:
            return recognise_prepared(path, prepared, options)
    return recognise_tars(path, options)


def recognise_tars(path: str, options: SourceOptions) -> Source | None:
    """The tars alone, whatever a manifest beside them says."""
    storage = options.storage_options
    tars = expand(path, (".tar", *COMPRESSED), storage)
    wanted = [tar for tar in tars if options.wants(tar.split)]
    if tars and not wanted:
        raise UsageError(f"{path} has no tar of split {options.splits}: it has {tars[0].split}")
    if not wanted:
        return None
    image, label = (name and name.lower().removeprefix(".") for name in (options.image_column, options.label_column))
    return ShardsSource(where=path, tars=wanted, options=storage, image=image, label=label, labels=options.labels)
