"""Existing WebDataset tars, local or remote: consecutive members with one name up to the first dot are one sample.

The label is `KEY.cls` (a number, or a class in words: `preprocess.sources.labels`) or the `label` of `KEY.json`.
A dataset prepared by feedline is one too: its index is read and its manifest's classes are kept, no header is walked.
Compressed tars are unpacked first. A remote tar without an index streams past once, because its headers are too close
together for a request each.
"""

import gzip
import itertools
import json
import re
import shutil
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from feedline.pipeline.base.errors import UsageError
from feedline.pipeline.base.files import write_error
from feedline.pipeline.format.manifest import MANIFEST
from feedline.preprocess.sources.base import (
    IMAGE_EXTENSIONS,
    Classes,
    Found,
    IndexTask,
    OnProgress,
    Part,
    Source,
    SourceError,
    SourceOptions,
    joined,
    notes_of,
)
from feedline.preprocess.sources.devkit import class_entry
from feedline.preprocess.sources.imagenet_parts import TRAIN, WNID_TAR
from feedline.preprocess.sources.labels import class_names, kind_of, note_on, number_in, odd_label
from feedline.preprocess.sources.listing import Listed, expand, is_pattern, split_of
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
        rows = Rows(self)
        with reader(self.path, self.options, WINDOW_BYTES) as (read, size):
            members = walk(read, 0, size, self.path)
            for key, group in samples(named(not_nested(members, self.path))):
                rows.add(key, group, read)
        return rows.part()


def not_nested(members: Iterator[Member], where: str) -> Iterator[Member]:
    """Raises SourceError at the first class tar: no image will come, and all of the train tar would stream by."""
    for member in members:
        if WNID_TAR.fullmatch(member.name.rpartition("/")[2]):
            raise SourceError(
                f"{where} holds class tars ({member.name}): name it {TRAIN}, as downloaded, or unpack it one level"
            )
        yield member


def named(members: Iterator[Member]) -> Iterator[tuple[str, str, Member]]:
    """(key, extension in lower case, member); hidden files and files without an extension are none."""
    for member in members:
        found = BASE_AND_EXTENSION.fullmatch(member.name)
        if found is not None:
            yield found[1], found[2].lower(), member


def samples(members: Iterator[tuple[str, str, Member]]) -> Iterator[tuple[str, dict[str, Member]]]:
    """(key, its members by extension). An extension that comes again begins the same key's next sample."""
    for key, group in itertools.groupby(members, key=lambda item: item[0]):
        sample: dict[str, Member] = {}
        for _, extension, member in group:
            if extension in sample:
                yield key, sample
                sample = {}
            sample[extension] = member
        yield key, sample


class Rows:
    """The columns of a tar's samples, row by row."""

    def __init__(self, walk: ShardWalk) -> None:
        self.walk = walk
        self.names: list[str] = []
        self.places: list[tuple[int, int]] = []
        self.words: list[str] = []
        self.troubles: dict[int, str] = {}
        self.imageless = 0

    def add(self, key: str, members: dict[str, Member], read: Read) -> None:
        """Raises SourceError for a sample with two images."""
        images = [name for name in members if f".{name}" in IMAGE_EXTENSIONS]
        if self.walk.image is not None:
            images = [self.walk.image] if self.walk.image in members else []
        if len(images) > 1:
            raise SourceError(
                f"{self.walk.path}: sample {key!r} has two images, {images[0]} and {images[1]}: say which is meant, "
                f"like --source-option image_column={images[0]}"
            )
        if not images:
            self.imageless += 1
            return
        image = members[images[0]]
        labels = LABEL_EXTENSIONS if self.walk.label is None else (self.walk.label,)
        labels = [name for name in labels if name in members]
        words = [
            label_word(name, members[name], read) for name in labels[: 2 if len(self.names) < LABELS_COMPARED else 1]
        ]
        word = words[0] if words else ""
        if len(words) == 2 and word and words[1] and words[1] != word:
            raise SourceError(
                f"{self.walk.path}: sample {key!r} has two labels, {word!r} in {labels[0]} and {words[1]!r} in "
                f"{labels[1]}: say which is meant, like --source-option label_column={labels[0]}"
            )
        if trouble := image.trouble or ("label cannot be read" if word is None else ""):
            self.troubles[len(self.names)] = trouble
        self.names.append(f"{key}.{images[0]}")
        self.places.append((image.offset, image.length))
        self.words.append(word or "")

    def part(self) -> Part:
        places = np.array(self.places, np.int64).reshape(-1, 2)
        return Part(
            split=self.walk.split,
            names=self.names,
            labels_N=np.full(len(self.names), -1, np.int32),
            paths=[self.walk.path],
            path_N=np.zeros(len(self.names), np.int32),
            offsets_N=places[:, 0].copy(),
            lengths_N=places[:, 1].copy(),
            troubles=self.troubles,
            said_labels=self.words,
            passed_over={"samples without an image": self.imageless} if self.imageless else {},
        )


def label_word(extension: str, member: Member, read: Read) -> str | None:
    """A label as it is written; "" when there is none, None when it cannot be read."""
    if member.trouble or member.length > LABEL_MAX_BYTES:
        return None
    try:
        found: Any = read(member.offset, member.length).decode("utf-8-sig")
        if extension.rpartition(".")[2] == "json":
            said = json.loads(found)
            found = next((said[name] for name in JSON_LABELS if name in said), None) if isinstance(said, dict) else ""
    except (ValueError, RecursionError):
        return None
    if found is not None and (isinstance(found, bool) or not isinstance(found, int | float | str)):
        return None
    word = "" if found is None else str(found).strip()
    return None if CONTROL.search(word) else word


