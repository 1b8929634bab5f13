"""Staging tars: where samples go whose bytes cannot be addressed in their source. Deterministic, atomic, reused.

One WebDataset tar after another with `KEY.jpg` (or `.png`) and `KEY.cls`. A finished set is stamped with what it was
made from, so that a resumed job does not unpack again.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from feedline.pipeline.base.files import write_atomically, write_error
from feedline.preprocess.sources.plain_tar import TarWriter, tar_file

STAMP = "staged.json"
TAR_BYTES = 1 << 30
PNG_START = b"\x89PNG"


@dataclass(frozen=True, kw_only=True)
class Unpacked:
    """One sample on its way into a staging tar."""

    split: str
    key: str
    data: bytes
    label: str
    """A number or a word; "" for none."""


class StagingWriter:
    """Rolls from tar to tar, one series per split."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._series: dict[str, int] = {}
        self.tars: list[tuple[str, str]] = []
        """(split, file name)."""

    def write(self, split: str, samples: Iterable[Unpacked]) -> None:
        """All of one split's samples, in order. Raises FeedlineError when they cannot be written."""
        arriving = iter(samples)
        first = next(arriving, None)
        try:
            while first is not None:
                first = self._tar(split, first, arriving)
        except OSError as error:
            raise write_error(error, f"unpacking into {self._folder}") from error

    def _tar(self, split: str, first: Unpacked, arriving: Iterable[Unpacked]) -> Unpacked | None:
        """Writes one tar; returns the sample that begins the next."""
        number = self._series.get(split, 0)
        self._series[split] = number + 1
        name = f"{split}-{number:06d}.tar"
        partial = self._folder / f".{name}.partial"
        following: Unpacked | None = None
        with tar_file(partial) as tar:
            add(tar, first)
            for sample in arriving:
                if tar.size_bytes >= TAR_BYTES:
                    following = sample
                    break
                add(tar, sample)
        partial.replace(self._folder / name)
        self.tars.append((split, name))
        return following


def add(tar: TarWriter, sample: Unpacked) -> None:
    extension = "png" if sample.data.startswith(PNG_START) else "jpg"
    tar.add(f"{sample.key}.{extension}", sample.data)
    if sample.label:
        tar.add(f"{sample.key}.cls", sample.label.encode())


def stamp(folder: Path, made_from: dict[str, Any], tars: list[tuple[str, str]], **more: Any) -> None:
    said = {"made_from": made_from, "tars": tars, **more}
    write_atomically(folder / STAMP, (json.dumps(said, sort_keys=True) + "\n").encode())


def stamped(folder: Path, made_from: dict[str, Any]) -> dict[str, Any] | None:
    """What an earlier run staged from the very same source, if it is all there."""
    try:
        said = json.loads((folder / STAMP).read_text())
        same = said["made_from"] == json.loads(json.dumps(made_from))
        return said if same and all((folder / name).exists() for _, name in said["tars"]) else None
    except (OSError, ValueError, KeyError):
        return None
