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
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from feedline.benchmarks.grid import Cell, Grid
from feedline.benchmarks.measure.intervals import MARGIN, Comparison, Estimate, Noise, compare, estimate, pool
from feedline.benchmarks.measure.rounds import QUIET_CORES, TRIES, MeasureError, busyness, shuffled
from feedline.benchmarks.measure.window import Subject, Window
from feedline.pipeline.base.errors import UsageError

LOOKS = (3, 4, 6, 9, 14, 20)
"""Rounds after which the figures are looked at."""

Measure = Callable[[Subject], Window]
Advance = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True)
class CompareConfig:
    grid: Grid
    splits: Mapping[str, Path]
    """By cell key: the train split it reads."""
    common: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Settings that all cells share and no axis names."""
    rounds: int = 9
    """Windows per setting at most."""
    window_s: float = 2.0
    """Seconds measured per window."""
    warm_up_s: float = 0.5
    seed: int = 0

    def __post_init__(self) -> None:
        if self.rounds < LOOKS[0]:
            raise UsageError(f"--rounds {self.rounds}: at least {LOOKS[0]}, or noise decides")

    @property
    def looks(self) -> list[int]:
        return sorted({look for look in LOOKS if look < self.rounds} | {self.rounds})

    @property
    def comparisons(self) -> int:
        """Among how many the 5 % are shared: every cell with the best at every look, and the statement's steps."""
        others = len(self.grid.cells()) - 1
        steps = sum(len(self.grid.axes[name]) - 1 for name in self.grid.varied) if others > 1 else 0
        return max(1, others * len(self.looks) + steps)

    @property
    def identity(self) -> str:
        """Changes when continuing an earlier file would mix different things."""
        said = [self.grid.axes, dict(self.common), self.window_s, self.warm_up_s, self.seed]
        paths = {key: [str(path), _stamp(path)] for key, path in self.splits.items()}
        return hashlib.sha256(json.dumps([said, paths], sort_keys=True, default=str).encode()).hexdigest()[:16]


