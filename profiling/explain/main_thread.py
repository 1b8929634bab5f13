"""What the trainer's main thread spent its time on, from its stack samples. Pure."""

from typing import get_args

from feedline.profiling.record.recording import Recording, TrainerPart

PARTS = get_args(TrainerPart)
OWN = ("python", "logging", "checkpoint", "synchronise")
"""Parts that are the script's own Python."""


def parts_of(recording: Recording) -> dict[str, float]:
    """Shares of the main thread's time, the mean over ranks."""
    total = sum(trainer.seconds for trainer in recording.trainers)
    names = {name for trainer in recording.trainers for name in trainer.parts}
    if not total:
        return {}
    return {name: sum(trainer.parts.get(name, 0.0) for trainer in recording.trainers) / total for name in names}


def own_places(recording: Recording) -> dict[str, float]:
    """Seconds of the main thread by place of the script's own Python, the largest first. `windows.RowSum` puts the
    part before the place: those of other parts are left out."""
    places: dict[str, float] = {}
    for trainer in recording.trainers:
        for name, seconds in trainer.functions.items():
            part, _, place = name.partition(" ")  # the first: a file's name may have more of them
            if part not in PARTS:
                part, place = "python", name
            if part in OWN:
                places[place] = places.get(place, 0.0) + seconds
    return dict(sorted(places.items(), key=lambda item: -item[1]))


def _cpu_known(recording: Recording) -> bool:
    """Not every system has clocks for single threads."""
    return any(seconds > 0 for one in recording.trainers for seconds in one.parts_cpu_s.values())


def slowdown_of(recording: Recording) -> float:
    """Wall over CPU time of the main thread while it did something; 1 where its CPU time is unknown.

    On a GPU the main thread sleeps while it synchronises, so there nothing can be told.
    """
    if recording.compute.device != "cpu":
        return 1.0
    idle = ("wait", "copy", "synchronise", "other")
    if _cpu_known(recording):
        idle = (*idle, "unpickle", "load")
        cpu = sum(s for one in recording.trainers for name, s in one.parts_cpu_s.items() if name not in idle)
    else:
        cpu = sum(one.main_cpu_s or 0.0 for one in recording.trainers)
    busy = sum(s for one in recording.trainers for name, s in one.parts.items() if name not in idle)
    return max(1.0, busy / cpu) if cpu else 1.0


def unpickling_share(recording: Recording) -> float:
    """Share of the main thread's time in which it really unpickles. What it then waits for the worker that has the
    bytes (a busy one answers late when its memory is asked for) is waiting for the worker."""
    total = sum(one.seconds for one in recording.trainers)
    wall = sum(one.parts.get("unpickle", 0.0) for one in recording.trainers)
    if _cpu_known(recording):
        cpu = sum(one.parts_cpu_s.get("unpickle", 0.0) for one in recording.trainers)
        wall = min(wall, cpu * slowdown_of(recording))
    return wall / total if total else 0.0
