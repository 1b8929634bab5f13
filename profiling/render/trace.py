"""A recording as a Chrome trace, which Perfetto (ui.perfetto.dev) and chrome://tracing open. Pure: returns a dict.

One process per rank with a track of steps (and in them the wait, then what followed), one for the resources as
counters. Times are microseconds since the recording began. Inside a step only the wait's place is known; copy,
backward and optimiser are drawn after it, in that order and with their measured lengths.
"""

import shlex
from collections.abc import Iterator
from typing import Any

from feedline.profiling.record.recording import Recording, Step

RESOURCES_PID = 1_000_000
PHASES = {"train": "training step", "eval": "evaluation batch", "other": "batch"}


def trace(recording: Recording) -> dict[str, Any]:
    """JSON-ready, in the format's object form; events are sorted by time within a track."""
    events: list[dict[str, Any]] = []
    for rank in sorted({step.rank for step in recording.steps}):
        events.append(_event("process_name", "M", 0, rank, 0, name=f"rank {rank}: trainer"))
        ids = sorted({step.loader for step in recording.steps if step.rank == rank})
        events += [
            _event("thread_name", "M", 0, rank, loader, name=f"main thread, loader {loader}") for loader in ids
        ]
    if recording.series:
        events.append(_event("process_name", "M", 0, RESOURCES_PID, 0, name="resources"))
    for step in sorted(recording.steps, key=lambda step: (step.rank, step.loader, step.start_s)):
        events += _slices(step)
    for series in recording.series:
        name = f"{series.scope} {series.name} ({series.unit})"
        for at_s, value in zip(series.t_s, series.values, strict=False):
            if value is not None:
                events.append(_event(name, "C", at_s * 1e6, RESOURCES_PID, 0, value=value))
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"script": shlex.join(recording.script.argv), "started": recording.started, "by": "feedline"},
    }


def _slices(step: Step) -> Iterator[dict[str, Any]]:
    """The step, then what lies in it."""
    args = {"samples": step.samples, "epoch": step.epoch, "warm_up": step.warm_up}
    args |= {} if step.bytes is None else {"bytes": step.bytes}
    whole = _event(PHASES[step.phase], "X", step.start_s * 1e6, step.rank, step.loader, **args)
    yield {**whole, "cat": step.phase, "dur": step.duration_s * 1e6}
    inside = {
        "wait for data": step.wait_s,
        "copy to device": step.copy_s or 0.0,
        "forward and Python": max(0.0, step.compute_s - step.backward_s - step.optimizer_s),
        "backward": step.backward_s,
        "optimiser": step.optimizer_s,
        "pause: evaluation, checkpoint": step.pause_s,
    }
    at = step.start_s
    for name, seconds in inside.items():
        # Rounding must not let a part stick out of its step: importers then refuse to nest it.
        fitting = min(seconds, step.start_s + step.duration_s - at)
        if fitting > 0:
            part = _event(name, "X", at * 1e6, step.rank, step.loader)
            yield {**part, "cat": step.phase, "dur": fitting * 1e6}
            at += fitting


def _event(event: str, kind: str, ts_us: float, pid: int, tid: int, **args: object) -> dict[str, Any]:
    return {"name": event, "ph": kind, "ts": ts_us, "pid": pid, "tid": tid, "args": args}
