"""An extracted image folder: `train/CLASS/…` and `val/CLASS/…`, or one level of class folders.

Classes are the folders' names in text order; what lies deeper belongs to the class folder it is under. An image
beside the class folders has no label, a broken link no bytes: both go to quarantine. Tasks list some folders each.
"""

import os
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from feedline.pipeline.base.errors import SourceError, UsageError
from feedline.pipeline.base.files import refused_as
from feedline.pipeline.base.text import count_of
from feedline.pipeline.format.manifest import INDEX
from feedline.preprocess.sources.base import SPLITS, Found, Part, Sample, Source, SourceOptions, Task, found
from feedline.preprocess.sources.labels import class_entry
from feedline.preprocess.sources.listing import SPLIT_NAMES, is_image, is_image_file
from feedline.preprocess.sources.tar_headers import BROKEN_LINK

CLASSES_PER_TASK = 16
FOLDERS_LOOKED_INTO = 10


def folder_tasks(split: str, folder: Path, classes: Collection[str]) -> Iterator[Task]:
    """The class folders, then the images beside them. Raises SourceError for a class folder that is none of
    `classes`."""
    names = class_folders(folder)
    for strange in sorted({*names} - {*classes})[:1]:
        raise SourceError(
            f"{folder / strange} is no class of the dataset ({count_of(len(classes), 'class')}): remove or rename it"
        )
    for start in range(0, len(names), CLASSES_PER_TASK):
        folders = {name: f"{folder / name}" for name in names[start : start + CLASSES_PER_TASK]}
        yield partial(list_images, split, folders)
    if has_images(folder):
        yield partial(list_images, split, {"": str(folder)})


def list_images(split: str, folders: Mapping[str, str]) -> Part:
    """Of some classes' folders; "" has images of any class right in it."""
    rows: list[Sample] = []
    others: Counter[str] = Counter()
    for class_name, folder in folders.items():
        for name, path, size in sorted(images_under(folder, others, deep=bool(class_name))):
            full_name = f"{class_name}/{name}" if class_name else name
            rows.append(Sample(full_name, path, 0, max(size, 0), class_name, BROKEN_LINK if size < 0 else ""))
    return Part.of(split, rows, passed_over=dict(others), in_classes="" not in folders)


def images_under(folder: str, others: Counter[str], deep: bool = True) -> Iterator[tuple[str, str, int]]:
    """(name relative to the folder, path, size) of every image; -1 is the size of a link that leads nowhere.

    Links are followed, but no folder is listed twice by them, nor one that the folder lies in. `others` counts what
    is passed over; of hidden files, the images.
    """

    def identity(path: str | Path) -> tuple[int, int]:
        status = os.stat(path)  # noqa: PTH116
        return status.st_dev, status.st_ino

    pending, linked = [(folder, "")], list[tuple[str, str]]()
    try:
        ways = Path(folder).absolute(), Path(folder).resolve()
        listed = {identity(above) for way in ways for above in way.parents}
        while pending or linked:
            path, beneath = pending.pop() if pending else linked.pop()
            if identity(path) in listed:
                others["links to folders already listed"] += 1
                continue
            listed.add(identity(path))
            for entry in sorted(os.scandir(path), key=lambda entry: entry.name, reverse=True):
                name = f"{beneath}{entry.name}"
                if entry.name.startswith("."):
                    if is_image(entry.name.lstrip(".")):
                        others["hidden images"] += 1
                    continue
                if is_folder(entry):
                    if deep:
                        (linked if entry.is_symlink() else pending).append((entry.path, f"{name}/"))
                elif entry.is_symlink() and not Path(entry.path).exists():
                    yield name, entry.path, -1
                elif entry.is_file() and is_image_file(entry.path):
                    yield name, entry.path, entry.stat().st_size
                else:
                    others["things that are no image files"] += 1
    except OSError as error:
        raise SourceError(f"{error.filename or folder} cannot be read: {error.strerror}") from error


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Also of a link that leads to itself, at which the entry's own `is_dir` raises."""
    return Path(entry.path).is_dir() if entry.is_symlink() else entry.is_dir()


def class_folders(folder: Path) -> list[str]:
    """Names of the folders in it, sorted; hidden ones are none."""
    with refused_as(UsageError, f"{folder} cannot be read"):
        names = (entry.name for entry in os.scandir(folder) if is_folder(entry))
        return sorted(name for name in names if not name.startswith("."))


def has_images(folder: Path, deep: bool = False) -> bool:
    return next(images_under(str(folder), Counter(), deep), None) is not None


@dataclass(kw_only=True)
class FolderSource(Source):
    where: str
    splits: dict[str, Path]
    """Split -> its folder of class folders."""
    classes: list[str]
    notes: list[str]
    kind = "folder"

    def tasks(self) -> Sequence[Task]:
        return [task for split, folder in self.splits.items() for task in folder_tasks(split, folder, self.classes)]

    def finish(self, parts: Sequence[Part]) -> Found:
        held = {
            split: {word for part in parts if part.split == split for word in part.labels} for split in self.splits
        }
        if not any(set(self.classes) & words for words in held.values()):
            raise SourceError(f"{self.where}: its class folders hold no image")
        notes = [*self.notes]
        odd = [(name, label) for label, name in enumerate(self.classes) if name != str(label)]
        if odd and all(name.isdecimal() for name in self.classes):  # as torchvision does too
            notes.append(
                f"class folders are labelled in text order: {odd[0][0]!r} is label {odd[0][1]} (--class-order gives "
                "them another)"
            )
        first = next(iter(self.splits))
        empty = [name for name in self.classes if name not in held[first]]
        if empty:
            notes.append(f"no {first} image: {count_of(len(empty), 'class')} (first: {empty[0]})")
        label_of = {name: label for label, name in enumerate(self.classes)}
        return found(parts, [class_entry(name) for name in self.classes], label_of, notes)


