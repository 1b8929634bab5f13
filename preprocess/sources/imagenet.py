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
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from feedline.pipeline.base.errors import SourceError, UsageError
from feedline.preprocess.sources.base import Found, Part, Sample, Source, SourceOptions, Task, found
from feedline.preprocess.sources.devkit import Devkit, Truth, read_devkit
from feedline.preprocess.sources.folder import class_folders, folder_tasks, has_images, list_images
from feedline.preprocess.sources.labels import are_numbers, class_entry, class_id, class_names, odd_label
from feedline.preprocess.sources.listing import SPLIT_NAMES, expand, is_image, is_pattern
from feedline.preprocess.sources.reading import reached
from feedline.preprocess.sources.tar_headers import BLOCK_BYTES, reader, walk

CLASS_TARS_PER_TASK = 16
WNID_TAR = re.compile(r"n\d{8}\.tar")
BOTH_FORMS = "holds class tars and class folders: keep one form of all classes"
LIKE_A_TAR = re.compile(r"\.(tar|tgz|zip)(\.|$)")
TRAIN = "ILSVRC2012_img_train.tar"
VAL = "ILSVRC2012_img_val.tar"
OFFICIAL = "ILSVRC2012_img_"
DEVKIT = "ILSVRC2012_devkit_t12.tar.gz"
PACKED = (".tar", ".tar.gz", ".tgz", ".parquet")


class Place(NamedTuple):
    """One split of the dataset, in the form it is in."""

    form: Literal["archive", "class tars", "class folders", "flat"]
    path: str


class ClassTar(NamedTuple):
    """A range of a file that is a tar of one class's images."""

    name: str
    """"" is a tar without a class."""
    path: str
    offset: int = 0
    length: int = -1
    """-1: to the file's end."""


def walk_tars(split: str, tars: Sequence[ClassTar], options: Mapping[str, Any]) -> Part:
    """From the tars' headers: every file but hidden ones, for a name is not trusted to say what is an image.
    `options` are fsspec's."""
    rows: list[Sample] = []
    for tar in tars:
        is_inside = tar.name and not tar.path.endswith(f"/{tar.name}.tar")
        where = f"{tar.path}: {tar.name}.tar" if is_inside else tar.path
        with reader(tar.path, options) as (read, size):
            end = tar.offset + tar.length if tar.length >= 0 else size
            if end > size:
                raise SourceError(f"{where} is cut short: the file ends at byte {size}: copy or download it again")
            for name, offset, length, trouble in walk(read, tar.offset, end, where):
                if not name.rpartition("/")[2].startswith("."):
                    full_name = f"{tar.name}/{name}" if tar.name else name
                    rows.append(Sample(full_name, tar.path, offset, length, tar.name, trouble))
    return Part.of(split, rows, [tar.path for tar in tars], in_classes=bool(tars[0].name))


