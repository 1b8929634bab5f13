"""ILSVRC 2012 where it lies: the train tar of class tars, the val tar, the devkit; each also unpacked one level.

Nothing is extracted. The outer train tar's headers say where each class tar lies (a thousand reads), tasks walk some
class tars each, and every image is (path, absolute offset, length). Labels are ranks of sorted wnids; val truth goes
ID -> wnid -> rank by alphabetical file name (`preprocess.sources.devkit`).

    train   ILSVRC2012_img_train.tar | folder of n########.tar | folder of class folders
    val     ILSVRC2012_img_val.tar   | flat folder of images   | folder of class folders
    devkit  ILSVRC2012_devkit_t12.tar.gz | its folder          (or a ground-truth file)

At an address that fsspec speaks, the three archives as downloaded, or class tars instead of the train archive. Their
headers are too close together for a request each, so a tar streams past once while it is indexed; tasks then read
images by range.
"""

import itertools
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from feedline.pipeline.base.errors import UsageError
from feedline.pipeline.base.scratch import scratch_folder
from feedline.preprocess.sources.base import (
    Classes,
    Found,
    IndexTask,
    Part,
    Source,
    SourceError,
    SourceOptions,
    is_address,
    joined,
    notes_of,
)
from feedline.preprocess.sources.devkit import (
    Devkit,
    Truth,
    class_entry,
    class_id,
    labels_of_words,
    read_devkit,
    read_truth,
)
from feedline.preprocess.sources.folder import FolderTask, class_folders
from feedline.preprocess.sources.imagenet_parts import DEVKIT, WNID_TAR, Place, find_devkit, places, remote_places
from feedline.preprocess.sources.labels import class_names, kind_of, odd_label
from feedline.preprocess.sources.listing import expand, is_pattern
from feedline.preprocess.sources.tar_headers import BLOCK_BYTES, Member, TarError, reader, walk

CLASS_TARS_PER_TASK = 16


@dataclass(frozen=True, kw_only=True)
class ClassTar:
    """A range of a file that is a tar of one class's images."""

    name: str
    label: int
    path: str
    offset: int
    length: int
    """-1: to the file's end."""


@dataclass(frozen=True, kw_only=True)
class TarTask:
    """Walks tars' headers. `ClassTar.name` "" is a tar without a class."""

    split: str
    tars: list[ClassTar]
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    """For fsspec."""

    def run(self) -> Part:
        names: list[str] = []
        columns: list[tuple[int, int, int, int]] = []
        troubles: dict[int, str] = {}
        paths = list(dict.fromkeys(tar.path for tar in self.tars))
        for tar in self.tars:
            for member in images_in(tar, self.options):
                if member.trouble:
                    troubles[len(names)] = member.trouble
                names.append(f"{tar.name}/{member.name}" if tar.name else member.name)
                columns.append((tar.label, paths.index(tar.path), member.offset, member.length))
        table = np.array(columns, np.int64).reshape(-1, 4)
        return Part(
            split=self.split,
            names=names,
            labels_N=table[:, 0].astype(np.int32),
            paths=paths,
            path_N=table[:, 1].astype(np.int32),
            offsets_N=table[:, 2].copy(),
            lengths_N=table[:, 3].copy(),
            troubles=troubles,
            in_classes=bool(self.tars[0].name),
        )


def images_in(tar: ClassTar, options: dict[str, Any]) -> list[Member]:
    """Every file but hidden ones: a name is not trusted to say what is an image."""
    where = f"{tar.path}: {tar.name}.tar" if tar.name and not tar.path.endswith(f"/{tar.name}.tar") else tar.path
    with reader(tar.path, options) as (read, size):
        end = tar.offset + tar.length if tar.length >= 0 else size
        if end > size:
            raise TarError(f"{where} is cut short: the file ends at byte {size}: copy or download it again")
        found = walk(read, tar.offset, end, where)
        return [member for member in found if not member.name.rpartition("/")[2].startswith(".")]