# --- recognising --------------------------------------------------------------------------------------


def recognise(path: str, options: SourceOptions) -> Source | None:
    where = Path(path)
    if not where.is_dir():
        return None
    names = class_folders(where)
    splits = {} if options.layout == "classes" else split_folders(where, names, options)
    if options.layout == "splits" and not splits:
        raise UsageError(f"{path} has no folder called train, val or test that holds class folders")
    if splits:
        by_split = {split: class_folders(folder) for split, folder in splits.items()}
        classes = by_split.get("train") or sorted({name for names in by_split.values() for name in names})
        notes = left_out(where, names, [folder.name for folder in splits.values()], options)
        renamed = [item for item in splits.items() if options.wants(item[0]) and item[1].name.lower() != item[0]]
        notes += [f"{folder} is taken as the split {split}" for split, folder in renamed]
    elif options.layout is None and has_packed(where):
        return None
    elif options.layout is None and (below := [*splits_below(where)]):
        hold = "holds the splits: give it" if len(below) == 1 else "hold splits: give that of the images"
        raise UsageError(
            f"{' and '.join(map(str, below[:3]))} {hold} as SOURCE, or take --source-option layout=classes"
        )
    elif any(has_images(where / name, deep=True) for name in names):
        splits, classes, notes = {"train": where}, names, []
    elif has_images(where):
        raise UsageError(
            f"{path} is a flat folder of images without labels: give --source-option ground_truth=FILE, or sort them "
            "into class folders"
        )
    else:
        return None
    wanted = {split: folder for split, folder in splits.items() if options.wants(split)}
    if not wanted:
        raise UsageError(f"{path} has no folder for {options.splits}")
    places = [place for folder in wanted.values() for place in sorted(folder.glob(".*/"))]
    if hidden := [str(place) for place in places if has_images(place, True)]:
        notes.append(f"passed over: hidden folders with images ({', '.join(hidden)}): rename those that are classes")
    return FolderSource(where=path, splits=wanted, classes=classes, notes=notes)


def splits_below(folder: Path, depth: int = 3) -> Iterator[Path]:
    """Folders in which others are called as splits and hold classes or images, at most so deep. Of many folders only
    the first are looked into: those are classes, and may hold a million files."""
    for name in class_folders(folder)[:FOLDERS_LOOKED_INTO] if depth else ():
        inner = [place for place in class_folders(folder / name) if place.lower() in SPLIT_NAMES]
        if any(class_folders(place) or has_images(place) for place in (folder / name / split for split in inner)):
            yield folder / name
        else:
            yield from splits_below(folder / name, depth - 1)


def split_folders(where: Path, names: Sequence[str], options: SourceOptions) -> dict[str, Path]:
    """Split -> its folder, train first.

    Raises UsageError where a split has two folders, or images but no class folders: they would be lost in silence.
    """
    splits: dict[str, Path] = {}
    for name in names:
        folder, split = where / name, SPLIT_NAMES.get(name.lower())
        if split is None:
            continue
        if class_folders(folder):
            if split in splits:
                raise UsageError(f"{where} has two folders for {split}: {splits[split].name} and {name}")
            splits[split] = folder
        elif split != "test" and options.wants(split) and has_images(folder):
            other = "val" if split == "train" else "train"
            raise UsageError(
                f"{folder} is a flat folder of images without labels: give --source-option devkit=… or "
                "ground_truth=… (val only), sort them into class folders, or take --source-option "
                f"splits={other}, or layout=classes if it is a class"
            )
    return {split: splits[split] for split in SPLITS if split in splits}


def left_out(where: Path, names: Sequence[str], taken: Sequence[str], options: SourceOptions) -> list[str]:
    """A note on what lies beside the splits' folders. Raises UsageError where these may be classes, and nobody said
    that they are not.
    """
    others = [name for name in names if name not in taken]
    classes = [name for name in others if name.lower() not in SPLIT_NAMES and has_images(where / name, deep=True)]
    if classes and options.layout is None and options.splits is None:
        more = f" and {len(classes) - 3} more" if len(classes) > 3 else ""
        splits = ",".join(SPLIT_NAMES[name.lower()] for name in taken)
        raise UsageError(
            f"{where} has folders of images {', '.join(classes[:3])}{more} beside {', '.join(taken)}: say "
            f"--source-option layout=classes if all are classes, or splits={splits} to leave them out"
        )
    files = [entry for entry in os.scandir(where) if not is_folder(entry)]
    others += sorted(entry.name for entry in files if is_image(entry.name) or not Path(entry.path).exists())
    return [f"left out beside {', '.join(taken)}: {', '.join(others)}"] if others else []


def has_packed(folder: Path) -> bool:
    """Whether tars or Parquet files lie there, as hubs have them, or what `prepare` wrote: then images beside them
    are no dataset."""
    names = class_folders(folder)
    folders = [folder, *(folder / name for name in names if name.lower() in (*SPLIT_NAMES, "data"))]
    indices = (folder / name / split / INDEX for name in names for split in SPLITS)
    return any(os.path.exists(index) for index in indices) or any(  # noqa: PTH110 - Path's raises where it may not look
        entry.name.endswith((".tar", ".parquet", ".tar.gz", ".tgz")) and not entry.is_dir()
        for place in folders
        for entry in os.scandir(place)
    )
