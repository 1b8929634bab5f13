"""The ladder: one training script, climbed from as it is to where its data is as good as free.

Every rung runs the same script with the same model and another way of getting its batches
(`benchmarks.measure.script_subject`), in a fresh process per window; rounds visit the rungs in random order. What
each rung will give is predicted from the script's profile alone, as in its report (`profiling.explain.predict`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from feedline.benchmarks.measure.intervals import Estimate, estimate
from feedline.benchmarks.measure.rounds import Bench, rounds
from feedline.benchmarks.measure.window import Subject, Window
from feedline.pipeline.base.errors import UsageError
from feedline.profiling.explain.measure.rates import Rate
from feedline.profiling.explain.measure.situation import measure
from feedline.profiling.explain.predict import Prediction, all_predictions, prediction_for
from feedline.profiling.record.recording import Recording

CEILING = "ceiling"
Progress = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True)
class LadderConfig:
    argv: list[str]
    """The script and its arguments."""
    shards: Path
    """Train split of the JPEG shards."""
    raw: Path | None = None
    """Train split of raw shards at the script's own output size; None leaves the last rung out."""
    num_workers: int = 2
    rounds: int = 3
    window_s: float = 3.0
    warm_up_s: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.rounds < 2:
            raise UsageError(f"--rounds {self.rounds}: at least 2, or there is no interval")
        if not self.argv:
            raise UsageError("no script to climb with: give one, e.g. train.py --data photos")


@dataclass(frozen=True, kw_only=True)
class Rung:
    """One way of getting batches. `key` is also its prediction's."""

    key: str
    name: str
    words: str
    how: str
    split: Path | None = None
    num_workers: int = 0
    layout: str | None = None


@dataclass(frozen=True, kw_only=True)
class Climbed:
    rung: Rung
    windows: list[Window]
    prediction: Prediction | None

    @property
    def measured(self) -> Estimate:
        return estimate([window.samples_per_s for window in self.windows])

    def record(self) -> dict[str, Any]:
        measured, predicted = self.measured, self.prediction
        return {
            "name": self.rung.name,
            "words": self.rung.words,
            "samples_per_s": measured.value,
            "low": measured.low,
            "high": measured.high,
            "n": measured.n,
            "predicted": predicted.samples_per_s if predicted else None,
            "predicted_low": predicted.low if predicted else None,
            "predicted_high": predicted.high if predicted else None,
            "why": predicted.why if predicted else "",
            "num_workers": self.rung.num_workers,
            "wait_fraction": sum(w.wait_s for w in self.windows) / sum(w.seconds for w in self.windows),
            "windows": [asdict(window) for window in self.windows],
        }


@dataclass(frozen=True, kw_only=True)
class Ladder:
    rungs: list[Climbed]
    ceiling: Climbed
    notes: list[str] = field(default_factory=list)

    @property
    def gain(self) -> float:
        """The top rung by the first."""
        return self.rungs[-1].measured.value / self.rungs[0].measured.value

    def record(self) -> dict[str, Any]:
        ceiling = self.ceiling.measured
        return {
            "rungs": [climbed.record() for climbed in self.rungs],
            "ceiling_samples_per_s": ceiling.value,
            "ceiling_low": ceiling.low,
            "ceiling_high": ceiling.high,
            "gain": self.gain,
            "notes": self.notes,
        }


def rungs_of(config: LadderConfig) -> list[Rung]:
    workers = config.num_workers
    found = [
        Rung(key="as-is", name="the script as it is", words="image files, its own loader and settings", how="none"),
        Rung(key="workers", name=f"+ {workers} workers", words="the same DataLoader, num_workers set",
             how="workers", num_workers=workers),
        Rung(key="shards", name="+ prepared shards", words="stock webdataset reads them, the same DataLoader",
             how="webdataset", split=config.shards, num_workers=workers),
        Rung(key="loader", name="+ feedline's loader", words="the same shards; whole uint8 batches, region decoding",
             how="feedline", split=config.shards, num_workers=workers),
    ]  # fmt: skip
    if config.raw is not None:
        found.append(
            Rung(key="raw", name="+ raw shards", words="pixels at the size the model sees: nothing to decode",
                 how="feedline", split=config.raw, num_workers=workers)
        )  # fmt: skip
    return found


def free_data() -> Rung:
    return Rung(
        key=CEILING, name="data is free", words="cached batches, laid out as feedline hands them over", how="cached",
        layout="channels_last",
    )  # fmt: skip


def predictions(recording: Recording, *, workers: int, size_px: int, raw_px: int | None) -> dict[str, Prediction]:
    """By rung key, from a profile of the script as it is with trials of the shards; {} where it measured no rate."""
    measured = measure(recording)
    if measured.rates.over_epochs is None:
        return {}
    offered = all_predictions(recording, workers=[workers], measured=measured)
    settings: dict[str, dict[str, Any]] = {
        "workers": {},
        "shards": {"codec": "jpeg", "size": size_px, "loader": "script"},
        "loader": {"codec": "jpeg", "size": size_px, "loader": "feedline"},
        "raw": {"codec": "raw", "size": raw_px, "loader": "feedline"},
    }
    asked = {key: prediction_for(offered, **chosen, num_workers=workers) for key, chosen in settings.items()}
    as_is = _as_profiled(measured.rates.over_epochs)
    if workers == measured.workers.count:
        asked["workers"] = as_is
    return {"as-is": as_is, **{key: prediction for key, prediction in asked.items() if prediction is not None}}


def _as_profiled(rate: Rate) -> Prediction:
    return Prediction(remedy="as it is", samples_per_s=rate.value, low=rate.low, high=rate.high, why="as profiled")


def climb(config: LadderConfig, predicted: Mapping[str, Prediction], advance: Progress) -> Ladder:
    """Measure every rung and the ceiling, interleaved. Raises MeasureError where a rung cannot be run."""
    rungs = [*rungs_of(config), free_data()]
    windows: dict[str, list[Window]] = {rung.key: [] for rung in rungs}
    by_key = {rung.key: rung for rung in rungs}
    with Bench() as bench:
        for done, (_, key) in enumerate(rounds(list(by_key), config.rounds, config.seed)):
            advance(done, config.rounds * len(rungs))
            windows[key].append(bench.measure_quiet(subject_of(by_key[key], config)))
    climbed = [Climbed(rung=rung, windows=windows[rung.key], prediction=predicted.get(rung.key)) for rung in rungs]
    return Ladder(rungs=climbed[:-1], ceiling=climbed[-1], notes=differences(climbed))


def subject_of(rung: Rung, config: LadderConfig) -> Subject:
    settings = {"argv": config.argv, "how": rung.how, "num_workers": rung.num_workers, "layout": rung.layout}
    if rung.split is not None:
        settings["split"] = str(rung.split)
    return Subject(kind="script", settings=settings, window_s=config.window_s, warm_up_s=config.warm_up_s)


def differences(climbed: Sequence[Climbed]) -> list[str]:
    """Rungs must hand the model the same kind of batch; where they do not, the reader is told."""
    seen = {one.rung.name: one.windows[0].facts for one in climbed}
    shapes = {name: (facts.get("dtype"), tuple(facts.get("shape", ()))[1:]) for name, facts in seen.items()}
    usual = next(iter(shapes.values()))
    return [
        f"{name} hands over {dtype} {shape}, the script as it is {usual[0]} {usual[1]}"
        for name, (dtype, shape) in shapes.items()
        if (dtype, shape) != usual
    ]
