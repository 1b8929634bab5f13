"""An extracted image folder: `train/CLASS/…` and `val/CLASS/…`, or one level of class folders.

Classes are the folders' names in text order; what lies deeper belongs to the class folder it is under. An image
beside the class folders has no label, a broken link no bytes: both go to quarantine. Tasks list some folders each.
"""

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from feedline.pipeline.base.errors import UsageError
from feedline.preprocess.sources.base import (
    SPLITS,
    Found,
    IndexTask,
    Part,
    Source,
    SourceError,
    SourceOptions,
    is_address,
    is_image,
    is_image_file,
    joined,
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
    deep: bool = True

    @classmethod
    def of_classes(cls, split: str, folder: Path, labels: Mapping[str, int]) -> Iterator["FolderTask"]:
        """The class folders, then the images beside them. Raises SourceError for a class folder that has no label."""
        names = class_folders(folder)
        strange = next((name for name in names if name not in labels), None)
        if strange is not None:
            raise SourceError(
                f"{folder / strange} is no class of the dataset ({len(labels)} classes): remove or rename it"
            )
        folders = [ClassFolder(name=name, label=labels[name], path=str(folder / name)) for name in names]
        for start in range(0, len(folders), CLASSES_PER_TASK):
            yield cls(split=split, folders=folders[start : start + CLASSES_PER_TASK])
        if has_images(folder):
            yield cls.flat(split, folder)

    @classmethod
    def flat(cls, split: str, folder: Path) -> "FolderTask":
        return cls(split=split, folders=[ClassFolder(name="", label=-1, path=str(folder))], deep=False)

    def run(self) -> Part:
        names: list[str] = []
        labels: list[int] = []
        paths: list[str] = []
        lengths: list[int] = []
        passed_over: Counter[str] = Counter()
        for folder in self.folders:
            for name, path, length in sorted(images_under(folder.path, passed_over, self.deep)):
                names.append(f"{folder.name}/{name}" if folder.name else name)
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
            lengths_N=np.maximum(np.array(lengths, np.int64), 0),
            troubles={row: "broken link" for row, length in enumerate(lengths) if length < 0},
            passed_over=dict(passed_over),
            in_classes=bool(self.folders[0].name),
        )


def images_under(folder: str, passed_over: Counter[str], deep: bool = True) -> Iterator[tuple[str, str, int]]:
    """(name relative to the folder, path, size) of every image; -1 is the size of a link that leads nowhere.

    Links are followed, but no folder is listed twice by them, nor one that the folder lies in. Hidden files are
    passed over uncounted.
    """
    above = (parent for path in (Path(folder).absolute(), Path(folder).resolve()) for parent in path.parents)
    pending, linked = [(folder, "")], list[tuple[str, str]]()
    try:
        listed = {identity(str(parent)) for parent in above}
        while pending or linked:
            path, beneath = pending.pop() if pending else linked.pop()
            if identity(path) in listed:
                passed_over["links to folders already listed"] += 1
                continue
            listed.add(identity(path))
            for entry in sorted(os.scandir(path), key=lambda entry: entry.name, reverse=True):
                name = f"{beneath}{entry.name}"
                if entry.name.startswith("."):
                    continue
                if is_folder(entry):
                    if deep:
                        (linked if entry.is_symlink() else pending).append((entry.path, f"{name}/"))
                elif entry.is_symlink() and not Path(entry.path).exists():
                    yield name, entry.path, -1
                elif entry.is_file() and is_image_file(entry.path):
                    yield name, entry.path, entry.stat().st_size
                else:
                    passed_over["things that are no image files"] += 1
    except OSError as error:
        raise SourceError(f"{error.filename or folder} cannot be read: {error.strerror}") from error


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Also of a link that leads to itself, at which the entry's own `is_dir` raises."""
    return Path(entry.path).is_dir() if entry.is_symlink() else entry.is_dir()


def identity(folder: str) -> tuple[int, int]:
    status = os.stat(folder)  # noqa: PTH116
    return status.st_dev, status.st_ino


@dataclass(kw_only=True)
class FolderSource(Source):
    where: str
    splits: dict[str, str]
    """Split -> its folder of class folders."""
    classes: list[str]
    notes: list[str] = field(default_factory=list[str])
    kind = "folder"

    def tasks(self) -> Sequence[IndexTask]:
        labels = {name: label for label, name in enumerate(self.classes)}
        return [
            task
            for split, folder in self.splits.items()
            for task in FolderTask.of_classes(split, Path(folder), labels)
        ]

    def finish(self, parts: Sequence[Part]) -> Found:
        columns = joined(parts)
        if not bool(np.any(columns.labels_N >= 0)):
            raise SourceError(f"{self.where}: its class folders hold no image")
        held = set(columns.labels_N[columns.splits_N == 0].tolist())
        empty = [name for label, name in enumerate(self.classes) if label not in held]
        notes = [f"no {columns.split_names[0]} image: {len(empty)} classes (first: {empty[0]})"] if empty else []
        classes = [class_entry(name) for name in self.classes]
        notes = [*self.notes, *numbers_in_text_order(self.classes), *notes, *notes_of(parts)]
        return Found(columns=columns, classes=classes, notes=notes)


