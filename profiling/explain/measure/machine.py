"""The machine the script ran on, and what other programs took of it meanwhile. Pure.

    others = cores busy on the whole machine - cores used by the script's own processes

The script's own use is taken from its processes' clocks where they were read, else from the sampler, whichever says
more, so that a worker that lived shortly is not mistaken for another program.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from feedline.profiling.record.recording import Recording, Series, Step

NOTABLE = 0.2
FULL = 0.85


@dataclass(frozen=True, kw_only=True)
class Machine:
    cores: float
    """Usable by all ranks and their workers together."""
    ranks: int
    on_cpu: bool
    """The model computes on the same cores as the workers."""
    others_busy: float
    """Cores that other programs used while the steps ran; 0 where nobody counted."""
    full: bool
    """Hardly a core of the machine was free."""

    @property
    def others_cores(self) -> float:
        """Cores that other programs took from the script: a fifth or more of its own, on a machine without free
        ones; else 0."""
        return min(self.others_busy, self.cores) if self.full and self.others_busy >= NOTABLE * self.cores else 0.0

    def fair_cores(self, processes: int) -> float:
        """Cores that a fair scheduler gives to so many busy processes beside the other programs."""
        others = self.others_cores
        return max(self.cores - others, self.cores * processes / (processes + others)) if others else self.cores


def recorded_cores(recording: Recording) -> float:
    return float(recording.host.get("affinity") or recording.host.get("cores") or 1)


def measure_machine(recording: Recording, steps: Sequence[Step], samples_per_s: float) -> Machine:
    cores, costs = recorded_cores(recording), recording.costs
    own = samples_per_s * ((costs.worker_cpu_s or 0.0) + (costs.trainer_cpu_s or 0.0))
    host = _cores_busy((one for one in recording.series if one.scope == "host"), steps)
    sampled = _cores_busy((one for one in recording.series if one.scope != "host"), steps)
    return Machine(
        cores=cores,
        ranks=max(1, recording.compute.world_size),
        on_cpu=recording.compute.device == "cpu",
        others_busy=max(0.0, host - max(own, sampled)),
        full=host >= FULL * float(recording.host.get("cores") or cores),
    )


def _cores_busy(series: Iterable[Series], steps: Sequence[Step]) -> float:
    """Sum of the means of their `cpu_cores` while the steps ran; 0 where there are none."""
    start_s = min((step.start_s for step in steps), default=0.0)
    end_s = max((step.start_s + step.duration_s for step in steps), default=0.0)
    total = 0.0
    for one in series:
        pairs = zip(one.t_s, one.values, strict=True) if one.name == "cpu_cores" else ()
        known = [value for t_s, value in pairs if value is not None and start_s <= t_s <= end_s]
        total += sum(known) / len(known) if known else 0.0
    return total