@dataclass(kw_only=True)
class IlsvrcSource(Source):
    where: str
    places: dict[str, Place]
    """By split."""
    devkit: Devkit | None
    truth: Truth | None
    options: SourceOptions
    kind = "ilsvrc"

    def __post_init__(self) -> None:
        train = self.places.get("train")
        self.class_tars = class_tars(train, self.options.storage_options) if train is not None else []
        names = [tar.name for tar in self.class_tars] or folders_of(train)
        if self.devkit is None:
            named = names or folders_of(self.places.get("val")) or self._truth_names()
            self.classes = [class_entry(name) for name in named]
        else:
            self.classes = self.devkit.classes
        self.label_of = {class_id(entry): label for label, entry in enumerate(self.classes)}
        if self.devkit is not None and train is not None:
            for strange in sorted({*names} - self.label_of.keys())[:1]:
                known = f"{len(self.classes)} of {self.devkit.where}"
                raise SourceError(f"{train.path}: class {strange} is none of the {known}")
            if missing := sorted(self.label_of.keys() - {*names}):
                form = "class folders" if train.form == "class folders" else "class tars"
                lack = f"lacks {len(missing)} of {len(self.classes)} {form} (first: {missing[0]})"
                self._check_allowed(f"{train.path} {lack}")

    def _check_allowed(self, lack: str) -> None:
        if self.options.missing_classes != "allow":
            raise SourceError(f"{lack}: complete it, or allow it with --source-option missing_classes=allow")

    def tasks(self) -> Sequence[Task]:
        storage, tars = self.options.storage_options, self.class_tars
        tasks: list[Task] = [
            partial(walk_tars, "train", tars[start : start + CLASS_TARS_PER_TASK], storage)
            for start in range(0, len(tars), CLASS_TARS_PER_TASK)
        ]
        for split, place in self.places.items():
            if place.form == "class folders":
                tasks += folder_tasks(split, Path(place.path), self.label_of)
            elif place.form == "flat":
                tasks.append(partial(list_images, split, {"": place.path}))
            elif split == "val":
                tasks.append(partial(walk_tars, split, [ClassTar("", place.path)], storage))
        return tasks

    def finish(self, parts: Sequence[Part]) -> Found:
        train, val = self.places.get("train"), self.places.get("val")
        held = {word for part in parts if part.split == "train" for word in part.labels}
        empty = next((name for name in self.label_of if name not in held), None)
        if train is not None and empty is not None:
            self._check_allowed(f"{train.path}: class {empty} has no image")
        if val is not None and not any(len(part) for part in parts if part.split == "val"):
            raise SourceError(f"{val.path} holds no image")
        if self.truth is not None and val is not None and val.form != "class folders":
            ids = self.devkit.label_of_id if self.devkit is not None else {}
            of_names = partial(self.truth.labels, classes=self.classes, label_of_id=ids)
            parts = [part if part.split == "train" else replace(part, labels=of_names(part.names)) for part in parts]
        return found(parts, self.classes, self.label_of)

    def _truth_names(self) -> list[str]:
        """Of the classes that the ground truth alone tells."""
        if self.truth is None:
            return []
        counts = Counter(word for _, word in self.truth.rows)
        if odd := odd_label(counts):
            raise SourceError(f"{self.truth.where} says {odd[0]!r} beside {odd[1]!r}: numbers or words? Mend it")
        return class_names(counts, are_numbers(counts), lambda _: self.where)[0]


def folders_of(place: Place | None) -> list[str]:
    return class_folders(Path(place.path)) if place is not None and place.form == "class folders" else []


def class_tars(train: Place, options: dict[str, Any]) -> list[ClassTar]:
    """Train's class tars, sorted by name: the outer tar's members, or the folder's files."""
    path = train.path
    tars: list[ClassTar] = []
    if train.form == "archive":
        with reader(path, options, ahead_bytes=BLOCK_BYTES) as (read, size):
            for member in walk(read, 0, size, path):
                if member.name.endswith(".tar"):
                    if member.trouble:
                        raise SourceError(f"{path}: {member.name!r} is a {member.trouble}: pack the files themselves")
                    name = member.name.rpartition("/")[2].removesuffix(".tar")
                    tars.append(ClassTar(name, path, member.offset, member.length))
        if not tars:
            raise SourceError(f"{path} holds no class tars: give ILSVRC2012_img_train.tar as downloaded")
    elif train.form == "class tars":
        files = [file for file in expand(path, (".tar",), options) if WNID_TAR.fullmatch(file.under)]
        tars = [ClassTar(file.under.removesuffix(".tar"), file.path) for file in files]
    tars.sort(key=lambda tar: tar.name)
    for tar, following in itertools.pairwise(tars):
        if tar.name == following.name:
            raise SourceError(f"{path} holds class tar {tar.name}.tar twice")
    return tars


# --- recognising --------------------------------------------------------------------------------------


def recognise(path: str, options: SourceOptions) -> Source | None:
    """An ILSVRC archive, a folder with some, or a flat folder of images with a devkit or ground truth."""
    if is_pattern(path):
        return None
    if "://" in path:
        places, kit = remote_places(path, options.storage_options)
        is_ours = bool(places)
    else:
        where = Path(path)
        places = local_places(where)
        alone = "val" in places and where.is_file() and options.ground_truth is None
        kit = devkit_beside(where.parent if alone else where)  # train's labels need none: they are its tars' ranks
        forms = {place.form for place in places.values()}
        has_devkit = kit is not None or options.devkit is not None
        is_flat_with_truth = "flat" in forms and options.ground_truth is not None
        is_ours = bool(forms & {"archive", "class tars"}) or (bool(forms) and has_devkit) or is_flat_with_truth
        if where.is_dir() and places and options.layout != "classes":
            refuse_lost(where, places, options, is_ours)
    if not is_ours:
        return None
    kit = options.devkit or kit
    devkit = read_devkit(kit, options.storage_options) if kit is not None else None
    places = {split: place for split, place in places.items() if options.wants(split)}
    val, truth = places.get("val"), None
    if options.ground_truth is not None:
        truth = Truth.read(options.ground_truth)
    elif devkit is not None and devkit.truth is not None:
        truth = Truth.parse(devkit.truth, devkit.where)
    elif val is not None and val.form != "class folders":
        raise UsageError(
            f"{val.path} has no ground truth: put {DEVKIT} beside it, give --source-option "
            "devkit=… or ground_truth=…, or take --source-option splits=train"
        )
    return IlsvrcSource(where=path, places=places, devkit=devkit, truth=truth, options=options)


