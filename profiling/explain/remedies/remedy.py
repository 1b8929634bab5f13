"""What a remedy is: a function from a measured run to changes.

    def my_remedy(at: Situation) -> Iterable[Change]: ...

It yields nothing where it does not apply, and a change that is `Vain`, with the reason, where it applies and would
not help. Its name is listed in the `REMEDIES` of its file; what a change gives is predicted by
`profiling.explain.predict`.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from feedline.profiling.explain.measure.situation import Situation
from feedline.profiling.explain.measure.throughput import Throughput
from feedline.profiling.record.recording import Trial


class Effort(IntEnum):
    """What a remedy asks of the user, the least first."""

    SETTING = 0
    CODE = 1
    PREPARING = 2
    HARDWARE = 3

    @property
    def words(self) -> str:
        return ("one argument", "a change of code", "preparing once", "hardware")[self]


class Vain(str):
    """A reason why it will not help, whatever the model says."""

    __slots__ = ()


@dataclass(frozen=True, kw_only=True)
class Change:
    """One remedy on one run, before it is turned into a prediction."""

    remedy: str  # its name, with its values
    then: Throughput  # the model as it would be
    effort: Effort
    why: str  # it may help (how much is for the model to say), or is `Vain`
    cost: str = ""  # what it costs, where the effort's words do not say it
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What to change, as keywords of the loader or of `feedline prepare`."""
    trial: Trial | None = None  # prepared samples that it rests on
    extra_error: float = 0.0  # relative error beyond the model's own, e.g. of an assumed factor
    ceiling_times: float = 1.0
    """How far it moves the ceiling; infinite where that is not known, as for copies and compute."""


Remedy = Callable[[Situation], Iterable[Change]]
