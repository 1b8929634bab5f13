"""Which files and folders of a place are ILSVRC's parts, and in which form: by names, and by a tar's first header.

On a store, where each look costs a request, one listing tells them: archives under their official names, class tars.
"""

import re
from pathlib import Path
from typing import Any, Literal, NamedTuple

from feedline.pipeline.base.errors import UsageError
from feedline.preprocess.sources.base import SourceOptions
from feedline.preprocess.sources.folder import class_folders, has_images
from feedline.preprocess.sources.listing import expand, is_image
from feedline.preprocess.sources.tar_headers import TarError, reader, walk

WNID_TAR = re.compile(r"n\d{8}\.tar")
TRAIN = "ILSVRC2012_img_train.tar"
VAL = "ILSVRC2012_img_val.tar"
DEVKIT = "ILSVRC2012_devkit_t12.tar.gz"
PACKED = (".tar", ".tar.gz", ".tgz", ".parquet")


class Place(NamedTuple):
    """One split of the dataset, in the form it is in."""

    form: Literal["archive", "class tars", "class folders", "flat"]
    path: str


def places(where: Path) -> tuple[Place | None, Place | None]:
    """(train, val), as far as they are recognised."""
    if where.is_file():
        return archive_of(where, "train"), archive_of(where, "val")
    if any(WNID_TAR.fullmatch(entry.name) for entry in where.iterdir()):
        return Place("class tars", str(where)), None
    train, val = split_place(where, "train"), split_place(where, "val")
    if train is None and val is None and has_images(where):
        val = Place("flat", str(where))
    return train, val


def split_place(where: Path, split: str) -> Place | None:
    """The tar or folder of a split; the official name first, an unpacked folder before nothing."""
    named = sorted(
        (entry for entry in where.iterdir() if re.search(rf"(^|_){split}(\.tar)?$", entry.name.lower())),
        key=lambda entry: (not entry.name.startswith("ILSVRC2012_img_"), entry.is_dir(), entry.name),
    )
    found = [archive_of(entry, split) if entry.is_file() else folder_of(entry, split) for entry in named]
    return next((place for place in found if place is not None), None)


def archive_of(path: Path, split: str) -> Place | None:
    """A train tar begins with a tar, a val tar with an image; anything else is not ours."""
    if path.suffix != ".tar":
        return None
    try:
        with reader(str(path), {}) as (read, _):
            first = next(walk(read, 0, 1 << 62, str(path)), None)
    except TarError:
        return None
    name = first.name.rpartition("/")[2] if first is not None else ""
    if split == "train":
        return Place("archive", str(path)) if name.endswith(".tar") else None
    is_val = is_image(name) and (name.startswith("ILSVRC2012_val_") or path.name.lower().startswith("ilsvrc"))
    return Place("archive", str(path)) if is_val else None


def folder_of(path: Path, split: str) -> Place | None:
    if not path.exists():
        raise UsageError(f"{path} is a broken link: mend or remove it")
    tars = [entry.name for entry in path.iterdir() if entry.suffix == ".tar" and not entry.is_dir()]
    if split == "train" and tars:
        return Place("class tars", str(path)) if all(WNID_TAR.fullmatch(name) for name in tars) else None
    if class_folders(path):
        return Place("class folders", str(path))
    return Place("flat", str(path)) if split == "val" and has_images(path) else None


def find_devkit(where: Path | None, options: SourceOptions) -> Path | None:
    """The one that was given, or one that lies in the folder."""
    if options.devkit is not None:
        if not Path(options.devkit).exists():
            raise UsageError(f"devkit {options.devkit} does not exist")
        return Path(options.devkit)
    named = [
        entry
        for entry in (where.iterdir() if where is not None and where.is_dir() else ())
        if "devkit" in entry.name.lower() and (entry.is_dir() or entry.name.endswith((".tar.gz", ".tgz", ".tar")))
    ]
    return min(named, key=lambda entry: ("t12" not in entry.name, entry.is_dir(), entry.name), default=None)


def remote_places(address: str, options: dict[str, Any]) -> tuple[Place | None, Place | None, str | None]:
    """(train, val, devkit's address) at or under `address`; for the val tar alone also the devkit beside it."""
    if address.endswith(PACKED) and not address.endswith((TRAIN, VAL, DEVKIT)):
        return None, None, None
    files = {file.path: file.path.rpartition("/")[2] for file in expand(address, (".tar", DEVKIT), options)}
    official = {name: path for path, name in files.items() if name in (TRAIN, VAL, DEVKIT)}
    train, val = (Place("archive", official[name]) if name in official else None for name in (TRAIN, VAL))
    folders = sorted({path.rpartition("/")[0] for path, name in files.items() if WNID_TAR.fullmatch(name)})
    if train is None and folders:
        train = Place("class tars", train_folder(address, folders))
    if list(official) == [VAL] and address.endswith(VAL):
        import fsspec

        kit = f"{address.removesuffix(VAL)}{DEVKIT}"
        filesystem, path = fsspec.core.url_to_fs(kit, **options)
        official |= {DEVKIT: kit} if filesystem.exists(path) else {}
    return train, val, official.get(DEVKIT)


def train_folder(address: str, folders: list[str]) -> str:
    """The one of the folders with class tars that holds train's. Raises UsageError where that cannot be told."""
    named = [folder for folder in folders if re.search(r"(^|_)train$", folder.rpartition("/")[2].lower())]
    found = named or [folder for folder in folders if folder == address.rstrip("/")]
    if len(found) != 1:
        others = found or folders
        more = f" and {others[1]}" if len(others) > 1 else ""
        raise UsageError(f"class tars are in {others[0]}{more}: give the folder that holds train's as SOURCE")
    return found[0]
