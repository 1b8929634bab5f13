"""What other programs took of the machine's cores while the steps were measured. Pure.

    others = cores busy on the whole machine - cores used by the script's own processes

The machine is crowded when others took a fifth or more of the cores that the script may use, and hardly a core of the
machine was free. The script's own use is taken from its processes' clocks where they were read, else from the
sampler, whichever says more, so that a worker that lived shortly is not mistaken for a stranger.
"""

from collections.abc import Iterable, Sequence

from feedline.profiling.record.recording import Recording, Series, Step

NOTABLE = 0.2
FULL = 0.85


def others_cores(recording: Recording, steps: Sequence[Step], *, own_cores: float, cores: float) -> float | None:
    """Cores that other programs took, 0 where the machine still had free ones; None where nobody counted.

    `own_cores` is what the script's own clocks say of it, `cores` what it may use.
    """
    found = machine_and_others(recording, steps, own_cores)
    if found is None:
        return None
    machine, others = found
    full = machine >= FULL * float(recording.host.get("cores") or cores)
    return min(others, cores) if full and others >= NOTABLE * cores else 0.0


def machine_and_others(
    recording: Recording, steps: Sequence[Step], own_cores: float = 0.0
) -> tuple[float, float] | None:
    """(cores busy on the whole machine, those of them that were not the script's) while the steps ran."""
    if not steps:
        return None
    start, end = min(step.start_s for step in steps), max(step.start_s + step.duration_s for step in steps)
    series = [one for one in recording.series if one.name == "cpu_cores"]
    machine = _sum_of_means([one for one in series if one.scope == "host"], start, end)
    if machine is None:
        return None
    sampled = _sum_of_means([one for one in series if one.scope != "host"], start, end) or 0.0
    return machine, max(0.0, machine - max(own_cores, sampled))


def fair_share(cores: float, own_processes: int, others: float) -> float:
    """Cores that a fair scheduler gives to so many busy processes beside `others` cores' worth of foreign ones."""
    return cores if not others else max(cores - others, cores * own_processes / (own_processes + others))


def _sum_of_means(found: Iterable[Series], start: float, end: float) -> float | None:
    means: list[float] = []
    for series in found:
        known = [v for t, v in zip(series.t_s, series.values, strict=True) if v is not None and start <= t <= end]
        means += [sum(known) / len(known)] if known else []
    return sum(means) if means else None
