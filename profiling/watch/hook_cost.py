"""What watching one event costs the script, measured on the spot: each hook is called around nothing, many times.

`Capture.ask` and `got` time themselves, for their cost grows with the batch: of a batch, what is priced here is the
rest. So do the marks around copies on CUDA (`cuda.Device`) and the queue of a worker. Takes about three milliseconds.
"""

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from feedline.profiling.record.journal import Journal, Options
from feedline.profiling.watch.capture import Capture
from feedline.profiling.watch.cuda import Device
from feedline.profiling.watch.feed import Feed, Feeds
from feedline.profiling.watch.hooks import Hooks, around_step
from feedline.profiling.watch.loaders import LOADERS
from feedline.profiling.watch.passes import Pass, Row

CALLS, TURNS = 40, 3


class Idle(Capture):
    """Takes what the hooks tell and watches nothing."""

    def __init__(self) -> None:
        super().__init__(Journal(Path()), Options(steady=False))
        self.loaders.about = [{"id": 0, "batch_bytes": 0}]
        self.loop.current = Row(0.0, 0.0, 0, 0, 0, 0)
        self.facts.optimizer = "none"

    def start(self) -> None:
        return

    def begin_pass(self, loader: Any, kind: str, *, in_trainer: bool | None = None) -> Pass:
        return Pass(0, 0, 0.0, in_trainer=False, outer=None)


def event_cost_s() -> dict[str, float]:
    """By the names of `Capture.events`."""
    capture = Idle()
    timed = Hooks(capture).timed(_nothing, capture.backward)
    before, after = around_step(capture)
    tensor = SimpleNamespace(is_cuda=True)
    synchronise = Device(None, capture).synchronising(_nothing)
    of_call_s = _seconds(_nothing)

    def step() -> None:
        before(None)
        after()

    return {
        "backward": max(0.0, _seconds(timed) - of_call_s),
        "checkpoint": max(0.0, _seconds(timed) - of_call_s),
        "optimizer": _seconds(step),
        "sync": max(0.0, _seconds(lambda: synchronise(tensor)) - of_call_s),
        "batch": _rest_of_a_batch_s(),
    }


def _nothing(*_: Any) -> None:
    return


def _seconds(call: Callable[[], Any]) -> float:
    """Of one call: the least of a few turns, the others were disturbed."""

    def turn() -> float:
        started = time.perf_counter()
        for _ in range(CALLS):
            call()
        return (time.perf_counter() - started) / CALLS

    return min(turn() for _ in range(TURNS))


def _rest_of_a_batch_s() -> float:
    capture = Idle()
    feed = Feed(Feeds(capture), LOADERS[0], _nothing, iter)
    for _ in range(CALLS):
        feed.next(_nothing)
    turns: list[float] = []
    for _ in range(TURNS):
        accounted_s, started = capture.hook_s, time.perf_counter()
        for _ in range(CALLS):
            feed.next(_nothing)
        turns.append(time.perf_counter() - started - (capture.hook_s - accounted_s))
    return max(0.0, statistics.median(turns) / CALLS)