@dataclass(kw_only=True)
class ShardsSource(Source):
    where: str
    tars: list[Listed]
    options: dict[str, Any] = field(default_factory=dict[str, Any])
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

    def stage(self, folder: Path, on_progress: OnProgress | None = None) -> Source:
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
        if not any(len(part) for part in parts):
            raise SourceError(f"{self.where}: {self.if_empty}")
        classes, label_of, notes = self._classes(parts)
        kept, left_out = with_labels([labelled(part, label_of) for part in parts], self.where)
        notes = [*self.notes, *notes, *left_out, *notes_of(parts)]
        return Found(columns=joined(with_tars_in_names(kept)), classes=classes, notes=notes)

    def _classes(self, parts: Sequence[Part]) -> tuple[Classes, Mapping[str, int | str], list[str]]:
        """(classes, label as written -> label or why it is none, notes). Raises SourceError for an odd label."""
        counts = Counter(word for part in parts for word in part.said_labels or () if word)
        if self.labels is None and (odd := odd_label(counts)):
            raise SourceError(
                f"{self._place(odd[0], parts)} has the label {odd[0]!r}, others have {odd[1]!r}: mend it, or say "
                "--source-option labels=numbers (what is none goes to quarantine) or labels=words (each is a class)"
            )
        numbers = (
            all(kind_of(word) == "number" for word in counts) if self.labels is None else self.labels == "numbers"
        )
        classes, notes = self.classes, list[str]()
        if classes is None:
            names = class_names(counts, numbers, lambda word: self._place(word, parts))
            classes = [{"name": name} if numbers else class_entry(name) for name in names]
            notes = note_on(counts, names, numbers)
        if numbers:
            return classes, {word: number_in(word, len(classes)) for word in counts}, notes
        known = {str(entry["name"]): label for label, entry in enumerate(classes)}
        known |= {str(entry["wnid"]): label for label, entry in enumerate(classes) if "wnid" in entry}
        return classes, {word: known.get(word, "label names no class") for word in counts}, notes

    def _place(self, word: str, parts: Sequence[Part]) -> str:
        """Of the first sample with this label."""
        tar, words, names = next(
            (tar, part.said_labels, part.names)
            for tar, part in zip(self.tars, parts, strict=True)
            if part.said_labels is not None and word in part.said_labels
        )
        return f"{self.where}: sample {names[words.index(word)]!r} of {tar.under}"


def labelled(part: Part, label_of: Mapping[str, int | str]) -> Part:
    """A sample without a label keeps -1; one whose label is none gets a trouble."""
    found = [label_of[word] if word else -1 for word in part.said_labels or ()]
    troubles = {row: label for row, label in enumerate(found) if isinstance(label, str)}
    labels_N = np.array([-1 if isinstance(label, str) else label for label in found], np.int32)
    return replace(part, labels_N=labels_N, troubles=troubles | part.troubles)


def with_labels(parts: Sequence[Part], where: str) -> tuple[list[Part], list[str]]:
    """A split none of whose samples has a label (a published test split) is left out, and that is said.

    Raises SourceError when none has.
    """
    unlabelled = {part.split for part in parts} - {part.split for part in parts if bool(np.any(part.labels_N >= 0))}
    if unlabelled == {part.split for part in parts}:
        raise SourceError(
            f"{where}: no image in its tars has a label (KEY.cls, or a label in KEY.json): add them, say "
            "--source-option label_column=EXTENSION, or extract the tars into class folders and give those"
        )
    lost = {split: sum(len(part) for part in parts if part.split == split) for split in sorted(unlabelled)}
    notes = [f"left out: {split}, none of whose {count:,} samples has a label" for split, count in lost.items()]
    return [part for part in parts if part.split not in unlabelled], notes


def with_tars_in_names(parts: Sequence[Part]) -> list[Part]:
    """Where two tars of a split use one key, all names get their tar's in front: many tars count from zero."""
    seen: set[tuple[str, str]] = set()
    for part in parts:
        names = {(part.split, name.rpartition(".")[0]) for name in part.names}
        if not names.isdisjoint(seen):
            break
        seen |= names
    else:
        return list(parts)
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
    if path.startswith("torchvision:"):
        return None
    if not is_pattern(path) and not path.endswith((".tar", *COMPRESSED)):
        prepared = expand(path, (MANIFEST,), options.storage_options)
        if prepared:
            return recognise_prepared(path, prepared, options)
    return recognise_tars(path, options)


def recognise_tars(path: str, options: SourceOptions) -> Source | None:
    """The tars alone, whatever a manifest beside them says."""
    storage = options.storage_options
    tars = [
        replace(tar, split=split_of(tar))
        for tar in expand(path, (".tar", *COMPRESSED), storage)
    ]  # fmt: skip
    wanted = [tar for tar in tars if options.wants(tar.split)]
    if tars and not wanted:
        raise UsageError(f"{path} has no tar of split {options.splits}: it has {tars[0].split}")
    if not wanted:
        return None
    image, label = (name and name.lower().removeprefix(".") for name in (options.image_column, options.label_column))
    return ShardsSource(where=path, tars=wanted, options=storage, image=image, label=label, labels=options.labels)
