"""A synthetic ImageNet: `synth(SynthConfig(...))`.

Pictures are drawn in parallel, a bounded number ahead, and stream straight into their place: into tars of tars, or
into class folders. Everything is made in a hidden folder beside the result and appears with one rename; the same
settings give the same bytes for any number of processes.
"""

import json
import shutil
import signal
import tarfile
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, closing, contextmanager, suppress
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any

from feedline.pipeline.base.errors import FeedlineError, UsageError
from feedline.pipeline.base.files import refused_as, sole_use
from feedline.pipeline.base.process import die_with, usable_cores
from feedline.preprocess.sources.imagenet import DEVKIT, TRAIN, VAL
from feedline.preprocess.sources.staging import add, inner_tar
from feedline.preprocess.synth.inventory import SynthConfig, SynthPlan
from feedline.preprocess.synth.pictures import picture_bytes

STAMP = "synth.json"
FEW_IMAGES = 64
"""Fewer are drawn sooner than processes start."""
AHEAD = 8
"""Pictures drawn or waiting for each process."""

OnProgress = Callable[[int, int], None]


def synth(config: SynthConfig, on_progress: OnProgress = lambda done, of: None) -> dict[str, Any]:
    """Makes the dataset at `config.out`, or finds that it is there already; returns what it is (as in synth.json).

    Raises UsageError when something else is there.
    """
    out = Path(config.out)
    already = present(out, config)
    if already is not None:
        return already | {"already_complete": True}
    plan = SynthPlan(config)
    result: dict[str, Any] = {
        "settings": config.settings(),
        "train_samples": sum(plan.train_sizes),
        "val_samples": len(plan.val),
        "bytes": 0,
        "wnids": [synset.wnid for synset in plan.synsets],
        "oddities": {file.name: file.picture.oddity for file in plan.files() if file.picture.oddity},
    }

    def counted(stream: Generator[bytes]) -> Generator[bytes]:
        for done, data in enumerate(stream, 1):
            result["bytes"] += len(data)
            on_progress(done, config.images)
            yield data

    with hidden_folder(out) as folder:
        with closing(pictures(plan)) as stream:
            (write_archives if config.layout == "ilsvrc" else write_folders)(plan, folder, counted(stream))
        names = (TRAIN, VAL, DEVKIT) if config.layout == "ilsvrc" else ("train", "val")
        result["files"] = {name: extent(folder / name) for name in names}
        (folder / STAMP).write_text(json.dumps(result, indent=1) + "\n")
        try:
            folder.rename(out)  # over nothing, or an empty folder
        except OSError as error:
            raise UsageError(f"{out} cannot become the dataset ({error.strerror}): choose another folder") from error
    return result


def present(out: Path, config: SynthConfig) -> dict[str, Any] | None:
    """The stamp, if this very dataset is there; None if nothing is. Raises UsageError otherwise."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return None
    stamp: Any = None
    with suppress(OSError, ValueError):
        stamp = json.loads((out / STAMP).read_text())
    if not isinstance(stamp, dict) or not isinstance(stamp.get("files"), dict):
        raise UsageError(f"{out} holds something else: choose another folder")
    if stamp.get("settings") != config.settings():
        raise UsageError(f"{out} holds another synthetic dataset: choose another folder, or remove it")
    if any(extent(out / name) != size for name, size in stamp["files"].items()):
        raise UsageError(f"{out} holds this dataset, but some of its files are gone: remove it")
    return stamp


def extent(path: Path) -> int:
    """Bytes of an archive, files of a split's folder; -1 where there is nothing."""
    if path.is_dir():
        return sum(1 for _ in path.glob("*/*"))
    return path.stat().st_size if path.exists() else -1


@contextmanager
def hidden_folder(out: Path) -> Generator[Path]:
    """A fresh folder beside `out`, gone on the way out unless it was published; one process at a time."""
    folder = out.absolute().with_name(f".{out.name}.synth")
    with refused_as(UsageError, f"{folder.parent} cannot be written"):
        folder.mkdir(parents=True, exist_ok=True)
    if folder.is_symlink():
        raise UsageError(f"{folder} is a link: remove it")
    busy = f"another `feedline synth` is writing {out}: wait for it"
    with refused_as(FeedlineError, f"{out} cannot be written"), sole_use(folder, busy), ExitStack() as end:
        end.callback(shutil.rmtree, folder, ignore_errors=True)
        for entry in folder.iterdir():  # what a killed run left
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()
        yield folder


def write_archives(plan: SynthPlan, folder: Path, stream: Generator[bytes]) -> None:
    with tarfile.open(folder / TRAIN, "w") as outer:
        for label, files in plan.train():
            with inner_tar(outer, f"{plan.synsets[label].wnid}.tar") as tar:
                for name, _ in files:
                    add(tar, name, next(stream))
    with tarfile.open(folder / VAL, "w") as tar:
        for name, _ in plan.val:
            add(tar, name, next(stream))
    (folder / DEVKIT).write_bytes(plan.devkit())


def write_folders(plan: SynthPlan, folder: Path, stream: Generator[bytes]) -> None:
    for name, picture in plan.files():
        class_folder = folder / picture.split / plan.synsets[picture.label].wnid
        class_folder.mkdir(parents=True, exist_ok=True)
        (class_folder / name).write_bytes(next(stream))


# --- drawing ------------------------------------------------------------------------------------------


def pictures(plan: SynthPlan) -> Generator[bytes]:
    """The bytes of `plan.files`, in order. Close it to end the processes early. Raises FeedlineError."""
    workers, px = plan.config.num_workers, plan.config.long_side_px
    if workers is None:
        workers = 0 if plan.config.images <= FEW_IMAGES else usable_cores()
    if not workers:
        yield from (picture_bytes(file.picture, px) for file in plan.files())
        return
    pool = ProcessPoolExecutor(workers, get_context("spawn"), start_worker)
    coming: deque[Future[bytes]] = deque()
    try:
        for file in plan.files():
            coming.append(pool.submit(picture_bytes, file.picture, px))
            if len(coming) == AHEAD * workers:
                yield coming.popleft().result()
        while coming:
            yield coming.popleft().result()
    except BrokenProcessPool as error:
        raise FeedlineError("a process that draws pictures was killed (out of memory?): run again") from error
    finally:
        pool.shutdown(cancel_futures=True)


def start_worker() -> None:
    """It ends with its parent, however that ends; and the parent decides what Ctrl-C ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    die_with((parent and parent.pid) or 0)
    import cv2

    cv2.setNumThreads(1)