@dataclass(kw_only=True)
class IlsvrcSource(Source):
    where: str
    train: Place | None
    val: Place | None
    devkit: Devkit | None
    truth: Truth | None
    allow_missing: bool = False
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    """For fsspec."""
    class_tars: list[ClassTar] = field(default_factory=list[ClassTar])
    classes: Classes = field(default_factory=list[dict[str, object]])
    kind = "ilsvrc"

    def __post_init__(self) -> None:
        names = self._train_names()
        if self.devkit is not None:
            self.classes = self.devkit.classes
            self._check_classes(names)
        else:
            self.classes = [class_entry(name) for name in names or self._val_names()]

    def tasks(self) -> Sequence[IndexTask]:
        return [*self._train_tasks(), *self._val_tasks()]

    def finish(self, parts: Sequence[Part]) -> Found:
        self._check_images(parts)
        labels = [self._val_labels(part) if self._wants_truth(part) else part.labels_N for part in parts]
        return Found(columns=joined(parts, labels), classes=self.classes, notes=notes_of(parts))

    # --- classes --------------------------------------------------------------------------------------

    def _train_names(self) -> list[str]:
        """Sorted names of train's classes; also finds the class tars."""
        if self.train is None:
            return []
        if self.train.form == "class folders":
            return class_folders(Path(self.train.path))
        archive = self.train.form == "archive"
        self.class_tars = (
            tars_of_archive(self.train.path, self.options)
            if archive
            else tars_of_folder(self.train.path, self.options)
        )
        return [tar.name for tar in self.class_tars]

    def _val_names(self) -> list[str]:
        if self.val is not None and self.val.form == "class folders":
            return class_folders(Path(self.val.path))
        if self.truth is None:
            return []
        counts = Counter(self.truth.in_order)
        if found := odd_label(counts):
            raise SourceError(f"{self.truth.where} says {found[0]!r} beside {found[1]!r}: numbers or words? Mend it")
        return class_names(counts, kind_of(self.truth.in_order[0]) == "number", lambda _: self.where)

    def _check_classes(self, train: Sequence[str]) -> None:
        known = [class_id(entry) for entry in self.classes]
        strange = sorted(set(train) - set(known))
        where = self.devkit.where if self.devkit is not None else ""
        if strange:
            raise SourceError(f"{self._train_path}: class {strange[0]} is none of the {len(known)} of {where}")
        missing = sorted(set(known) - set(train))
        if missing and self.train is not None and not self.allow_missing:
            tars = "class tars" if self.train.form != "class folders" else "class folders"
            raise SourceError(
                f"{self._train_path} lacks {len(missing)} of {len(known)} {tars} (first: {missing[0]}): "
                "complete it, or allow it with --source-option missing_classes=allow"
            )

    @property
    def _train_path(self) -> str:
        return self.train.path if self.train is not None else self.where

    @property
    def _label_of_name(self) -> dict[str, int]:
        return {class_id(entry): label for label, entry in enumerate(self.classes)}

    # --- tasks ----------------------------------------------------------------------------------------

    def _train_tasks(self) -> list[IndexTask]:
        if self.train is None:
            return []
        labels = self._label_of_name
        if self.train.form == "class folders":
            return list(FolderTask.of_classes("train", Path(self.train.path), labels))
        tars = [replace(tar, label=labels[tar.name]) for tar in self.class_tars]
        return [
            TarTask(split="train", tars=tars[start : start + CLASS_TARS_PER_TASK], options=self.options)
            for start in range(0, len(tars), CLASS_TARS_PER_TASK)
        ]

    def _val_tasks(self) -> list[IndexTask]:
        if self.val is None:
            return []
        if self.val.form == "class folders":
            return list(FolderTask.of_classes("val", Path(self.val.path), self._label_of_name))
        if self.val.form == "flat":
            return [FolderTask.flat("val", Path(self.val.path))]
        whole = ClassTar(name="", label=-1, path=self.val.path, offset=0, length=-1)
        return [TarTask(split="val", tars=[whole], options=self.options)]

    # --- finishing ------------------------------------------------------------------------------------

    def _check_images(self, parts: Sequence[Part]) -> None:
        held = np.zeros(len(self.classes), np.int64)
        for part in parts:
            if part.split == "train":
                np.add.at(held, part.labels_N[part.labels_N >= 0], 1)
        empty = np.flatnonzero(held == 0)
        if self.train is not None and len(empty) and not self.allow_missing:
            raise SourceError(
                f"{self._train_path}: class {class_id(self.classes[int(empty[0])])} has no image: "
                "complete it, or allow it with --source-option missing_classes=allow"
            )
        if self.val is not None and not any(len(part) for part in parts if part.split == "val"):
            raise SourceError(f"{self.val.path} holds no image")

    def _wants_truth(self, part: Part) -> bool:
        return part.split == "val" and self.val is not None and self.val.form != "class folders"

    def _val_labels(self, part: Part) -> npt.NDArray[np.int32]:
        if self.truth is None:
            raise SourceError(f"{self.where}: val has no ground truth")
        ids = self.devkit.label_of_id if self.devkit is not None else None
        return labels_of_words(self.truth.words(part.names), self.truth, self.classes, ids)


