"""Existing WebDataset tars, local or remote: consecutive members with one name up to the first dot are one sample.

The label is `KEY.cls` (a number, or a class in words: `preprocess.sources.labels`) or the `label` of `KEY.json`.
A remote tar streams past once, because its headers are too close together for a request each. A dataset prepared by
feedline is one too: its index is read and its manifest's classes are kept, no header is walked.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from feedline.pipeline.base.errors import DatasetError, SourceError, UsageError
from feedline.pipeline.base.scratch import scratch_folder
from feedline.pipeline.base.text import count_of
from feedline.pipeline.codecs.pillow import EXTENSIONS
from feedline.pipeline.codecs.table import CODECS
from feedline.pipeline.format.manifest import (
    INDEX,
    MANIFEST,
    MANIFEST_BYTES,
    UNFINISHED,
    most_index_bytes,
    read_index,
    read_manifest,
)
from feedline.pipeline.format.remote import Remote
from feedline.preprocess.sources.base import Classes, Found, Part, Sample, Source, SourceOptions, Task, found
from feedline.preprocess.sources.imagenet import TRAIN, WNID_TAR
from feedline.preprocess.sources.labels import (
    are_numbers,
    class_entry,
    class_names,
    label_by_name,
    number_in,
    odd_label,
)
from feedline.preprocess.sources.listing import Listed, expand, is_pattern
from feedline.preprocess.sources.tar_headers import Member, Read, reader, walk

BASE_AND_EXTENSION = re.compile(r"((?:.*/|)[^./][^./]*)[.]([^/]*)")
LABEL_EXTENSIONS = ("cls", "label", "json")
DOTTED = "images whose extension has a dot, as a.left.jpg: say --source-option image_column=left.jpg, or rename them"
"""webdataset takes for the extension what is behind a name's first dot."""
LABELS_COMPARED = 100
"""Samples of each tar in which a second label is read too and must be the same."""
JSON_LABELS = ("label", "cls", "class", "target", "class_id")
LABEL_MAX_BYTES = 1 << 20
CONTROL = re.compile("[\0-\x1f\x7f-\x9f\ud800-\udfff]")
"""In no label: it is of another encoding, or several."""
WINDOW_BYTES = 4096
"""Covers an image's successor: its header, a label's header and data."""


def walk_shard(split: str, path: str, options: SourceOptions) -> Part:
    """One tar."""
    rows: list[Sample] = []
    imageless = dotted = 0

    def in_doubt(key: str, what: str, both: str, example: str) -> SourceError:
        return SourceError(
            f"{path}: sample {key!r} has two {what}s, {both}: say which is meant, "
            f"like --source-option {what}_column={example}"
        )

    with reader(path, options.storage_options, WINDOW_BYTES) as (read, size):
        for key, members in samples(walk(read, 0, size, path), path):
            usual = [name for name in members if f".{name}" in EXTENSIONS]
            images = present(members, options.image_column, usual)
            if len(images) > 1:
                raise in_doubt(key, "image", f"{images[0]} and {images[1]}", images[0])
            if not images:
                imageless += 1
                dotted += sum(f".{name}".endswith(EXTENSIONS) for name in members)
                continue
            labels = present(members, options.label_column, LABEL_EXTENSIONS)
            compared = labels[: 2 if len(rows) < LABELS_COMPARED else 1]
            words = [label_word(name, members[name], read) for name in compared] or [""]
            if len(words) == 2 and words[0] and words[1] and words[0] != words[1]:
                both = f"{words[0]!r} in {labels[0]} and {words[1]!r} in {labels[1]}"
                raise in_doubt(key, "label", both, labels[0])
            _, offset, length, trouble = members[images[0]]
            trouble = trouble or ("label cannot be read" if words[0] is None else "")
            rows.append(Sample(f"{key}.{images[0]}", path, offset, length, words[0] or "", trouble))
    over = {"samples without an image": imageless, DOTTED: dotted}
    return Part.of(split, rows, [path], passed_over={what: count for what, count in over.items() if count})


def present(members: Mapping[str, Member], asked: str | None, usual: Iterable[str]) -> list[str]:
    """Of the extensions: the one that the user says, or else the usual ones."""
    names = usual if asked is None else [asked.lower().removeprefix(".")]
    return [name for name in names if name in members]


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
    """A label as it is written; "" when there is none, None when it cannot be read."""
    if member.trouble or member.length > LABEL_MAX_BYTES:
        return None
    try:
        label: Any = read(member.offset, member.length).decode("utf-8-sig")
        if extension.rpartition(".")[2] == "json":
            values = json.loads(label, parse_constant=lambda _: None)  # NaN: how a missing label is often written
            names = [name for name in JSON_LABELS if name in values] if isinstance(values, dict) else []
            label = values[names[0]] if names else None
    except (ValueError, RecursionError):
        return None
    word = "" if label is None else str(label).strip()
    readable = label is None or (isinstance(label, int | float | str) and not isinstance(label, bool))
    return word if readable and not CONTROL.search(word) else None


