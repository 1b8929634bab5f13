"""Remedies that an argument or the environment applies: predicted gains against measured ones. Pure."""

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.lab.collection_runs import Script

ALPHA = 0.1


@dataclass(frozen=True, kw_only=True)
class Gain:
    """A remedy that was carried out; factors over the script as it is."""

    script: str
    remedy: str
    rank: int
    """1: the first that the profile names."""
    helps: bool
    """It is said to."""
    predicted: float
    low: float
    high: float
    measured: float

    @property
    def inside(self) -> bool:
        return self.low <= self.measured <= self.high


def carried_out_by(script: Script, prediction: Mapping[str, Any]) -> tuple[list[str], dict[str, str]] | None:
    """The arguments and the environment that apply it; None where a person would have to change the script."""
    settings = dict(prediction.get("settings", {}))
    workers = script.option("(?:num[-_])?workers")
    if set(settings) == {"num_workers"} and workers:
        return [workers, str(settings["num_workers"])], {}
    words = f"{prediction.get('command', '')} {prediction.get('cost', '')}"
    variables = dict(re.findall(r"\b(MALLOC_\w+)=(\d+)", words))
    return ([], variables) if variables and prediction.get("family", "memory") == "memory" else None


def gain_of(script: Script, prediction: Mapping[str, Any], measured: float, *, rank: int) -> Gain:
    predicted, rate = prediction["gain"], prediction["samples_per_s"]
    low = prediction.get("gain_low") or predicted * prediction["low"] / rate
    high = prediction.get("gain_high") or predicted * prediction["high"] / rate
    return Gain(
        script=script.name,
        remedy=prediction["remedy"],
        rank=rank,
        helps=prediction["helps"],
        predicted=predicted,
        low=low,
        high=high,
        measured=measured,
    )


def scored(gains: Sequence[Gain]) -> dict[str, Any]:
    """The interval score is Gneiting and Raftery's (2007) for 90 %, of logarithms: width, and 20 times what lies
    outside."""
    if not gains:
        return {"n": 0}
    logs = [(math.log(one.low), math.log(one.measured), math.log(one.high)) for one in gains]
    scores = [high - low + 2 / ALPHA * max(0.0, low - value, value - high) for low, value, high in logs]
    return {
        "n": len(gains),
        "inside": sum(one.inside for one in gains),
        "median_error": statistics.median(abs(one.measured / one.predicted - 1) for one in gains),
        "median_half_width": statistics.median((one.high - one.low) / 2 / one.predicted for one in gains),
        "interval_score": statistics.mean(scores),
    }
