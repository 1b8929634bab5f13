"""Which files and folders of a place are ILSVRC's parts, and in which form: by names, and by a tar's first header.

On a store, where each look costs a request, one listing tells them: archives under their official names, class tars.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from feedline.pipeline.base.errors import UsageError
from feedline.preprocess.sources.base import SourceOptions, is_image
from feedline.preprocess.sources.folder import class_folders, has_images
from feedline.preprocess.sources.listing import expand
from feedline.preprocess.sources.tar_headers import Member, TarError, reader, walk

WNID_TAR = re.compile(r"n\d{8}\.tar")
TRAIN, VAL, DEVKIT = OFFICIAL = (
    "ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar", "ILSVRC2012_devkit_t12.tar.gz",
)  # fmt: skip
PACKED = (".tar", ".tar.gz", ".tgz", ".parquet")

Form = Literal["archive", "class tars", "class folders", "flat"]


@dataclass(frozen=True, kw_only=True)
class Place:
    """One split of the dataset, in the form it is in."""

    form: Form
    path: str


def places(where: Path) -> tuple[Place | None, Place | None]:
    """(train, val), as far as they are recognised."""
    if where.is_file():
        return (archive_of(where, "train"), archive_of(where, "val")) if where.suffix == ".tar" else (None, None)
    if any(WNID_TAR.fullmatch(entry.name) for entry in os.scandir(where)):
        return Place(form="class tars", path=str(where)), None
    train, val = split_place(where, "train"), split_place(where, "val")
    if train is None and val is None and has_images(where):
        val = Place(form="flat", path=str(where))
    return train, val


def remote_places(address: str, options: dict[str, Any]) -> tuple[Place | None, Place | None, str | None]:
    """(train, val, devkit's address) at or under `address`; for the val tar alone also the devkit beside it."""
    if address.endswith(PACKED) and not address.endswith(OFFICIAL):
        return None, None, None
    listed = [file.path for file in expand(address, (".tar", DEVKIT), options)]
    found = {name: path for path in listed if (name := path.rpartition("/")[2]) in OFFICIAL}
    inner = [path for path in listed if WNID_TAR.fullmatch(path.rpartition("/")[2])]
    train, val = (Place(form="archive", path=found[name]) if name in found else None for name in (TRAIN, VAL))
    if train is None and inner:
        train = Place(form="class tars", path=train_folder(address, inner))
    if set(found) == {VAL} and address.endswith(VAL):
        import fsspec

        kit = f"{address.removesuffix(VAL)}{DEVKIT}"
        filesystem, path = fsspec.core.url_to_fs(kit, **options)
        found |= {DEVKIT: kit} if filesystem.exists(path) else {}
    return train, val, found.get(DEVKIT)


def train_folder(address: str, class_tars: list[str]) -> str:
    """The one folder that holds train's class tars. Raises UsageError where that cannot be told."""
    folders = sorted({path.rpartition("/")[0] for path in class_tars})
    named = [one for one in folders if re.search(r"(^|_)train$", one.rpartition("/")[2].lower())]
    found = named or [one for one in folders if one == address.rstrip("/")]
    if len(found) != 1:
        others = found or folders
        more = f" and {others[1]}" if len(others) > 1 else ""
        raise UsageError(f"class tars are in {others[0]}{more}: give the folder that holds train's as SOURCE")
    return found[0]


def split_place(where: Path, split: str) -> Place | None:
    """The tar or folder of a split; the official name first, an unpacked folder before nothing."""
    named = sorted(
        (entry for entry in where.iterdir() if re.search(rf"(^|_){split}(\.tar)?$", entry.name.lower())),
        key=lambda entry: (not entry.name.startswith("ILSVRC2012_img_"), entry.is_dir(), entry.name),
    )
    found = [place for place in (place_of(entry, split) for entry in named) if place is not None]
    return found[0] if found else None


def place_of(entry: Path, split: str) -> Place | None:
    if not entry.exists():
        raise UsageError(f"{entry} is a broken link: mend or remove it")
    if entry.is_file():
        return archive_of(entry, split) if entry.suffix == ".tar" else None
    inner = [child for child in entry.iterdir() if child.suffix == ".tar" and not child.is_dir()]
    if split == "train" and inner:
        return (
            Place(form="class tars", path=str(entry)) if all(WNID_TAR.fullmatch(tar.name) for tar in inner) else None
        )
    if class_folders(entry):
        return Place(form="class folders", path=str(entry))
    return Place(form="flat", path=str(entry)) if split == "val" and has_images(entry) else None


def archive_of(path: Path, split: str) -> Place | None:
    """A train tar begins with a tar, a val tar with an image; anything else is not ours."""
    first = first_member(path)
    if first is None:
        return None
    name = first.name.rpartition("/")[2]
    if split == "train":
        return Place(form="archive", path=str(path)) if name.endswith(".tar") else None
    val = is_image(name) and (name.startswith("ILSVRC2012_val_") or path.name.lower().startswith("ilsvrc"))
    return Place(form="archive", path=str(path)) if val else None


def first_member(path: Path) -> Member | None:
    try:
        with reader(str(path), {}) as (read, _):
            return next(walk(read, 0, 1 << 62, str(path)), None)
    except TarError:
        return None


def find_devkit(where: Path, options: SourceOptions) -> Path | None:
    if options.devkit is not None:
        if not Path(options.devkit).exists():
            raise UsageError(f"devkit {options.devkit} does not exist")
        return Path(options.devkit)
    if not where.is_dir():
        return None
    named = [
        entry
        for entry in where.iterdir()
        if "devkit" in entry.name.lower() and (entry.is_dir() or entry.name.endswith((".tar.gz", ".tgz", ".tar")))
    ]
    ranked = sorted(named, key=lambda entry: ("t12" not in entry.name, entry.is_dir(), entry.name))
    return ranked[0] if ranked else None