@dataclass(kw_only=True)
class ShardsSource(Source):
    where: str
    tars: list[Listed]
    options: SourceOptions
    classes: Classes | None = None
    """By label, when known beforehand."""
    if_empty: str = (
        "its tars hold no images with an extension like .jpg, all that follows a name's first dot (else say "
        "--source-option image_column=EXTENSION)"
    )
    if_unlabelled: str = (
        "no image in its tars has a label (KEY.cls, or a label in KEY.json): add them, say "
        "--source-option label_column=EXTENSION, or extract the tars into class folders and give those"
    )
    notes: list[str] = field(default_factory=list[str])
    kind = "shards"

    def tasks(self) -> Sequence[Task]:
        return [partial(walk_shard, tar.split, tar.path, self.options) for tar in self.tars]

    def finish(self, parts: Sequence[Part]) -> Found:
        """A split none of whose samples has a label (a published test split) is left out, and that is said."""
        if not any(len(part) for part in parts):
            raise SourceError(f"{self.where}: {self.if_empty}")
        classes, label_of, notes = self._classes(parts)
        used = {word for word, label in label_of.items() if isinstance(label, int) and label >= 0}
        kept = {part.split for part in parts if not used.isdisjoint(part.labels)}
        for split in sorted({part.split for part in parts} - kept):
            count = sum(len(part) for part in parts if part.split == split)
            notes.append(f"left out: {split}, {count_of(count, 'sample')} and none with a label")
        if not kept:
            raise SourceError(f"{self.where}: {self.if_unlabelled}")
        parts = with_tars_in_names([part for part in parts if part.split in kept])
        return found(parts, classes, label_of, [*self.notes, *notes])

    def _classes(self, parts: Sequence[Part]) -> tuple[Classes, Mapping[str, int | str], list[str]]:
        """(classes, label as written -> label or why it is none, notes). Raises SourceError for an odd label."""
        counts = Counter(word for part in parts for word in part.labels if word)
        asked = self.options.labels
        if asked is None and (odd := odd_label(counts)):
            raise SourceError(
                f"{self._place(odd[0], parts)} has the label {odd[0]!r}, others have {odd[1]!r}: mend it, or say "
                "--source-option labels=numbers (what is none goes to quarantine) or labels=words (each is a class)"
            )
        numbers = asked == "numbers" or (asked is None and are_numbers(counts))
        classes, notes = self.classes, list[str]()
        if classes is None:
            names, notes = class_names(counts, numbers, lambda word: self._place(word, parts))
            classes = [{"name": name} if numbers else class_entry(name) for name in names]
        if numbers:
            return classes, {word: number_in(word, len(classes)) for word in counts}, notes
        known = label_by_name(classes)
        return classes, {word: known.get(word, "label names no class") for word in counts}, notes

    def _place(self, word: str, parts: Sequence[Part]) -> str:
        """Of the first sample with this label."""
        tar, part = next(pair for pair in zip(self.tars, parts, strict=True) if word in pair[1].labels)
        return f"{self.where}: sample {part.names[part.labels.index(word)]!r} of {tar.under}"


def with_tars_in_names(parts: Sequence[Part]) -> Sequence[Part]:
    """Where two tars of a split use one key, all names get their tar's in front: many tars count from zero."""
    keys = [{(part.split, name.rpartition(".")[0]) for name in part.names} for part in parts]
    if len(set[tuple[str, str]]().union(*keys)) == sum(len(of_part) for of_part in keys):
        return parts
    stems = [PurePosixPath(part.paths[0]).stem for part in parts]
    if len({(stem, part.split) for stem, part in zip(stems, parts, strict=True)}) < len(parts):
        stems = [f"{number:05d}-{stem}" for number, stem in enumerate(stems)]
    pairs = zip(parts, stems, strict=True)
    return [replace(part, names=[f"{stem}/{name}" for name in part.names]) for part, stem in pairs]


