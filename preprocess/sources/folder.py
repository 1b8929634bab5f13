"""An extracted image folder: `train/CLASS/…` and `val/CLASS/…`, or one level of class folders.

Classes are the folders' names in sorted order; what lies deeper belongs to the class folder it is under. Tasks list
some class folders each.
"""

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from feedline.pipeline.base.errors import UsageError
from feedline.preprocess.sources.base import (
    Found,
    IndexTask,
    Part,
    Source,
    SourceError,
    SourceOptions,
    is_address,
    is_image,
    joined,
    name_in_class,
    notes_of,
)
from feedline.preprocess.sources.devkit import class_entry
from feedline.preprocess.sources.listing import SPLIT_NAMES

CLASSES_PER_TASK = 16


@dataclass(frozen=True, kw_only=True)
class ClassFolder:
    name: str
    label: int
    path: str


@dataclass(frozen=True, kw_only=True)
class FolderTask:
    """Lists the images of some class folders. A folder without a name has images of any class."""

    split: str
    folders: list[ClassFolder]
    max_depth: int = 64

    @classmethod
    def of_classes(cls, split: str, folder: Path, labels: Mapping[str, int]) -> Iterator["FolderTask"]:
        """Raises SourceError for a class folder that has no label."""
        names = class_folders(folder)
        strange = next((name for name in names if name not in labels), None)
        if strange is not None:
            raise SourceError(
                f"{folder / strange} is no class of the dataset ({len(labels)} classes): remove or rename it"
            )
        folders = [ClassFolder(name=name, label=labels[name], path=str(folder / name)) for name in names]
        for start in range(0, len(folders), CLASSES_PER_TASK):
            yield cls(split=split, folders=folders[start : start + CLASSES_PER_TASK])

    @classmethod
    def flat(cls, split: str, folder: Path) -> "FolderTask":
        return cls(split=split, folders=[ClassFolder(name="", label=-1, path=str(folder))], max_depth=1)

    def run(self) -> Part:
        names: list[str] = []
        labels: list[int] = []
        paths: list[str] = []
        lengths: list[int] = []
        others: list[str] = []
        for folder in self.folders:
            for name, path, length in sorted(images_under(folder.path, self.max_depth, others)):
                names.append(name_in_class(folder.name, name) if folder.name else name)
                labels.append(folder.label)
                paths.append(path)
                lengths.append(length)
        return Part(
            split=self.split,
            names=names,
            labels_N=np.array(labels, np.int32),
            paths=paths,
            path_N=np.arange(len(paths), dtype=np.int32),
            offsets_N=np.zeros(len(paths), np.int64),
            lengths_N=np.array(lengths, np.int64),
            passed_over={"things that are no image files": len(others)} if others else {},
        )


def images_under(
    folder: str, max_depth: int, others: list[str] | None = None, beneath: str = ""
) -> Iterator[tuple[str, str, int]]:
    """(name relative to the folder, path, size) of every image; `others` gets the other names, hidden ones apart.

    Linked files are followed, linked folders are not: they may lead back.
    """
    try:
        for entry in os.scandir(folder):
            name = f"{beneath}{entry.name}"
            if entry.name.startswith("."):
                continue
            if entry.is_dir(follow_symlinks=False):
                if max_depth > 1:
                    yield from images_under(entry.path, max_depth - 1, others, f"{name}/")
            elif is_image(entry.name) and stat.S_ISREG((found := entry.stat()).st_mode):
                yield name, entry.path, found.st_size
            elif others is not None:
                others.append(name)
    except OSError as error:
        raise SourceError(f"{error.filename or folder} cannot be read: {error.strerror}") from error


@dataclass(kw_only=True)
class FolderSource(Source):
    where: str
    splits: dict[str, str]
    """Split -> its folder of class folders."""
    classes: list[str] = field(default_factory=list[str])
    kind = "folder"

    def __post_init__(self) -> None:
        by_split = {split: class_folders(Path(folder)) for split, folder in self.splits.items()}
        self.classes = by_split.get("train") or sorted({name for names in by_split.values() for name in names})

    def tasks(self) -> Sequence[IndexTask]:
        labels = {name: label for label, name in enumerate(self.classes)}
        return [
            task
            for split, folder in self.splits.items()
            for task in FolderTask.of_classes(split, Path(folder), labels)
        ]

    def finish(self, parts: Sequence[Part]) -> Found:
        columns = joined(parts)
        if not len(columns):
            raise SourceError(f"{self.where}: its class folders hold no image")
        held = set(columns.labels_N[columns.splits_N == 0].tolist())
        empty = [name for label, name in enumerate(self.classes) if label not in held]
        notes = [f"no {columns.split_names[0]} image: {len(empty)} classes (first: {empty[0]})"] if empty else []
        classes = [class_entry(name) for name in self.classes]
        return Found(columns=columns, classes=classes, notes=[*notes, *notes_of(parts)])


def recognise(path: str, options: SourceOptions) -> Source | None:
    where = Path(path)
    if is_address(path) or not where.is_dir():
        return None
    splits: dict[str, str] = {}
    for name in class_folders(where):
        split = SPLIT_NAMES.get(name.lower())
        if split in ("train", "val") and options.wants(split):
            check_sorted(where / name, split)
        if split is not None and class_folders(where / name):
            if split in splits:
                raise UsageError(f"{where} has two folders for {split}: {Path(splits[split]).name} and {name}")
            splits[split] = str(where / name)
    if splits:
        wanted = {
            split: splits[split] for split in ("train", "val", "test") if split in splits and options.wants(split)
        }
        return FolderSource(where=path, splits=wanted)
    if has_packed(where):
        return None
    if has_images(where):
        if any(class_folders(where)):
            return None
        raise UsageError(
            f"{path} is a flat folder of images without labels: give --source-option ground_truth=FILE, or sort them "
            "into class folders"
        )
    if any(next(images_under(str(where / name), 64), None) for name in class_folders(where)):
        return FolderSource(where=path, splits={"train": path})
    return None


def check_sorted(folder: Path, split: str) -> None:
    """Raises UsageError for a split's folder that has images but no class folders: they would be lost in silence."""
    if not class_folders(folder) and has_images(folder):
        other = "val" if split == "train" else "train"
        raise UsageError(
            f"{folder} is a flat folder of images without labels: give --source-option devkit=… or ground_truth=FILE "
            f"(val only), sort them into class folders, or take --source-option splits={other}"
        )


def class_folders(folder: Path) -> list[str]:
    """Names of the folders in it, sorted; hidden ones are none."""
    try:
        return sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))
    except OSError as error:
        raise UsageError(f"{folder} cannot be read: {error.strerror}") from error


def has_packed(folder: Path) -> bool:
    """Whether tars or Parquet files lie there, as hubs have them: then images beside them are no dataset."""
    folders = [folder, *(folder / name for name in class_folders(folder) if name.lower() in (*SPLIT_NAMES, "data"))]
    return any(
        entry.name.endswith((".tar", ".parquet", ".tar.gz", ".tgz")) for one in folders for entry in os.scandir(one)
    )


def has_images(folder: Path) -> bool:
    return any(is_image(entry.name) and entry.is_file() for entry in os.scandir(folder))
