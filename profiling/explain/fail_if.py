"""`--fail-if "wait>10%"`: a condition on a profile, for continuous integration. Pure.

    CONDITION = ALL { or ALL }      ALL = TERM { and TERM }      TERM = NAME OP VALUE

`NAME > NUMBER[%]` (also >=, <, <=) of: wait, data, copy, trainer, compute, overhead (fractions), rate or
samples_per_s, ceiling, the workers' stages (read, decode, transform, collate, send, idle, other), and gpu (SM
activity, else utilisation, the mean over GPUs). `bound == data`, `bound != compute`.
What was not measured does not pass: the condition then counts as met, and says so.
"""

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from feedline.pipeline.base.errors import FeedlineError, UsageError
from feedline.profiling.explain.verdict import Diagnosis, record_keys
from feedline.profiling.record import units
from feedline.profiling.record.recording import STAGES, Recording

OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
BOUNDS = ("data", "copy", "compute", "trainer")
FRACTIONS = ("wait", "data", "copy", "trainer", "compute", "overhead", "gpu", *STAGES)
NAMES = (*FRACTIONS, "rate", "samples_per_s", "ceiling")
EXAMPLE = 'like "wait>10%", "rate<500 and wait>5%" or "bound==data"'
_NUMBER_TERM = re.compile(r"([a-z_]+)\s*(>=|<=|>|<)\s*(\d*\.?\d+(?:e[+-]?\d+)?)\s*(%?)", re.IGNORECASE)
_BOUND_TERM = re.compile(r"bound\s*(==|=|!=)\s*([a-z]+)")
_VERDICT_KEYS = {"wait": "wait_fraction", "rate": "samples_per_s", "ceiling": "ceiling_samples_per_s",
                 "overhead": "overhead_fraction"}  # fmt: skip


class ConditionMet(FeedlineError):
    """What the user asked to be failed for."""


@dataclass(frozen=True, kw_only=True)
class Term:
    """One comparison; `limit` is a number, or the name of a bound."""

    name: str
    sign: str
    limit: float | str

    def holds(self, verdict: Mapping[str, Any], more: Mapping[str, Any]) -> tuple[bool, str]:
        value = _value(self.name, verdict, more)
        if value is None:
            return True, f"{self.name} could not be measured"
        if isinstance(self.limit, str):
            return (value == self.limit) is (self.sign != "!="), f"bound = {value}"
        return OPERATORS[self.sign](value, self.limit), f"{self.name} = {units.number(value)}"


@dataclass(frozen=True, kw_only=True)
class Condition:
    text: str
    alternatives: list[list[Term]]
    """Any one of them, all its terms."""

    def holds(self, record: Mapping[str, Any]) -> tuple[bool, str]:
        """Whether it holds, and the values that decided, in words. `record` is that of a profile
        (`diagnose.record_keys`)."""
        said: list[str] = []
        for terms in self.alternatives:
            found = [term.holds(record["verdict"], record) for term in terms]
            words = ", ".join(words for _, words in found)
            if all(met for met, _ in found):
                return True, words
            said.append(words)
        return False, ", ".join(said)


def parse(text: str) -> Condition:
    """Raises UsageError, in one line that names what cannot be read."""
    alternatives = [
        [_term(term, text) for term in re.split(r"\s+and\s+", part)] for part in re.split(r"\s+or\s+|,", text)
    ]
    if len(alternatives) > 1 and any(len(terms) > 1 for terms in alternatives) and "," in text:
        raise UsageError(f"--fail-if {text!r}: write `or`, not a comma, beside `and`")
    return Condition(text=text, alternatives=alternatives)


def check(condition: Condition, recording: Recording, diagnosis: Diagnosis) -> None:
    """Raises ConditionMet, exit status 1, when the condition holds."""
    met, words = condition.holds(record_keys(recording, diagnosis))
    if met:
        raise ConditionMet(f"--fail-if {condition.text!r}: {words}")


def _term(part: str, whole: str) -> Term:
    part = part.strip()
    if found := _BOUND_TERM.fullmatch(part):
        if found[2] not in BOUNDS:
            raise UsageError(f"--fail-if {whole!r}: bound is one of {', '.join(BOUNDS)}, not {found[2]!r}")
        return Term(name="bound", sign=found[1], limit=found[2])
    found = _NUMBER_TERM.fullmatch(part)
    if not found:
        raise UsageError(f"--fail-if {whole!r}: cannot read {part!r}; write it {EXAMPLE}")
    name, sign, number, percent = found.groups()
    if name not in NAMES:
        raise UsageError(f"--fail-if {whole!r}: unknown name {name!r}; known are bound, {', '.join(NAMES)}")
    limit = float(number) / (100 if percent else 1)
    if percent and name not in FRACTIONS:
        raise UsageError(f"--fail-if {whole!r}: {name} is no share of anything, so it takes no %")
    if not percent and name in FRACTIONS and limit > 1:
        raise UsageError(f"--fail-if {whole!r}: {name} is a fraction of 1; write {name}{sign}{number}%")
    return Term(name=name, sign=sign, limit=limit)


def _value(name: str, verdict: Mapping[str, Any], more: Mapping[str, Any]) -> Any:
    """None where it was not measured."""
    if name in STAGES:
        return (more.get("stages") or {}).get(name)
    if name in BOUNDS:
        return (verdict.get("shares") or {}).get(name)
    if name == "gpu":
        found = [
            gpu.get("utilization") if gpu.get("sm_active") is None else gpu["sm_active"]
            for gpu in more.get("gpu", ())
        ]
        known = [value for value in found if value is not None]
        return sum(known) / len(known) if known else None
    return verdict.get(_VERDICT_KEYS.get(name, name))
