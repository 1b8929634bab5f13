"""Which time counts: the measured training steps of one rank, and sums of rows weighted by their share of it."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable

from feedline.profiling.record.recording import Step
from feedline.profiling.record.rows import TimeRow

TOP_FUNCTIONS = 12


class Windows:
    """The measured training time of one rank: where workers' and trainers' rows count."""

    def __init__(self, steps: Iterable[Step]) -> None:
        self._spans: list[tuple[float, float]] = []
        for step in steps:
            paused = step.pause_s > 0.1 * step.duration_s
            if step.phase != "train" or step.warm_up or paused:
                continue
            start, end = step.start_s, step.start_s + step.duration_s
            if self._spans and start - self._spans[-1][1] < 1e-3:
                self._spans[-1] = (self._spans[-1][0], end)
            else:
                self._spans.append((start, end))
        self._starts = [start for start, _ in self._spans]

    @property
    def seconds(self) -> float:
        return sum(end - start for start, end in self._spans)

    def share(self, start: float, end: float) -> float:
        """Of [start, end]; 1 when nothing was measured, so that a very short run still says something."""
        if not self._spans:
            return 1.0
        covered = 0.0
        for first, last in self._spans[max(0, bisect_right(self._starts, start) - 1) :]:
            if first >= end:
                break
            covered += max(0.0, min(end, last) - max(start, first))
        return covered / (end - start) if end > start else 0.0


class RowSum:
    """Time rows, weighted."""

    def __init__(self, rows: list[TimeRow], windows: Windows, origin: float) -> None:
        self.sums: dict[str, dict[str, float]] = {
            name: defaultdict(float) for name in ("stages", "stages_cpu", "transforms", "functions")
        }
        self.numbers: dict[str, float] = defaultdict(float)
        for row in rows:
            share = windows.share(row.t0 - origin, row.t1 - origin)
            if share <= 0:
                continue
            for name, into in self.sums.items():
                for key, value in getattr(row, name).items():
                    into[key] += share * value
            for name in ("batches", "samples", "cpu_s", "ticks"):
                self.numbers[name] += share * getattr(row, name)

    @property
    def seconds(self) -> float:
        return sum(self.sums["stages"].values())

    def top_functions(self) -> dict[str, float]:
        ranked = sorted(self.sums["functions"].items(), key=lambda item: -item[1])
        return dict(ranked[:TOP_FUNCTIONS])
