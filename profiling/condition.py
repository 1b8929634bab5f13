"""`--fail-if "wait>10%"`: a condition on a diagnosis, for continuous integration.

    CONDITION = TERM { or TERM }        TERM = NAME OP NUMBER[%]        OP = > >= < <=

Names: wait, data, copy, trainer, compute, overhead (fractions), samples_per_s, ceiling, the workers' stages (read,
decode, transform, collate, send, idle, other), and gpu (the mean SM activity, else utilisation, over the GPUs).
A quantity that was not measured is an error, never a pass.
"""

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass

from feedline.profiling.diagnose import Diagnosis
from feedline.profiling.errors import ProfilingError, ProfilingUsageError
from feedline.profiling.recording import STAGES, Recording
from feedline.profiling.render import units

OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
FRACTIONS = ("wait", "data", "copy", "trainer", "compute", "overhead", "gpu", *STAGES)
NAMES = (*FRACTIONS, "samples_per_s", "ceiling")
_TERM = re.compile(r"\s*([A-Za-z_]+)\s*(>=|<=|>|<)\s*([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*(%?)\s*")


class ConditionMet(ProfilingError):
    """What the user asked to be failed for. Exit status 1."""


@dataclass(frozen=True, kw_only=True)
class Term:
    name: str
    sign: str
    limit: float

    def __str__(self) -> str:
        return f"{self.name} {self.sign} {_shown(self.name, self.limit)}"


def parse(text: str) -> list[Term]:
    """Terms of which any one fails the run. Raises ProfilingUsageError, naming what cannot be read."""
    return [_term(part, text) for part in re.split(r"\s+or\s+|,", text.strip())]


def _term(part: str, whole: str) -> Term:
    found = _TERM.fullmatch(part)
    if not found:
        raise ProfilingUsageError(f'--fail-if {whole!r}: {part.strip()!r} is not NAME > NUMBER, like "wait>10%"')
    name, sign, number, percent = found.groups()
    if name not in NAMES:
        raise ProfilingUsageError(f"--fail-if {whole!r}: unknown name {name!r}; known are {', '.join(NAMES)}")
    limit = float(number) / (100 if percent else 1)
    if percent and name not in FRACTIONS:
        raise ProfilingUsageError(f"--fail-if {whole!r}: {name} is no share of anything, so it takes no %")
    if not percent and name in FRACTIONS and limit > 1:
        raise ProfilingUsageError(f"--fail-if {whole!r}: {name} is a fraction of 1: write {name}{sign}{number}%")
    return Term(name=name, sign=sign, limit=limit)


def check(terms: list[Term], recording: Recording, diagnosis: Diagnosis) -> None:
    """Raises ConditionMet for the first term that holds, ProfilingError for one that cannot be judged."""
    for term in terms:
        value = value_of(term.name, recording, diagnosis)
        if value is None:
            raise ProfilingError(f"--fail-if: {term.name} was not measured in this run, so {term} cannot be judged")
        if OPERATORS[term.sign](value, term.limit):
            raise ConditionMet(f"{term.name} is {_shown(term.name, value)}: fails as asked ({term})")


def value_of(name: str, recording: Recording, diagnosis: Diagnosis) -> float | None:
    """None where it was not measured."""
    measured = diagnosis.measured
    if name in STAGES:
        return measured.stages.get(name)
    if name == "overhead":
        return diagnosis.overhead_fraction
    if name == "ceiling":
        return diagnosis.ceiling_samples_per_s
    if name == "gpu":
        found = [gpu.utilization if gpu.sm_active is None else gpu.sm_active for gpu in recording.gpus]
        known = [value for value in found if value is not None]
        return sum(known) / len(known) if known else None
    if measured.rate is None:
        return None
    if name == "samples_per_s":
        return measured.rate.value
    return measured.wait_fraction if name == "wait" else float(getattr(measured.shares, name))


def _shown(name: str, value: float) -> str:
    return units.percent(value) if name in FRACTIONS else units.number(value)