def numbers_in_text_order(names: Sequence[str]) -> list[str]:
    """A note where the folders are numbers and labelled otherwise, as torchvision does too."""
    odd = [(name, label) for label, name in enumerate(names) if name != str(label)]
    if not odd or not all(name.isdecimal() for name in names):
        return []
    name, label = odd[0]
    return [f"class folders are labelled in text order: {name!r} is label {label} (--class-order gives them another)"]


def recognise(path: str, options: SourceOptions) -> Source | None:
    where = Path(path)
    if is_address(path) or not where.is_dir():
        return None
    names = class_folders(where)
    splits = {} if options.layout == "classes" else split_folders(where, names, options)
    if splits:
        wanted = {split: folder for split, folder in splits.items() if options.wants(split)}
        check_wanted(wanted, path, options)
        by_split = {split: class_folders(Path(folder)) for split, folder in splits.items()}
        classes = by_split.get("train") or sorted({name for names in by_split.values() for name in names})
        notes = left_out(where, names, list(splits.values()), options)
        return FolderSource(where=path, splits=wanted, classes=classes, notes=notes)
    if options.layout == "splits":
        raise UsageError(f"{path} has no folder called train, val or test that holds class folders")
    if options.layout is None and has_packed(where):
        return None
    if any(holds_images(where / name) for name in names):
        check_wanted({"train": path} if options.wants("train") else {}, path, options)
        return FolderSource(where=path, splits={"train": path}, classes=names)
    if has_images(where):
        raise UsageError(
            f"{path} is a flat folder of images without labels: give --source-option ground_truth=FILE, or sort them "
            "into class folders"
        )
    return None


def split_folders(where: Path, names: Sequence[str], options: SourceOptions) -> dict[str, str]:
    """Split -> its folder, train first. Raises UsageError where a split has two folders, or none of class folders."""
    splits: dict[str, str] = {}
    for name in names:
        split = SPLIT_NAMES.get(name.lower())
        if split in ("train", "val") and options.wants(split):
            check_sorted(where / name, split)
        if split is not None and class_folders(where / name):
            if split in splits:
                raise UsageError(f"{where} has two folders for {split}: {Path(splits[split]).name} and {name}")
            splits[split] = str(where / name)
    return {split: splits[split] for split in SPLITS if split in splits}


def check_wanted(wanted: Mapping[str, str], path: str, options: SourceOptions) -> None:
    if not wanted:
        raise UsageError(f"{path} has no folder for {options.splits}")


def left_out(where: Path, names: Sequence[str], splits: Sequence[str], options: SourceOptions) -> list[str]:
    """A note on what lies beside the splits' folders. Raises UsageError where these may be classes, and nobody said
    that they are not.
    """
    taken = [Path(folder).name for folder in splits]
    splits_said = ",".join(SPLIT_NAMES[name.lower()] for name in taken)
    others = [name for name in names if name not in taken]
    classes = [name for name in others if name.lower() not in SPLIT_NAMES and holds_images(where / name)]
    if classes and options.layout is None and options.splits is None:
        more = f" and {len(classes) - 3} more" if len(classes) > 3 else ""
        raise UsageError(
            f"{where} has folders of images {', '.join(classes[:3])}{more} beside {', '.join(taken)}: say "
            f"--source-option layout=classes if all are classes, or splits={splits_said} to leave them out"
        )
    files = [entry for entry in os.scandir(where) if not is_folder(entry)]
    others += sorted(entry.name for entry in files if is_image(entry.name) or not Path(entry.path).exists())
    return [f"left out beside {', '.join(taken)}: {', '.join(others)}"] if others else []


def holds_images(folder: Path) -> bool:
    return next(images_under(str(folder), Counter()), None) is not None


def check_sorted(folder: Path, split: str) -> None:
    """Raises UsageError for a split's folder that has images but no class folders: they would be lost in silence."""
    if not class_folders(folder) and has_images(folder):
        other = "val" if split == "train" else "train"
        raise UsageError(
            f"{folder} is a flat folder of images without labels: give --source-option devkit=… or ground_truth=FILE "
            f"(val only), sort them into class folders, or take --source-option splits={other}, or layout=classes if "
            "it is a class"
        )


def class_folders(folder: Path) -> list[str]:
    """Names of the folders in it, sorted; hidden ones are none."""
    try:
        return sorted(
            entry.name for entry in os.scandir(folder) if is_folder(entry) and not entry.name.startswith(".")
        )
    except OSError as error:
        raise UsageError(f"{folder} cannot be read: {error.strerror}") from error


def has_packed(folder: Path) -> bool:
    """Whether tars or Parquet files lie there, as hubs have them: then images beside them are no dataset."""
    folders = [folder, *(folder / name for name in class_folders(folder) if name.lower() in (*SPLIT_NAMES, "data"))]
    return any(
        entry.name.endswith((".tar", ".parquet", ".tar.gz", ".tgz")) and not entry.is_dir()
        for one in folders
        for entry in os.scandir(one)
    )


def has_images(folder: Path) -> bool:
    """Right in it."""
    return next(images_under(str(folder), Counter(), deep=False), None) is not None