def tars_of_archive(path: str, options: dict[str, Any]) -> list[ClassTar]:
    """The class tars in the outer tar, sorted by name, from its headers alone. Raises TarError."""
    with reader(path, options, ahead_bytes=BLOCK_BYTES) as (read, size):
        members = [member for member in walk(read, 0, size, path) if member.name.endswith(".tar")]
    if link := next((member for member in members if member.trouble), None):
        raise TarError(f"{path}: {link.name!r} is a {link.trouble}: pack the files themselves")
    if not members:
        raise SourceError(f"{path} holds no class tars: give ILSVRC2012_img_train.tar as downloaded")
    tars = [
        ClassTar(
            name=member.name.rpartition("/")[2].removesuffix(".tar"),
            label=-1,
            path=path,
            offset=member.offset,
            length=member.length,
        )
        for member in members
    ]
    return checked_once(tars, path)


def tars_of_folder(path: str, options: dict[str, Any]) -> list[ClassTar]:
    if is_address(path):
        found = [file.path for file in expand(path, (".tar",), options)]
        named = [(one.rpartition("/")[2], one) for one in found]
        return checked_once(
            [ClassTar(name=name.removesuffix(".tar"), label=-1, path=one, offset=0, length=-1)
             for name, one in named if WNID_TAR.fullmatch(name)], path,
        )  # fmt: skip
    tars = [
        ClassTar(name=entry.name.removesuffix(".tar"), label=-1, path=entry.path, offset=0, length=-1)
        for entry in os.scandir(path)
        if entry.name.endswith(".tar") and not entry.name.startswith(".") and not entry.is_dir()
    ]
    return checked_once(tars, path)


def checked_once(tars: list[ClassTar], path: str) -> list[ClassTar]:
    ordered = sorted(tars, key=lambda tar: tar.name)
    twice = next((a.name for a, b in itertools.pairwise(ordered) if a.name == b.name), None)
    if twice is not None:
        raise SourceError(f"{path} holds class tar {twice}.tar twice")
    return ordered


# --- recognising --------------------------------------------------------------------------------------


def recognise(path: str, options: SourceOptions) -> Source | None:
    """An ILSVRC archive, a folder with some, or a flat folder of images with a devkit or ground truth."""
    where = Path(path)
    if "://" in path and not is_pattern(path):
        return recognise_remote(path, options)
    if is_address(path) or not where.exists():  # a pattern is no path
        return None
    train, val = places(where)
    alone = val is not None and where.is_file() and options.ground_truth is None
    kit = find_devkit(where.parent if alone else where, options)  # train's labels need none: they are its tars' ranks
    archives = any(place is not None and place.form in ("archive", "class tars") for place in (train, val))
    flat = val is not None and val.form == "flat"
    told = kit is not None or options.ground_truth is not None
    if (train is None and val is None) or not (archives or (flat and told) or (kit is not None)):
        return None
    return source_of(path, train, val, read_devkit(kit) if kit is not None else None, options)


def recognise_remote(address: str, options: SourceOptions) -> Source | None:
    train, val, kit = remote_places(address, options.storage_options)
    if train is None and val is None:
        return None
    given = find_devkit(Path(), options) if options.devkit is not None else None
    if given is not None:
        return source_of(address, train, val, read_devkit(given), options)
    devkit = remote_devkit(kit, options.storage_options) if kit is not None else None
    return source_of(address, train, val, devkit, options)


def remote_devkit(address: str, options: dict[str, Any]) -> Devkit:
    import fsspec

    with scratch_folder("devkit") as folder:
        opened: Any = fsspec.open(address, "rb", **options)
        with opened as file:
            (folder / DEVKIT).write_bytes(file.read())
        return replace(read_devkit(folder / DEVKIT), where=address)


def source_of(
    path: str, train: Place | None, val: Place | None, devkit: Devkit | None, options: SourceOptions
) -> Source:
    """Of the splits that are wanted. Raises UsageError when val needs a ground truth and there is none."""
    val = val if options.wants("val") else None
    return IlsvrcSource(
        where=path,
        train=train if options.wants("train") else None,
        val=val,
        devkit=devkit,
        truth=find_truth(val, devkit, options),
        allow_missing=options.missing_classes == "allow",
        options=options.storage_options,
    )


def find_truth(val: Place | None, devkit: Devkit | None, options: SourceOptions) -> Truth | None:
    """Raises UsageError when val needs one and there is none."""
    if options.ground_truth is not None:
        return Truth.parse(read_truth(options.ground_truth), options.ground_truth)
    if devkit is not None and devkit.truth is not None:
        return Truth.parse(devkit.truth, devkit.where)
    if val is not None and val.form != "class folders":
        raise UsageError(
            f"{val.path} has no ground truth: put ILSVRC2012_devkit_t12.tar.gz beside it, give --source-option "
            "devkit=… or ground_truth=…, or take --source-option splits=train"
        )
    return None