@dataclass(kw_only=True)
class PreparedSource(Source):
    """A dataset that feedline prepared: its index has been read, there is nothing to walk."""

    parts: list[Part]
    classes: Classes
    kind = "prepared"

    def tasks(self) -> Sequence[Task]:
        return []

    def finish(self, parts: Sequence[Part]) -> Found:
        return found(self.parts, self.classes, {str(label): label for label in range(len(self.classes))})


# --- recognising --------------------------------------------------------------------------------------


def recognise(path: str, options: SourceOptions) -> Source | None:
    if not is_pattern(path) and not path.endswith((".tar", *COMPRESSED)):
        files = expand(path, (MANIFEST,), options.storage_options)
        manifests = [file.path for file in files if PurePosixPath(file.path).name == MANIFEST]
        if any(is_ours(manifest, options) for manifest in manifests):  # then one that is not is said to be damaged
            return recognise_prepared(path, [manifest.rpartition("/")[0] or "." for manifest in manifests], options)
    return recognise_tars(path, options)


COMPRESSED = (".tar.gz", ".tgz")


def is_ours(manifest: str, options: SourceOptions) -> bool:
    """Whether it is a manifest of feedline's, maybe a damaged one: other programs call theirs so too."""
    with reader(manifest, options.storage_options) as (read, size):
        data = read(0, min(size, MANIFEST_BYTES))
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError):
        return True
    return isinstance(fields, dict) and "format_version" in fields


def recognise_prepared(path: str, folders: Sequence[str], options: SourceOptions) -> Source:
    """Raises UsageError when the dataset has several forms, or one that is no image; SourceError for damage."""
    above = folders[0].rpartition("/")[0]
    if any(folder.rpartition("/")[0] != above for folder in folders):
        raise UsageError(f"{path} holds several prepared datasets: give one of them, like {above}")
    one_of_several = Path(above).name.rpartition("-")[2] in CODECS
    for place in [Path(above), *[Path(above).parent] * one_of_several]:
        if "://" not in above and (place / UNFINISHED).exists():
            raise SourceError(f"{place} holds an unfinished prepare: run its command again to finish it")
    splits = [read_prepared(folder, options.storage_options) for folder in folders]
    classes = splits[0][0]
    if any(other != classes for other, _ in splits):
        raise SourceError(f"{path}: its splits have different classes")
    return PreparedSource(parts=[part for _, part in splits if options.wants(part.split)], classes=classes)


def read_prepared(folder: str, storage_options: dict[str, Any]) -> tuple[Classes, Part]:
    """A prepared split, here or at an address."""
    with scratch_folder("index") as scratch:
        here, remote = Path(folder), None
        try:
            if "://" in folder:
                remote, here = Remote(folder, storage_options), scratch
                (scratch / MANIFEST).write_bytes(remote.read_all(MANIFEST, MANIFEST_BYTES))
            manifest = read_manifest(here)
            if not CODECS[manifest.codec].image_file:
                raise UsageError(
                    f"{folder} was prepared as {manifest.codec}, which is no image file: give the original source"
                )
            if remote is not None:
                (scratch / INDEX).write_bytes(remote.read_all(INDEX, most_index_bytes(manifest)))
            index = read_index(here, manifest)
            names = [f"{key}.{CODECS[manifest.codec].extension or 'jpg'}" for key in index.keys]
        except DatasetError as error:
            what = str(error).replace(str(here), folder)
            raise SourceError(f"{what}: run `feedline verify` on {folder}") from error
    written = [str(label) for label in range(len(manifest.classes))]
    return manifest.classes, Part(
        split=manifest.split,
        names=names,
        labels=[written[label] for label in index.labels_N.tolist()],
        paths=[f"{folder}/{shard.name}" for shard in manifest.shards],
        path_N=index.shards_N,
        offsets_N=index.offsets_N,
        lengths_N=index.lengths_N,
        crc32_N=index.crc32_N,
    )


def recognise_tars(path: str, options: SourceOptions) -> ShardsSource | None:
    """The tars alone, whatever a manifest beside them says."""
    tars = expand(path, (".tar", *COMPRESSED), options.storage_options)
    refuse_compressed(tar.path for tar in tars)
    wanted = [tar for tar in tars if options.wants(tar.split)]
    if tars and not wanted:
        raise UsageError(f"{path} has no tar of split {options.splits}: it has {tars[0].split}")
    return ShardsSource(where=path, tars=wanted, options=options) if wanted else None


def refuse_compressed(paths: Iterable[str]) -> None:
    packed = next((path for path in paths if path.endswith(COMPRESSED)), None)
    if packed is not None:
        raise UsageError(f"{packed} is compressed, so that its images cannot be read where they lie: gunzip it first")
