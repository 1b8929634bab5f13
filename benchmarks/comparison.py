"""Grids of settings, measured honestly: rounds in random order, a fresh process per window, paired differences.

A round measures every cell that is still in doubt once. At a few looks (never after every round: who looks often
enough finds anything) each cell is compared with the best through the rounds both were in; what is settled is
measured no more. All intervals of one comparison share 5 % of error among all cells and looks. A window in which
other programs took clearly more than in most is measured again. Every window is a line in the results file, so that a
rerun after a kill goes on where it was.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from feedline.benchmarks.grid import Cell, Grid
from feedline.benchmarks.measure.intervals import Comparison, Estimate, compare, estimate, pool
from feedline.benchmarks.measure.rounds import (
    Advance,
    Measure,
    MeasureError,
    busyness,
    quietest,
    shuffled,
    usual_cores,
)
from feedline.benchmarks.measure.window import Subject, Window
from feedline.pipeline.base.errors import UsageError
from feedline.pipeline.base.files import refused_as
from feedline.pipeline.base.settings import PREFETCH, check_limits, limited
from feedline.pipeline.format.manifest import MANIFEST, manifest_hash
from feedline.profiling.record.host import describe_host, package_version

LOOKS = (3, 4, 6, 9, 14, 20)
"""Rounds after which the figures are looked at."""


@dataclass(frozen=True, kw_only=True)
class CompareConfig:
    grid: Grid
    splits: Mapping[str, Path]
    """By cell key: the train split it reads."""
    common: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Settings that all cells share and no axis names."""
    rounds: int = limited(9, LOOKS[0])
    """Windows per setting at most."""
    window_s: float = limited(2.0, 0.2, 3600)
    """Seconds measured per window."""
    warm_up_s: float = 0.5
    seed: int = 0

    def __post_init__(self) -> None:
        check_limits(self)

    @property
    def looks(self) -> list[int]:
        return [*(look for look in LOOKS if look < self.rounds), self.rounds]

    @property
    def comparisons(self) -> int:
        """Among how many the 5 % are shared: every cell with the best at every look, and the statement's steps."""
        others = len(self.grid.cells()) - 1
        steps = sum(len(self.grid.axes[name]) - 1 for name in self.grid.varied) if others > 1 else 0
        return max(1, others * len(self.looks) + steps)

    @property
    def identity(self) -> str:
        """Changes when continuing an earlier file would mix different things."""
        hashes = {split: manifest_hash(split) for split in self.splits.values() if (split / MANIFEST).exists()}
        splits = {key: [str(split), hashes.get(split, "")] for key, split in self.splits.items()}
        settings = [self.grid.axes, dict(self.common), self.window_s, self.warm_up_s, self.seed]
        host = describe_host()
        machine = [package_version("feedline"), *(host[name] for name in ("cpu", "affinity", "cgroup_cores", "gpus"))]
        told = json.dumps([settings, splits, machine, host["versions"]], sort_keys=True)
        return hashlib.sha256(told.encode()).hexdigest()[:16]

    def subject(self, cell: Cell) -> Subject:
        settings = {**self.common, **cell.settings, "split": str(self.splits[cell.key])}
        prefetched = int(settings.get("num_workers") or 0) * int(settings.get("prefetch_factor") or PREFETCH)
        return Subject(kind="loader", settings=settings, window_s=self.window_s, warm_up_s=self.warm_up_s,
                       warm_up_batches=prefetched + 4)  # fmt: skip


