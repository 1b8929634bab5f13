"""How processes of a profiled run tell what they saw: small JSON files in the run's folder.

Every process writes only its own files, whole and by rename, so a process that is killed leaves its last complete
word. Steps are appended, one JSON row a line: a torn last line is dropped. Three more files go the other way: `stop`,
the step at which every rank leaves, `windows`, the steps of a leg's window, and `interrupted`.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

T = TypeVar("T")

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
    """Without either: stop watching once the rate is known, and let the script run on (a diagnostic run: into its
    other windows)."""
    parent: int = 0
    """The process that started the script; it shall not outlive that one. 0: it may."""
    legs: tuple[str, ...] = ()
    """Legs to measure in windows that follow the verdict's steps."""
    window_s: float = 1.2
    """Length of one window of a leg."""
    rounds: int = 5
    """Windows of each leg."""
    limit_s: float = 120.0
    """After this long in legs only those that were not measured yet."""
    lines: bool = False
    """Time lines in a last window."""
    functions: tuple[str, ...] = ()
    """lines: what to profile beside the script's own, as `function`, `Class.method` or `module:function`."""
    line_steps: int = 30

    @property
    def diagnostic(self) -> bool:
        """Whether windows follow the verdict's; the script is ended after them."""
        return bool(self.legs or self.lines)


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

    def append(self, name: str, rows: Iterable[Sequence[Any]]) -> None:
        """Rows of one of the types in `record.rows`."""
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

    def rows(self, name: str, kind: Callable[..., T]) -> list[T]:
        """As `append` was given them; `kind` is their type."""
        try:
            text = (self.folder / f"{name}.jsonl").read_text()
        except OSError:
            return []
        return [kind(*values) for values in _whole_rows(text)]

    def complain(self, line: str) -> None:
        """What could not be watched: a note of the recording."""
        try:
            with (self.folder / f"complaints-{os.getpid()}.txt").open("a") as file:
                file.write(line + "\n")
        except OSError:
            pass

    def complaints(self) -> list[str]:
        found = sorted(self.folder.glob("complaints-*.txt"))
        return [line for path in found for line in path.read_text().splitlines()]

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
