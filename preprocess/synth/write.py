"""A synthetic ImageNet: `synth(SynthConfig(...))`.

Pictures are drawn in parallel and stream straight into their place: into tars of tars whose outer header is patched
when the inner tar is done, or into class folders. Everything is made in a hidden folder beside the result and appears
with one rename; the same settings give the same bytes for any number of processes.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from feedline.pipeline.base.errors import FeedlineError, UsageError
from feedline.preprocess.sources.staging import tar_file
from feedline.preprocess.synth.devkit_files import devkit_bytes
from feedline.preprocess.synth.drawing import pictures
from feedline.preprocess.synth.inventory import SynthConfig, SynthPlan

STAMP = "synth.json"
TRAIN_TAR = "ILSVRC2012_img_train.tar"
VAL_TAR = "ILSVRC2012_img_val.tar"
DEVKIT = "ILSVRC2012_devkit_t12.tar.gz"

OnProgress = Callable[[int, int], None]


def synth(config: SynthConfig, on_progress: OnProgress | None = None) -> dict[str, Any]:
    """Makes the dataset at `config.out`, or finds that it is there already; returns what it is (as in synth.json).

    Raises UsageError when something else is there.
    """
    out = Path(config.out)
    already = present(out, config)
    if already is not None:
        return already | {"already_complete": True}
    plan = SynthPlan(config)
    with hidden_folder(out) as folder:
        written = Writing(plan, folder, on_progress or (lambda *_: None))
        written.run()
        said = describe(plan, written.bytes) | {"files": written.files}
        (folder / STAMP).write_text(json.dumps(said, indent=1) + "\n")
        publish(folder, out)
    return said


def describe(plan: SynthPlan, size_bytes: int) -> dict[str, Any]:
    return {
        "settings": plan.config.settings(),
        "train_samples": sum(plan.train_sizes),
        "val_samples": len(plan.val),
        "bytes": size_bytes,
        "wnids": [synset.wnid for synset in plan.synsets],
        "oddities": {file.name: file.picture.oddity for file in plan.files() if file.picture.oddity},
    }


def present(out: Path, config: SynthConfig) -> dict[str, Any] | None:
    """The stamp, if this very dataset is there; None if nothing is. Raises UsageError otherwise."""
    if out.is_dir():
        if not any(out.iterdir()):
            return None
        with suppress(OSError, ValueError):
            said = json.loads((out / STAMP).read_text())
            if said.get("settings") != config.settings():
                raise UsageError(f"{out} holds another synthetic dataset: choose another folder, or remove it")
            if not whole(out, said["files"]):
                raise UsageError(f"{out} holds this dataset, but some of its files are gone: remove it")
            return said
    elif not out.exists():
        return None
    raise UsageError(f"{out} holds something else: choose another folder")


def whole(out: Path, files: dict[str, int]) -> bool:
    """Whether its archives have their sizes, its folders their numbers of files."""
    for name, size in files.items():
        path = out / name
        held = sum(1 for _ in path.glob("*/*")) if path.is_dir() else path.stat().st_size if path.exists() else -1
        if held != size:
            return False
    return True


@contextmanager
def hidden_folder(out: Path) -> Generator[Path]:
    """A fresh folder beside `out`, gone on the way out unless it was published; one process at a time."""
    folder = out.absolute().with_name(f".{out.name}.synth")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(exist_ok=True)
        held = os.open(folder, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_DIRECTORY)
    except OSError as error:
        raise UsageError(f"{folder.parent} cannot be written: {error.strerror}") from error
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise UsageError(f"another `feedline synth` is writing {out}: wait for it") from error
        clear(folder)  # what a killed run left
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    except OSError as error:
        raise FeedlineError(f"{out} cannot be written: {error.strerror or error}") from error
    finally:
        os.close(held)


def clear(folder: Path) -> None:
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def publish(folder: Path, out: Path) -> None:
    try:
        folder.rename(out)  # over nothing, or an empty folder
    except OSError as error:
        raise UsageError(f"{out} cannot become the dataset ({error.strerror}): choose another folder") from error


class Writing:
    """The stream of pictures into files."""

    def __init__(self, plan: SynthPlan, folder: Path, on_progress: OnProgress) -> None:
        self.bytes = 0
        self.files: dict[str, int] = {}
        """Archive -> bytes, or folder -> number of files."""
        self._plan, self._folder, self._on_progress = plan, folder, on_progress
        self._done = 0

    def run(self) -> None:
        with closing(pictures(self._plan)) as stream:
            self._stream = stream
            if self._plan.config.layout == "ilsvrc":
                self._archives()
            else:
                self._folders()

    def _next(self) -> bytes:
        data = next(self._stream)
        self._done += 1
        self.bytes += len(data)
        self._on_progress(self._done, len(self._plan))
        return data

    def _archives(self) -> None:
        with tar_file(self._folder / TRAIN_TAR) as tar:
            for label, files in self._plan.train():
                with tar.inner(f"{self._plan.synsets[label].wnid}.tar"):
                    for file in files:
                        tar.add(file.name, self._next())
        with tar_file(self._folder / VAL_TAR) as tar:
            for file in self._plan.val:
                tar.add(file.name, self._next())
        (self._folder / DEVKIT).write_bytes(devkit_bytes(self._plan))
        self.files = {name: (self._folder / name).stat().st_size for name in (TRAIN_TAR, VAL_TAR, DEVKIT)}

    def _folders(self) -> None:
        for _, files in self._plan.train():
            for file in files:
                self._write("train", file.picture.label, file.name)
        for file in self._plan.val:
            self._write("val", file.picture.label, file.name)
        self.files = {"train": sum(self._plan.train_sizes), "val": len(self._plan.val)}

    def _write(self, split: str, label: int, name: str) -> None:
        folder = self._folder / split / self._plan.synsets[label].wnid
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(self._next())
