"""Existing WebDataset tars, local or remote: consecutive members with one name up to the first dot are one sample.

The label is `KEY.cls` (a number, or a class in words) or the `label` of `KEY.json`. A dataset prepared by feedline is
one too: its index is read and its manifest's classes are kept, no header is walked. Compressed tars are unpacked
first. A remote tar without an index streams past once, because its headers are too close together for a request each.
"""

import gzip
import itertools
import json
import re
import shutil
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from feedline.pipeline.base.errors import UsageError
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
from feedline.preprocess.sources.listing import Listed, expand, is_pattern, split_of
from feedline.preprocess.sources.prepared import recognise_prepared
from feedline.preprocess.sources.tar_headers import Member, Read, reader, walk
from feedline.preprocess.store import readable

BASE_AND_EXTENSION = re.compile(r"((?:.*/|)[^./][^./]*)[.]([^/]*)")
LABEL_EXTENSIONS = ("cls", "label", "json")
JSON_LABELS = ("label", "cls", "class", "target", "class_id")
LABEL_MAX_BYTES = 1 << 20
CLASSES_MAX = 100_000
"""A larger label number is taken for something else than a class."""
WINDOW_BYTES = 4096
"""Covers an image's successor: its header, a label's header and data."""
COMPRESSED = (".tar.gz", ".tgz")


@dataclass(frozen=True, kw_only=True)
class ShardWalk:
    """Walks one tar."""

    split: str
    path: str
    options: dict[str, Any] = field(default_factory=dict[str, Any])

    def run(self) -> Part:
        rows = Rows()
        with reader(self.path, self.options, WINDOW_BYTES) as (read, size):
            members = walk(read, 0, size, self.path)
            for key, group in samples(named(not_nested(members, self.path))):
                rows.add(key, group, read)
        return rows.part(self.split, self.path)


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

    def __init__(self) -> None:
        self.names: list[str] = []
        self.places: list[tuple[int, int]] = []
        self.words: list[str] = []
        self.imageless = 0

    def add(self, key: str, members: dict[str, Member], read: Read) -> None:
        image = next((extension for extension in members if f".{extension}" in IMAGE_EXTENSIONS), None)
        if image is None:
            self.imageless += 1
            return
        self.names.append(f"{key}.{image}")
        self.places.append((members[image].offset, members[image].length))
        label = next((extension for extension in LABEL_EXTENSIONS if extension in members), None)
        self.words.append("" if label is None else label_word(label, members[label], read))

    def part(self, split: str, path: str) -> Part:
        places = np.array(self.places, np.int64).reshape(-1, 2)
        return Part(
            split=split,
            names=self.names,
            labels_N=np.full(len(self.names), -1, np.int32),
            paths=[path],
            path_N=np.zeros(len(self.names), np.int32),
            offsets_N=places[:, 0].copy(),
            lengths_N=places[:, 1].copy(),
            said_labels=self.words,
            passed_over={"samples without an image": self.imageless} if self.imageless else {},
        )


def label_word(extension: str, member: Member, read: Read) -> str:
    """A label as it is written; "" when there is none to be found."""
    if member.length > LABEL_MAX_BYTES:
        return ""
    text = read(member.offset, member.length).decode("utf-8", "replace").strip()
    if extension != "json":
        return text
    try:
        said = json.loads(text)
    except ValueError:
        return ""
    found = next((said[name] for name in JSON_LABELS if name in said), "") if isinstance(said, dict) else ""
    return str(found) if isinstance(found, int | str) and not isinstance(found, bool) else ""


@dataclass(kw_only=True)
class ShardsSource(Source):
    where: str
    tars: list[Listed]
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    classes: Classes | None = None
    """By label, when known beforehand."""
    if_empty: str = "its tars hold no images with an extension like .jpg"
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
        return ShardsSource(where=self.where, tars=tars, options=self.options, classes=self.classes)

    def tasks(self) -> Sequence[IndexTask]:
        return [ShardWalk(split=tar.split, path=tar.path, options=self.options) for tar in self.tars]

    def finish(self, parts: Sequence[Part]) -> Found:
        if not any(len(part) for part in parts):
            raise SourceError(f"{self.where}: {self.if_empty}")
        classes, labels, troubles = labelled([part.said_labels or [] for part in parts], self.classes, self.where)
        parts = [
            replace(part, labels_N=part_labels, troubles=part.troubles | part_troubles)
            for part, part_labels, part_troubles in zip(parts, labels, troubles, strict=True)
        ]
        kept, notes = with_labels(parts, self.where)
        return Found(columns=joined(with_tars_in_names(kept)), classes=classes, notes=[*notes, *notes_of(parts)])


def with_labels(parts: Sequence[Part], where: str) -> tuple[list[Part], list[str]]:
    """A split none of whose samples has a label (a published test split) is left out, and that is said.

    Raises SourceError when none has.
    """
    unlabelled = {part.split for part in parts} - {part.split for part in parts if bool(np.any(part.labels_N >= 0))}
    if unlabelled == {part.split for part in parts}:
        raise SourceError(
            f"{where}: no image in its tars has a label (KEY.cls, or a label in KEY.json): add them, or extract the "
            "tars into class folders and give those"
        )
    lost = {split: sum(len(part) for part in parts if part.split == split) for split in sorted(unlabelled)}
    notes = [f"left out: {split}, none of whose {count:,} samples has a label" for split, count in lost.items()]
    return [part for part in parts if part.split not in unlabelled], notes


def labelled(
    words: Sequence[list[str]], classes: Classes | None, where: str
) -> tuple[Classes, list[np.ndarray[Any, np.dtype[np.int32]]], list[dict[int, str]]]:
    """(classes, labels, troubles) by part. Numbers are labels; words are classes in sorted order.

    Raises SourceError for numbers too large to be classes. A sample without a label keeps -1.
    """
    distinct = sorted({word for part in words for word in part if word})
    numeric = all(re.fullmatch(r"-?\d{1,18}", word) for word in distinct)
    if classes is None:
        classes = numbered_classes(distinct, where) if numeric else [class_entry(word) for word in distinct]
    known = {str(entry["name"]): label for label, entry in enumerate(classes)}
    known |= {str(entry["wnid"]): label for label, entry in enumerate(classes) if "wnid" in entry}
    label_of = {word: int(word) if numeric else known.get(word, -2) for word in distinct} | {"": -1}
    labels: list[Any] = []
    troubles: list[dict[int, str]] = []
    for part in words:
        exact = [label_of[word] for word in part]
        wrong = {row: "label out of range" for row, label in enumerate(exact) if label < -1 or label >= len(classes)}
        labels.append(np.array([-1 if row in wrong else label for row, label in enumerate(exact)], np.int32))
        troubles.append(wrong)
    return classes, labels, troubles


def numbered_classes(numbers: Sequence[str], where: str) -> Classes:
    most = max((int(number) for number in numbers), default=-1)
    if most >= CLASSES_MAX:
        raise SourceError(
            f"{where}: a label of {most} is no class number (under {CLASSES_MAX:,}): mend that sample's .cls or .json"
        )
    return [{"name": str(label)} for label in range(most + 1)]


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
        raise readable(error, f"unpacking {path} in {target.parent}") from error
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
    return ShardsSource(where=path, tars=wanted, options=storage) if wanted else None