def _stamp(split: Path) -> str:
    manifest = split / "manifest.json"
    return hashlib.sha256(manifest.read_bytes()).hexdigest() if manifest.exists() else ""


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
        """Goes on with an unfinished file of the same comparison; starts a new one otherwise."""
        results = cls(path=path, config=config)
        lines = read_lines(path)
        header = lines[0] if lines else {}
        unfinished = header.get("identity") == config.identity and not any("done" in line for line in lines)
        if unfinished:
            for line in lines[1:]:
                results.windows.setdefault(line["cell"], {})[line["round"]] = Window(**line["window"])
            path.write_text("".join(json.dumps(line) + "\n" for line in lines))  # without what a kill tore
            return results
        header = {"identity": config.identity, "axes": dict(config.grid.axes)}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(header, default=str) + "\n")
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror}") from error
        return results

    def add(self, cell: Cell, number: int, window: Window) -> None:
        self.windows.setdefault(cell.key, {})[number] = window
        self._write({"cell": cell.key, "round": number, "window": asdict(window)})

    def fail(self, cell: Cell, why: str) -> None:
        """It does not take the other cells with it. A rerun tries it again."""
        self.failed[cell.key] = why
        self.windows.pop(cell.key, None)

    def cells(self) -> list[Cell]:
        """Those that can be measured, in the order of the grid."""
        return [cell for cell in self.config.grid.cells() if cell.key not in self.failed]

    def finish(self) -> None:
        self._write({"done": True})

    def has(self, cell: Cell, number: int) -> bool:
        return number in self.windows.get(cell.key, {})

    def rates(self, cell: Cell) -> dict[int, float]:
        return {number: window.samples_per_s for number, window in self.windows.get(cell.key, {}).items()}

    def usual_busyness(self) -> float | None:
        """Cores that other programs took in the quieter windows (a quarter had less); None from fewer than 4."""
        seen = [busyness(window) for windows in self.windows.values() for window in windows.values()]
        return statistics.quantiles(seen, n=4)[0] if len(seen) >= 4 else None

    def estimate(self, cell: Cell) -> Estimate:
        return estimate(list(self.rates(cell).values()))

    def against(self, a: Cell, b: Cell) -> Comparison:
        """Through the rounds that both were measured in, with the noise of all cells."""
        rates_a, rates_b = self._paired(a, b)
        return compare(rates_a, rates_b, comparisons=self.config.comparisons, noise=self.noise(b))

    def noise(self, base: Cell) -> Noise | None:
        """Of all cells against `base`."""
        return pool([self._paired(cell, base) for cell in self.cells() if cell.key != base.key])

    def _paired(self, a: Cell, b: Cell) -> tuple[list[float], list[float]]:
        rates_a, rates_b = self.rates(a), self.rates(b)
        both = sorted(rates_a.keys() & rates_b.keys())
        return [rates_a[n] for n in both], [rates_b[n] for n in both]

    def _write(self, line: dict[str, Any]) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines; a last one torn by a kill is dropped."""
    try:
        texts = path.read_text().split("\n")[:-1]
    except OSError:
        return []
    found: list[dict[str, Any]] = []
    for text in texts:
        try:
            found.append(json.loads(text))
        except ValueError:
            break
    return found


def run(config: CompareConfig, path: Path, measure: Measure, advance: Advance) -> Results:
    """Rounds until every cell is settled or the rounds are used up. A cell that cannot be measured is left out.

    Raises MeasureError when none can.
    """
    results = Results.open(path, config)
    cells = {cell.key: cell for cell in config.grid.cells()}
    most = len(cells) * config.rounds
    for number in range(config.rounds):
        for key in shuffled([key for key in cells if key not in results.settled], config.seed, number):
            if not results.has(cells[key], number):
                try:
                    window = undisturbed(measure, subject_of(config, cells[key]), results.usual_busyness())
                except MeasureError as error:
                    results.fail(cells.pop(key), str(error))
                    if not cells:
                        raise
                else:
                    results.add(cells[key], number, window)
            advance(sum(len(windows) for windows in results.windows.values()), most)
        if number + 1 in config.looks:
            settle(results, list(cells.values()), rounds_left=config.rounds - number - 1)
            if all(key in results.settled for key in cells):
                break
    results.finish()
    return results


def undisturbed(measure: Measure, subject: Subject, usual_cores: float | None) -> Window:
    """One window, or the quietest of TRIES where others take more than usual; a load that stays is usual."""
    found = [measure(subject)]
    while usual_cores is not None and len(found) < TRIES and busyness(found[-1]) > usual_cores + QUIET_CORES:
        found.append(measure(subject))
    return min(found, key=busyness)


def subject_of(config: CompareConfig, cell: Cell) -> Subject:
    settings = {**config.common, **cell.settings, "split": str(config.splits[cell.key])}
    workers = int(settings.get("num_workers") or 0)
    prefetched = workers * int(settings.get("prefetch_factor") or 2)
    return Subject(
        kind="loader",
        settings=settings,
        window_s=config.window_s,
        warm_up_s=config.warm_up_s,
        warm_up_batches=prefetched + 4,
    )


def best_of(results: Results, cells: Sequence[Cell]) -> Cell:
    """The highest median; or what beats it within rounds, where the medians are of different rounds."""
    best = max(cells, key=lambda cell: results.estimate(cell).value)
    beaten = {best.key}
    while (better := next((c for c in cells if c.key not in beaten and beats(results, c, best)), None)) is not None:
        best = better
        beaten.add(best.key)
    return best


def beats(results: Results, a: Cell, b: Cell) -> bool:
    return results.against(a, b).outcome == "faster"


def settle(results: Results, cells: Sequence[Cell], rounds_left: int) -> None:
    """Marks what needs no more rounds: clearly slower than the best, the same, or not to be told apart in time."""
    best = best_of(results, cells)
    results.settled.clear()
    for cell in cells:
        if cell.key == best.key:
            continue
        found = results.against(cell, best)
        if found.outcome != "open":
            results.settled[cell.key] = found.outcome
        elif hopeless(found, rounds_left):
            results.settled[cell.key] = "open"
    if len(results.settled) == len(cells) - 1:
        results.settled[best.key] = "best"


def hopeless(found: Comparison, rounds_left: int) -> bool:
    """All rounds that are left would not narrow the interval to a verdict, even with half the noise seen so far."""
    half = found.half_after(rounds_left)
    goal = max(MARGIN, abs(math.log(found.ratio.value)) - MARGIN)
    return half is not None and half / 2 > goal