@dataclass(kw_only=True)
class Results:
    """The windows seen so far, by cell key and round; each is written as it comes."""

    path: Path
    config: CompareConfig
    windows: dict[str, dict[int, Window]] = field(default_factory=dict[str, dict[int, Window]])
    settled: dict[str, str] = field(default_factory=dict[str, str])
    """Cell key to why it is measured no more."""
    failed: dict[str, str] = field(default_factory=dict[str, str])
    """Cell key to why it cannot be measured."""

    @classmethod
    def open(cls, path: Path, config: CompareConfig) -> "Results":
        """Goes on with an unfinished file of the same comparison and version; starts a new one otherwise."""
        results = cls(path=path, config=config)
        lines: list[dict[str, Any]] = read_lines(path)
        if not results._takes(lines):
            results.windows.clear()
            lines = [{"identity": config.identity, "axes": dict(config.grid.axes)}]
        with refused_as(UsageError, f"cannot write {path}"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(json.dumps(line) + "\n" for line in lines))  # without what a kill tore
        return results

    def _takes(self, lines: list[dict[str, Any]]) -> bool:
        """Their windows, where one can go on with them."""
        try:
            if lines[0]["identity"] != self.config.identity or any("done" in line for line in lines):
                return False
            for line in lines[1:]:
                self.windows.setdefault(line["cell"], {})[line["round"]] = Window(**line["window"])
        except (IndexError, KeyError, TypeError):
            return False
        return True

    def write(self, line: dict[str, Any]) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def add(self, cell: Cell, number: int, window: Window) -> None:
        self.windows.setdefault(cell.key, {})[number] = window
        self.write({"cell": cell.key, "round": number, "window": asdict(window)})

    @property
    def cells(self) -> list[Cell]:
        """Those that can be measured, in the order of the grid."""
        return [cell for cell in self.config.grid.cells() if cell.key not in self.failed]

    def usual_cores(self) -> float:
        """That other programs took in the quieter windows (a quarter had less); without an end from fewer than 4."""
        windows = [window for by_round in self.windows.values() for window in by_round.values()]
        return usual_cores(windows) if len(windows) >= 4 else math.inf

    def estimate(self, cell: Cell) -> Estimate:
        return estimate([window.samples_per_s for window in self.windows[cell.key].values()])

    def against(self, a: Cell, b: Cell) -> Comparison:
        """Through the rounds that both were measured in, with the noise of all cells beside `b`."""
        noise = pool([self._paired(cell, b) for cell in self.cells if cell.key != b.key])
        return compare(*self._paired(a, b), comparisons=self.config.comparisons, noise=noise)

    def _paired(self, a: Cell, b: Cell) -> tuple[list[float], list[float]]:
        mine, theirs = self.windows.get(a.key, {}), self.windows.get(b.key, {})
        both = sorted(mine.keys() & theirs.keys())
        return [mine[n].samples_per_s for n in both], [theirs[n].samples_per_s for n in both]

    def best(self) -> Cell:
        """The highest median; or what beats it within rounds, where the medians are of different rounds."""
        best: Cell | None = max(self.cells, key=lambda cell: self.estimate(cell).value)
        order: list[Cell] = []
        while best is not None:
            order.append(best)
            best = next((cell for cell in self.cells if cell not in order and self.beats(cell, order[-1])), None)
        return order[-1]

    def beats(self, a: Cell, b: Cell) -> bool:
        return self.against(a, b).outcome == "faster"

    def settle(self) -> None:
        """Marks what needs no more rounds: slower than the best, or the same; the best once no other is open."""
        best = self.best()
        outcomes = {cell.key: self.against(cell, best).outcome for cell in self.cells if cell.key != best.key}
        self.settled = {key: outcome for key, outcome in outcomes.items() if outcome != "open"}
        if len(self.settled) == len(outcomes):
            self.settled[best.key] = "best"


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines; a last one torn by a kill is dropped."""
    lines: list[dict[str, Any]] = []
    with suppress(OSError, ValueError):
        lines.extend(map(json.loads, path.read_text().split("\n")[:-1]))
    return lines


def run(config: CompareConfig, path: Path, measure: Measure, advance: Advance) -> Results:
    """Rounds until every cell is settled or the rounds are used up. A cell that cannot be measured is left out, and a
    rerun tries it again. Raises MeasureError when none can be."""
    results = Results.open(path, config)
    cells = {cell.key: cell for cell in config.grid.cells()}
    most = len(cells) * config.rounds
    for number in range(config.rounds):
        for key in shuffled([key for key in cells if key not in results.settled], config.seed, number):
            if number not in results.windows.get(key, {}):
                subject = config.subject(cells[key])
                try:
                    window = quietest(lambda subject=subject: measure(subject), busyness, results.usual_cores())
                except MeasureError as error:
                    results.failed[key] = str(error)
                    results.windows.pop(key, None)
                    del cells[key]
                    if not cells:
                        raise
                else:
                    results.add(cells[key], number, window)
            advance(sum(map(len, results.windows.values())), most)
        if number + 1 in config.looks:
            results.settle()
            if cells.keys() <= results.settled.keys():
                break
    results.write({"done": True})
    return results