def local_places(where: Path) -> dict[str, Place]:
    """By split, train first, as far as they are recognised."""
    if where.is_file():
        return {split: Place("archive", str(where)) for split in ("train", "val") if is_archive(where, split)}
    places = {split: place for split in ("train", "val") if (place := split_place(where, split)) is not None}
    if any(WNID_TAR.fullmatch(entry.name) for entry in where.iterdir()):
        other = places.get("train")
        folders = {f"{name}.tar" for name in class_folders(where)}
        if any(WNID_TAR.fullmatch(name) and not (where / name).exists() for name in folders):
            raise UsageError(f"{where} {BOTH_FORMS}")
        if other is not None and other.form != "archive":
            raise UsageError(f"{where} holds class tars, and {other.path} is train too: keep one of the two")
        if other is None:  # the archive holds them all
            places = {**places, "train": Place("class tars", str(where))}
    return places or ({"val": Place("flat", str(where))} if has_images(where) else {})


def refuse_lost(where: Path, places: Mapping[str, Place], options: SourceOptions, is_ours: bool) -> None:
    """Raises UsageError for what looks like a split, or like a class, and would be passed over in silence. Beside
    folders of another dataset only what is packed, for other kinds of source look at folders."""
    for split in ("train", "val"):
        for entry in named_as(where, split) if split not in places and options.wants(split) else ():
            packed = not entry.is_dir()
            if (packed and (is_ours or is_exact(entry))) or (is_ours and not packed and any(entry.iterdir())):
                other = "val" if split == "train" else "train"
                raise UsageError(f"{entry} is in no form of {split} that can be read: mend it, or take "
                                 f"--source-option splits={other}")  # fmt: skip
    train = places.get("train")
    folder = Path(train.path) if train is not None and train.form == "class tars" else where
    if options.wants("train") and any(WNID_TAR.fullmatch(entry.name) for entry in folder.iterdir()):
        taken = {*(place.path for place in places.values()), *map(str, named_as(where, "val"))}
        for tar in sorted(entry for entry in folder.iterdir() if LIKE_A_TAR.search(entry.name.lower())):
            known = WNID_TAR.fullmatch(tar.name) or tar.name.startswith("ILSVRC2012_") or "devkit" in tar.name
            if not known and str(tar) not in taken and not tar.name.startswith("."):
                raise UsageError(f"{folder} holds class tars and {tar.name}, which is none: move it elsewhere")


def named_as(where: Path, split: str) -> list[Path]:
    """What is called after the split: under the official name first, then under the split's alone."""
    words = "|".join(word for word, of in SPLIT_NAMES.items() if of == split)
    name = re.compile(rf"(^|.*_)({words})(\.tar|\.tar\.gz|\.tgz|\.zip)?")
    named = [entry for entry in where.iterdir() if name.fullmatch(entry.name.lower())]

    def order(entry: Path) -> tuple[bool, bool, bool, str]:
        return not entry.name.startswith(OFFICIAL), not is_exact(entry), entry.is_dir(), entry.name

    return sorted(named, key=order)


def is_exact(entry: Path) -> bool:
    """Whether it is called as the archives are, or as a split is, with nothing before it (as in `old_train`)."""
    return entry.name.startswith(OFFICIAL) or entry.name.lower().partition(".")[0] in SPLIT_NAMES


