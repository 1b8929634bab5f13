"""`--fail-if "wait>10%"`: a condition on a profile, for continuous integration. Pure.

`NAME > NUMBER[%]` (also >=, <, <=) of: wait, data, copy, trainer, compute, overhead (fractions), rate or
samples_per_s, ceiling, the workers' stages (`record/stages.py`), and gpu (SM activity, else utilisation, the mean
over GPUs). `bound == data`, `bound != compute`. The option may be given several times: it fails if any condition
holds. What was not measured does not pass: its condition then counts as met.
"""

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from feedline.pipeline.base.errors import FeedlineError, UsageError
from feedline.profiling.explain.bound import Bound
from feedline.profiling.explain.measure.rates import ERRORS_90, ERRORS_95
from feedline.profiling.explain.verdict import Diagnosis, record_keys
from feedline.profiling.record import units
from feedline.profiling.record.stages import STAGES

OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    ">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le,
    "==": operator.eq, "=": operator.eq, "!=": operator.ne,
}  # fmt: skip
BOUNDS: tuple[str, ...] = get_args(Bound)
FRACTIONS = ("wait", "data", "copy", "trainer", "compute", "overhead", "gpu", *STAGES)
NAMES = (*FRACTIONS, "rate", "samples_per_s", "ceiling")
VERDICT_KEYS = {"wait": "wait_fraction", "rate": "samples_per_s", "ceiling": "ceiling_samples_per_s",
                "overhead": "overhead_fraction"}  # fmt: skip
NUMBER = re.compile(r"([a-z_]+)\s*(>=|<=|>|<)\s*(\d*\.?\d+(?:e[+-]?\d+)?)\s*(%?)", re.IGNORECASE)
BOUND = re.compile(r"bound\s*(==|=|!=)\s*([a-z]+)")


class ConditionMet(FeedlineError):
    """What the user asked to be failed for."""


@dataclass(frozen=True, kw_only=True)
class Condition:
    """One comparison; `limit` is a number, or the name of a bound."""

    text: str
    name: str
    sign: str
    limit: float | str

    def holds(self, record: Mapping[str, Any]) -> tuple[bool, str]:
        """Whether it holds, and the value that decided, in words. `record` is that of a profile (`record_keys`)."""
        value = _value(self.name, record)
        if value is None:
            return True, f"{self.name} could not be measured"
        words = f"bound = {value}" if self.name == "bound" else f"{self.name} = {units.number(value)}"
        return OPERATORS[self.sign](value, self.limit), words + (", close" if self.is_close(record) else "")

    def is_close(self, record: Mapping[str, Any]) -> bool:
        """Whether the limit lies inside the value's interval."""
        if isinstance(self.limit, str):
            verdict, close = record["verdict"], record["verdict"].get("close") or []
            return bool(close) and self.limit in (verdict["bound"], *close)
        value, error = _value(self.name, record), _error(self.name, record)
        return value is not None and error is not None and abs(value - self.limit) <= ERRORS_90 * error


def parse(text: str) -> Condition:
    """Raises UsageError, in one line that names what cannot be read."""
    where = f"--fail-if {text!r}"
    if bound := BOUND.fullmatch(text.strip()):
        if bound[2] not in BOUNDS:
            raise UsageError(f"{where}: bound is one of {', '.join(BOUNDS)}, not {bound[2]!r}")
        return Condition(text=text, name="bound", sign=bound[1], limit=bound[2])
    term = NUMBER.fullmatch(text.strip())
    if not term:
        example = 'write one comparison, like "wait>10%" or "bound==data"; for several give --fail-if several times'
        raise UsageError(f"{where}: {example}")
    name, sign, number, percent = term.groups()
    if name not in NAMES:
        raise UsageError(f"{where}: unknown name {name!r}; known are bound, {', '.join(NAMES)}")
    limit = float(number) / (100 if percent else 1)
    if percent and name not in FRACTIONS:
        raise UsageError(f"{where}: {name} is no share of anything, so it takes no %")
    if not percent and name in FRACTIONS and limit > 1:
        raise UsageError(f"{where}: {name} is a fraction of 1; write {name}{sign}{number}%")
    return Condition(text=text, name=name, sign=sign, limit=limit)


def check(conditions: Iterable[Condition], diagnosis: Diagnosis, name: str = "") -> list[str]:
    """Raises ConditionMet, exit status 1, for the first condition that holds. Comes back with those that came close,
    in words. `name`: of the recording, where there are several."""
    record, close, of = record_keys(diagnosis), list[str](), f" of {name}" if name else ""
    for condition in conditions:
        met, words = condition.holds(record)
        if met:
            raise ConditionMet(f"--fail-if {condition.text!r}{of}: {words}")
        if condition.is_close(record):
            close.append(f"--fail-if {condition.text!r}{of} passed: {words}")
    return close


def _error(name: str, record: Mapping[str, Any]) -> float | None:
    """Absolute standard error; None where there is none to tell."""
    verdict = record["verdict"]
    if name in STAGES:
        return (record.get("stage_errors") or {}).get(name)
    if name in ("rate", "samples_per_s"):
        high, value = verdict.get("high"), verdict.get("samples_per_s")
        return None if high is None or value is None else (high - value) / ERRORS_95
    return (verdict.get("errors") or {}).get("data" if name == "wait" else name)


def _value(name: str, record: Mapping[str, Any]) -> Any:
    """None where it was not measured."""
    verdict = record["verdict"]
    if name in STAGES:
        return (record.get("stages") or {}).get(name)
    if name in BOUNDS:
        return (verdict.get("shares") or {}).get(name)
    if name == "gpu":
        gpus = record.get("gpu", ())
        own = [gpu for gpu in gpus if gpu.get("process_memory_bytes")]  # others' GPUs say nothing of this script
        busy = [g.get("utilization") if g.get("sm_active") is None else g["sm_active"] for g in own or gpus]
        known = [value for value in busy if value is not None]
        return sum(known) / len(known) if known else None
    return verdict.get(VERDICT_KEYS.get(name, name))
