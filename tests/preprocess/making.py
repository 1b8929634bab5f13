"""One small folder of photographs with oddities, and a way to run a prepare job without Spark."""

import hashlib
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from feedline.preprocess import prepare as door
from feedline.preprocess.config import PrepareConfig
from feedline.preprocess.engine import Engine, EngineRun
from feedline.preprocess.plan import ShardTask
from feedline.preprocess.write_shard import OnOutcome, Order, write_shards

CLASSES = ("apple", "bear", "cup")
PER_CLASS = 16


def photo(seed: int, width: int = 120, height: int = 90) -> Image.Image:
    """Smooth enough to be like a photograph, different for every seed."""
    coarse = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def saved(image: Image.Image, kind: str = "JPEG", **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **({"quality": 95} if kind == "JPEG" else {}), **options)
    return file.getvalue()


def write_images(folder: Path, per_class: int = PER_CLASS, oddities: bool = True) -> Path:
    for label, name in enumerate(CLASSES):
        (folder / name).mkdir(parents=True)
        for number in range(per_class):
            image = photo(100 * label + number, 100 + 7 * number % 60, 80 + 5 * number % 40)
            (folder / name / f"{name}_{number}.JPEG").write_bytes(saved(image))
    if oddities:
        (folder / "apple" / "cmyk.JPEG").write_bytes(saved(photo(1).convert("CMYK")))
        (folder / "bear" / "really_png.JPEG").write_bytes(saved(photo(2).convert("RGBA"), "PNG"))
        (folder / "bear" / "cut.JPEG").write_bytes(saved(photo(3))[:900])
        (folder / "cup" / "empty.JPEG").write_bytes(b"")
        (folder / "cup" / "with space é.JPEG").write_bytes(saved(photo(4).convert("L")))
    return folder


def off_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on Pillow resizes a little differently, as another build of it does: by one, in one value."""
    resize = Image.Image.resize

    def resized(image: Image.Image, size: tuple[int, int], *how: object, **more: object) -> Image.Image:
        pixels = np.array(resize(image, size, *how, **more))  # type: ignore[arg-type]
        pixels[size[1] // 2, size[0] // 2, 0] ^= 1
        return Image.frombytes(image.mode, size, pixels.tobytes())

    monkeypatch.setattr(Image.Image, "resize", resized)


class Here(Engine):
    """An engine: the tasks in this process, two at a time; then it `dies`, if it shall, with what is left undone."""

    def __init__(self, most: int | None = None, dies: BaseException | None = None) -> None:
        self._most, self._dies = most, dies

    def run(self, order: Order, tasks: Sequence[ShardTask], on_outcome: OnOutcome) -> EngineRun:
        tasks = tasks[: self._most]
        for first in range(0, len(tasks), 2):
            write_shards(order, tasks[first : first + 2], on_outcome)
        if self._dies is not None:
            raise self._dies
        return EngineRun(master="none")


@dataclass
class After(Here):
    """Does something before the tasks run."""

    action: Callable[[], object]

    def __post_init__(self) -> None:
        super().__init__()

    def run(self, order: Order, tasks: Sequence[ShardTask], on_outcome: OnOutcome) -> EngineRun:
        self.action()
        return super().run(order, tasks, on_outcome)


class Killed(BaseException):
    """As if the process had died here."""


def dies_after(count: int) -> Here:
    return Here(count, dies=Killed())


def prepare(source: Path | str, out: Path | str, **said: Any) -> dict[str, Any]:
    said = {"max_bad": 0.2, "shards": 4} | said
    engine, given = said.pop("engine", None) or Here(), {"on_note": said.pop("on_note")} if "on_note" in said else {}
    return door.prepare(PrepareConfig(source=str(source), out=str(out), **said), engine=engine, **given)


def digests(out: Path) -> dict[str, str]:
    """Every file but report.json, by relative name."""
    files = (path for path in sorted(out.rglob("*")) if path.is_file() and path.name != "report.json")
    return {str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())
