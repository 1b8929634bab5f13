"""How processes of a profiled run tell what they saw: small JSON files in the run's folder.

Every process writes only its own files, whole and by rename, so a process that is killed leaves its last complete
word. Steps are appended, one JSON row a line: a torn last line is dropped. The folder also carries the two words that
go the other way: `stop`, the step at which every rank leaves, and `interrupted`.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

ENVIRONMENT = "FEEDLINE_PROFILE"
"""Set in the profiled script's environment: the run's folder."""
OPTIONS = "options.json"


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the parent asks of the processes it profiles."""

    steps: int | None = None
    """Stop the script after this many training steps."""
    seconds: float | None = None
    """Stop the script after this long in training."""
    steady: bool = True
    """Without either: stop watching once the rate is known, and let the script run on."""
    parent: int = 0
    """The process that started the script; it shall not outlive that one. 0: it may."""
    mode: str = "verdict"
    """verdict, legs or lines."""
    window_s: float = 2.0
    window_steps: int = 0
    """legs of several ranks: windows by steps, so that all ranks turn together."""
    rounds: int = 3
    limit_s: float = 120.0
    """legs: after this long only those that were not measured yet."""
    loader: int = 0
    """legs: the training loader's number."""
    legs: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    """legs: data files seen in the verdict pass, for the cold leg."""
    worker_counts: tuple[int, ...] = ()
    """legs: numbers of workers that the loader alone is measured with."""
    crowds: tuple[int, ...] = ()
    """legs: numbers of busy processes beside cached batches."""
    functions: tuple[str, ...] = ()
    """lines: what to profile, as `function`, `Class.method` or `module:function`."""
    scratch: str = ""
    """legs and lines: where the script's own writes are diverted to."""


class Journal:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def options(self) -> Options:
        try:
            data = json.loads((self.folder / OPTIONS).read_text())
        except (OSError, ValueError):
            return Options()
        known: dict[str, Any] = {key: tuple(item) if isinstance(item, list) else item for key, item in data.items()}
        return Options(**known)

    def set_options(self, options: Options) -> None:
        self.write(OPTIONS.removesuffix(".json"), asdict(options))

    def write(self, name: str, data: dict[str, Any]) -> None:
        """Nothing happens when the folder is gone: the parent has left."""
        part = self.folder / f".{name}.{os.getpid()}.part"
        try:
            part.write_text(json.dumps(data))
            part.replace(self.folder / f"{name}.json")
        except OSError:
            pass

    def append(self, name: str, rows: list[list[Any]]) -> None:
        try:
            with (self.folder / f"{name}.jsonl").open("a") as file:
                file.write("".join(json.dumps(row) + "\n" for row in rows))
        except OSError:
            pass

    def leave(self, rank: int) -> None:
        """Nothing more of this rank is to be seen: its workers that live on say their last and stop looking."""
        self.write(f"left-{rank}", {})

    def has_left(self, rank: int) -> bool:
        return os.path.exists(f"{self.folder}/left-{rank}.json")  # noqa: PTH110  asked at every look: cheap

    def interrupt(self) -> None:
        """A signal has come, and the script has had it: no more windows of ours in it."""
        self.write("interrupted", {})

    def interrupted(self) -> bool:
        return os.path.exists(f"{self.folder}/interrupted.json")  # noqa: PTH110  asked at every batch of them: cheap

    def read(self, name: str) -> dict[str, Any] | None:
        return self._load(self.folder / f"{name}.json")

    def all(self, prefix: str) -> Iterator[dict[str, Any]]:
        for path in sorted(self.folder.glob(f"{prefix}*.json")):
            data = self._load(path)
            if data is not None:
                yield data

    def rows(self, name: str) -> list[list[Any]]:
        try:
            text = (self.folder / f"{name}.jsonl").read_text()
        except OSError:
            return []
        return list(_whole_rows(text))

    @staticmethod
    def _load(path: Path) -> dict[str, Any] | None:
        try:
            data = json.loads(path.read_text())
        except (OSError, ValueError):
            return None
        return cast("dict[str, Any]", data) if isinstance(data, dict) else None


def _whole_rows(text: str) -> Iterator[list[Any]]:
    for line in text.splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            return
