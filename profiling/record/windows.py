"""Which time counts: the training loader's measured steps of one rank. Sums of rows and means of series over it."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from feedline.profiling.record.journal import TimeRow
from feedline.profiling.record.measurements import GPU_MEANS, Gpu, Series
from feedline.profiling.record.recording import Step
from feedline.profiling.record.uncertainty import look_error, ratio_error

TOP_FUNCTIONS = 12
MOST_SIZES = 3
"""Of batches. The first step on each is warm-up, for kernels are chosen anew; where there are more, all count."""


class Windows:
    """The measured training time of one rank: where workers' and trainers' rows count. All counts when nothing was
    measured, so that a very short run still says something."""

    def __init__(self, steps: Iterable[Step], *, every: bool = False) -> None:
        """`every`: also of steps that are not measured."""
        self._spans: list[tuple[float, float]] = []
        for step in steps if every else filter(without_pause, steps):
            start, end = step.start_s, step.start_s + step.duration_s
            if self._spans and start - self._spans[-1][1] < 1e-3:
                self._spans[-1] = (self._spans[-1][0], max(end, self._spans[-1][1]))
            else:
                self._spans.append((start, end))
        self._starts = [start for start, _ in self._spans]

    def share(self, start: float, end: float) -> float:
        """Of [start, end]."""
        if not self._spans:
            return 1.0
        covered = 0.0
        for first, last in self._spans[max(0, bisect_right(self._starts, start) - 1) :]:
            if first >= end:
                break
            covered += max(0.0, min(end, last) - max(start, first))
        return covered / (end - start) if end > start else 0.0

    def amid(self, start: float, end: float) -> bool:
        """Whether that lies between its first and its last step."""
        return bool(self._spans) and self._spans[0][0] < end and start < self._spans[-1][1]

    def counts(self, step: Step) -> bool:
        return without_pause(step) or not self._spans


def without_pause(step: Step) -> bool:
    """A measured step in which nothing else happened for long."""
    return step.measured and step.pause_s <= 0.1 * step.duration_s


class RowSum:
    """Time rows, each by the share of its time that was measured."""

    def __init__(self, rows: list[TimeRow], windows: Windows, origin: float, anywhere: Windows | None = None) -> None:
        """`anywhere`: all its steps, outside which it is `apart`."""
        self.stages, self.stages_cpu, self.transforms, functions = (defaultdict[str, float](float) for _ in range(4))
        delays, self._beside, self._apart = (defaultdict[str, float](float) for _ in range(3))
        self.batches = self.samples = self.cpu_s = self.ticks = 0.0
        self._blocks: list[tuple[dict[str, float], float]] = []
        """By row: seconds by stage, and samples."""
        for row in rows:
            share = windows.share(row.t0 - origin, row.t1 - origin)
            if anywhere and windows.amid(row.t0 - origin, row.t1 - origin):
                apart = 1.0 - anywhere.share(row.t0 - origin, row.t1 - origin)
                for name, seconds in row.functions.items():
                    self._apart[name.partition(" ")[2]] += apart * seconds
            if share <= 0:
                continue
            for sums, more in (
                (self.stages, row.stages), (self.stages_cpu, row.stages_cpu),
                (delays, row.stages_delay or {}), (self._beside, row.beside_cpu or {}),
                (self.transforms, row.transforms), (functions, row.functions),
            ):  # fmt: skip
                for key, value in more.items():
                    sums[key] += share * value
            self._blocks.append(({name: share * value for name, value in row.stages.items()}, share * row.samples))
            self.batches += share * row.batches
            self.samples += share * row.samples
            self.cpu_s += share * row.cpu_s
            self.ticks += share * row.ticks
        self._delays = dict(delays) if any(row.stages_delay is not None for row in rows) else None
        self._functions = dict(sorted(functions.items(), key=lambda item: -item[1])[:TOP_FUNCTIONS])

    def thread(self) -> dict[str, Any]:
        """Fields of `recording.ThreadTime`."""
        seconds = sum(self.stages.values())
        return {
            "seconds": seconds,
            "cpu_s": self.cpu_s,
            "stages": dict(self.stages),
            "stages_cpu_s": dict(self.stages_cpu),
            "stages_delay_s": self._delays,
            "beside_cpu_s": dict(self._beside),
            "stages_error_s": {name: self._error_s(name, seconds) for name in self.stages} if seconds else {},
            "functions": self._functions,
            "apart_s": dict(sorted(self._apart.items(), key=lambda item: -item[1])[:TOP_FUNCTIONS]),
            "ticks": round(self.ticks),
        }

    def _error_s(self, stage: str, whole_s: float) -> float:
        """Standard error of its seconds: over blocks, and at least that of so many single looks."""
        looks_s = whole_s * look_error(self.stages[stage] / whole_s, self.ticks)
        lengths = [sum(stages.values()) for stages, _ in self._blocks]
        return max(looks_s, ratio_error([stages.get(stage, 0.0) for stages, _ in self._blocks], lengths))

    def sample_error_s(self) -> float | None:
        """As `recording.WorkerTime` has it."""
        busy = [sum(stages.values()) - stages.get("idle", 0.0) for stages, _ in self._blocks]
        samples = [count for _, count in self._blocks]
        return ratio_error(busy, samples) / sum(samples) if sum(count > 0 for count in samples) > 2 else None


def of_lowest_rank(steps: Sequence[Step]) -> Windows:
    """Ranks run in step: the lowest one's steps stand for all."""
    lowest = min((step.rank for step in steps), default=0)
    return Windows([step for step in steps if step.rank == lowest])


def over_steps(gpus: Sequence[Gpu], series: Sequence[Series], steps: Sequence[Step]) -> list[Gpu]:
    """The same GPUs with their means taken anew, over the measured steps: the sampler looks from the start of the
    process on, through imports, evaluation and checkpoints. All time counts where no step was measured."""
    windows = of_lowest_rank(steps)
    found: list[Gpu] = []
    for gpu in gpus:
        mine = [one for one in series if one.scope == f"gpu:{gpu.uuid}" and one.name in GPU_MEANS]
        means = {one.name: mean_over(one, windows) for one in mine}
        missing = {name: "no look fell into the training steps" for name, mean in means.items() if mean is None}
        found.append(replace(gpu, **means, unavailable={**missing, **gpu.unavailable}))
    return found


def mean_over(series: Series, windows: Windows) -> float | None:
    """A look stands for the time since the one before; None where none fell into the windows."""
    total, weight = 0.0, 0.0
    for before_s, t_s, value in zip([0.0, *series.t_s], series.t_s, series.values, strict=False):
        share = windows.share(before_s, t_s) * (t_s - before_s) if value is not None else 0.0
        total, weight = total + share * (value or 0.0), weight + share
    return total / weight if weight else None
