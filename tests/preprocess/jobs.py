"""Prepare as a command in the background, met in its middle, and the processes that belong to it."""

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

from tests.preprocess.making import photo, saved

FEEDLINE = [str(Path(sys.executable).with_name("feedline"))]
SHARDS = 12
OPTIONS = ["--shards", str(SHARDS), "--max-bad", "0.2", "--size", "64"]


def write_large_images(folder: Path) -> Path:
    """Few pictures under many names, each large enough that a job can be met in its middle; one is cut."""
    large = [saved(photo(seed, 2400, 1800)) for seed in range(3)]
    for number in range(60):
        (folder / f"class{number % 3}").mkdir(parents=True, exist_ok=True)
        (folder / f"class{number % 3}" / f"image{number}.JPEG").write_bytes(large[number % 3])
    (folder / "class0" / "cut.JPEG").write_bytes(large[0][:5000])
    return folder


def words(source: Path, out: Path, *options: str, usual: Sequence[str] = OPTIONS) -> list[str]:
    return ["prepare", str(source), str(out), *usual, *options]


def command(source: Path, out: Path, *options: str, usual: Sequence[str] = OPTIONS) -> list[str]:
    return [*FEEDLINE, *words(source, out, *options, usual=usual)]


def run(source: Path, out: Path, *options: str, usual: Sequence[str] = OPTIONS) -> subprocess.CompletedProcess[str]:
    whole = command(source, out, *options, usual=usual)
    done = subprocess.run(whole, capture_output=True, text=True, timeout=240, check=False)
    assert "Traceback" not in done.stderr
    return done


def wait_for(what: Callable[[], Any], seconds: float = 120) -> Any:
    """The first true answer; polls, because files and processes send no signal."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = what()
        if found:
            return found
        time.sleep(0.01)
    raise AssertionError("it never came")


class Started:
    """A prepare in the background, and the processes that belong to it."""

    def __init__(self, source: Path, out: Path, *options: str) -> None:
        self.out = out
        self.process = subprocess.Popen(
            command(source, out, *options), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def until_receipts(self, count: int = 2) -> None:
        """Waits until some shards are done and others are not."""
        folder = self.out / ".feedline"
        wait_for(lambda: self.process.poll() is not None or len(list(folder.glob("receipts-*/*.receipt"))) >= count)
        assert self.process.poll() is None, self.process.communicate()

    def family(self) -> list[psutil.Process]:
        try:
            return psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def jvm(self) -> psutil.Process:
        return next(one for one in self.family() if one.name() == "java")

    def python_worker(self) -> psutil.Process | None:
        """A forked child of pyspark's daemon."""
        for one in self.family():
            with contextlib.suppress(psutil.Error):
                parent = one.parent()
                if parent is not None and "pyspark.daemon" in parent.cmdline() and "pyspark.daemon" in one.cmdline():
                    return one
        return None

    def end(self) -> tuple[int, str]:
        _, errors = self.process.communicate(timeout=240)
        return self.process.returncode, errors
