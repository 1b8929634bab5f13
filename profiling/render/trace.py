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
    events = [*_names(recording), *_steps(recording), *_counters(recording)]
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"script": shlex.join(recording.script.argv), "started": recording.started, "by": "feedline"},
    }


def _names(recording: Recording) -> Iterator[dict[str, Any]]:
    for rank in sorted({step.rank for step in recording.steps}):
        yield _metadata("process_name", rank, 0, f"rank {rank}: trainer")
        for loader in sorted({step.loader for step in recording.steps if step.rank == rank}):
            yield _metadata("thread_name", rank, loader, f"main thread, loader {loader}")
    if recording.series:
        yield _metadata("process_name", RESOURCES_PID, 0, "resources")


def _metadata(kind: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "ts": 0, "pid": pid, "tid": tid, "args": {"name": name}}


def _steps(recording: Recording) -> Iterator[dict[str, Any]]:
    for step in sorted(recording.steps, key=lambda one: (one.rank, one.loader, one.start_s)):
        args = {"samples": step.samples, "epoch": step.epoch, "warm_up": step.warm_up, "bytes": step.bytes}
        yield _slice(PHASES[step.phase], step.start_s, step.duration_s, step, args)
        at = step.start_s
        for name, seconds in _inside(step):
            # Rounding must not let a part stick out of its step: importers then refuse to nest it.
            fitting = min(seconds, step.start_s + step.duration_s - at)
            if fitting > 0:
                yield _slice(name, at, fitting, step, {})
                at += fitting


def _inside(step: Step) -> list[tuple[str, float]]:
    rest = step.compute_s - step.backward_s - step.optimizer_s
    return [
        ("wait for data", step.wait_s),
        ("copy to device", step.copy_s),
        ("forward and Python", max(0.0, rest)),
        ("backward", step.backward_s),
        ("optimiser", step.optimizer_s),
        ("pause: evaluation, checkpoint", step.pause_s),
    ]


def _slice(name: str, start_s: float, seconds: float, step: Step, args: dict[str, Any]) -> dict[str, Any]:
    known = {key: value for key, value in args.items() if value is not None}
    return {
        "name": name, "cat": step.phase, "ph": "X", "ts": start_s * 1e6, "dur": seconds * 1e6, "pid": step.rank,
        "tid": step.loader, "args": known,
    }  # fmt: skip


def _counters(recording: Recording) -> Iterator[dict[str, Any]]:
    for series in recording.series:
        name = f"{series.scope} {series.name} ({series.unit})"
        for at_s, value in zip(series.t_s, series.values, strict=False):
            if value is not None:
                yield {
                    "name": name,
                    "ph": "C",
                    "ts": at_s * 1e6,
                    "pid": RESOURCES_PID,
                    "tid": 0,
                    "args": {"value": value},
                }
