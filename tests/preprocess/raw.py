"""Raw datasets in small: ILSVRC's forms unpacked from a synthetic set, and a source walked the way a job does it."""

import pickle
import tarfile
from pathlib import Path
from typing import Any

from feedline.preprocess.sources.base import Found, Source, open_source

TRAIN = "ILSVRC2012_img_train.tar"
VAL = "ILSVRC2012_img_val.tar"
DEVKIT = "ILSVRC2012_devkit_t12.tar.gz"

Samples = dict[tuple[str, str], tuple[int, bytes]]
"""(split, key) -> (label, bytes)."""


def indexed(path: Path | str, staging: Path | None = None, **options: Any) -> Found:
    """The source's tasks travel and their parts come back, as between a driver and its executors."""
    source: Source = open_source(str(path), **options)
    source = source if staging is None else source.stage(staging)
    tasks = pickle.loads(pickle.dumps(list(source.tasks())))
    return source.finish(pickle.loads(pickle.dumps([task() for task in tasks])))


def samples(found: Found) -> Samples:
    columns = found.columns
    read: Samples = {}
    for row, key in enumerate(columns.keys):
        with Path(columns.paths[columns.path_N[row]]).open("rb") as file:
            file.seek(int(columns.offsets_N[row]))
            data = file.read(int(columns.lengths_N[row]))
        read[columns.split_names[columns.splits_N[row]], key] = (int(columns.labels_N[row]), data)
    return read


def unpack(tar: Path, folder: Path) -> Path:
    folder.mkdir(parents=True)
    with tarfile.open(tar) as archive:
        archive.extractall(folder, filter="data")
    return folder


def class_tars(ilsvrc: Path, folder: Path) -> Path:
    """The train tar unpacked one level."""
    return unpack(ilsvrc / TRAIN, folder)


def class_folders(ilsvrc: Path, folder: Path) -> Path:
    """The train tar unpacked two levels, without the class tars."""
    class_tars(ilsvrc, folder)
    for tar in sorted(folder.glob("*.tar")):
        unpack(tar, folder / tar.stem)
        tar.unlink()
    return folder


def link(folder: Path, **entries: Path) -> Path:
    """A folder of links, to put parts together without copying. `TRAIN` and the like stand for official names."""
    folder.mkdir(parents=True)
    for name, target in entries.items():
        (folder / {"TRAIN": TRAIN, "VAL": VAL, "DEVKIT": DEVKIT}.get(name, name)).symlink_to(target)
    return folder


def write_tar(path: Path, members: list[tuple[str, bytes]]) -> Path:
    import io

    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path