def split_place(where: Path, split: str) -> Place | None:
    """The archive, or else the folder of a split. Raises UsageError where two may be meant."""
    named = named_as(where, split)
    found = {entry: place for entry in named if (place := place_at(entry, split)) is not None}
    if not found:
        for entry in named:
            if entry.name.lower() == split and not entry.exists():
                raise UsageError(f"{entry} is a broken link: mend or remove it")
        return None
    first, *others = found
    if is_exact(named[0]) and not is_exact(first):  # it is there, and cannot be read: nothing stands in for it
        return None
    plain = [entry for entry in found if entry.name.lower() in SPLIT_NAMES]
    if len(plain) > 1 or (others and first.is_dir() and not plain):
        one, other = (plain if len(plain) > 1 else [first, *others])[:2]
        raise UsageError(f"{where} has two folders for {split}: {one.name} and {other.name}")
    return found[first]


def place_at(entry: Path, split: str) -> Place | None:
    if not entry.is_dir():
        return Place("archive", str(entry)) if is_archive(entry, split) else None
    tars = (
        {tar.stem for tar in entry.glob("*.tar") if WNID_TAR.fullmatch(tar.name)} if split == "train" else set[str]()
    )
    folders = {*class_folders(entry)}
    if tars and not folders <= tars:  # a class may be half unpacked
        raise UsageError(f"{entry} {BOTH_FORMS}")
    if tars:
        return Place("class tars", str(entry))
    if folders:
        return Place("class folders", str(entry))
    archive = entry / (TRAIN if split == "train" else VAL)
    if archive.is_file() and is_archive(archive, split):
        return Place("archive", str(archive))
    return Place("flat", str(entry)) if split == "val" and has_images(entry) else None


def is_archive(path: Path, split: str) -> bool:
    """A train tar begins with a tar, a val tar with an image; anything else is not ours."""
    if path.suffix != ".tar":
        return False
    try:
        with reader(str(path), {}) as (read, _):
            first = next(walk(read, 0, 1 << 62, str(path)), None)
    except SourceError:
        return False
    name = first.name.rpartition("/")[2] if first is not None else ""
    if split == "train":
        return name.endswith(".tar")
    return is_image(name) and (name.startswith("ILSVRC2012_val_") or path.name.lower().startswith("ilsvrc"))


def devkit_beside(folder: Path) -> str | None:
    named = [
        entry
        for entry in (folder.iterdir() if folder.is_dir() else ())
        if "devkit" in entry.name.lower() and (entry.is_dir() or entry.name.endswith((".tar.gz", ".tgz", ".tar")))
    ]
    ranked = sorted(named, key=lambda entry: ("t12" not in entry.name, entry.is_dir(), entry.name))
    return str(ranked[0]) if ranked else None


def remote_places(address: str, options: dict[str, Any]) -> tuple[dict[str, Place], str | None]:
    """(places by split, devkit's address) at or under `address`; for the val tar alone also the devkit beside it."""
    if address.endswith(PACKED) and not address.endswith((TRAIN, VAL, DEVKIT)):
        return {}, None
    files = {file.path: file.path.rpartition("/")[2] for file in expand(address, (".tar", DEVKIT), options)}
    official = {name: path for path, name in files.items() if name in (TRAIN, VAL, DEVKIT)}
    folders = sorted({path.rpartition("/")[0] for path, name in files.items() if WNID_TAR.fullmatch(name)})
    places: dict[str, Place] = {}
    if TRAIN in official:
        places["train"] = Place("archive", official[TRAIN])
    elif folders:
        places["train"] = Place("class tars", train_folder(address, folders))
    if VAL in official:
        places["val"] = Place("archive", official[VAL])
    if list(official) == [VAL] and address.endswith(VAL):
        kit = f"{address.removesuffix(VAL)}{DEVKIT}"
        filesystem, path = reached(kit, options)
        official |= {DEVKIT: kit} if filesystem.exists(path) else {}
    return places, official.get(DEVKIT)


def train_folder(address: str, folders: list[str]) -> str:
    """The one of the folders with class tars that holds train's. Raises UsageError where that cannot be told."""
    named = [folder for folder in folders if re.search(r"(^|_)train$", folder.rpartition("/")[2].lower())]
    candidates = named or [folder for folder in folders if folder == address.rstrip("/")]
    if len(candidates) != 1:
        places = " and ".join((candidates or folders)[:2])
        raise UsageError(f"class tars are in {places}: give the folder that holds train's as SOURCE")
    return candidates[0]
