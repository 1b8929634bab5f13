"""Loops of every kind: several loaders, an iterator for each batch, a thread that draws ahead, none at all."""

import queue
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

pytest.importorskip("torch")

from torch.utils.data import DataLoader

from feedline.profiling.probe import watch
from tests.profiling.trainings import Slow, Training, data, steps

LOOPS = {
    "in lockstep": "for _, batch in zip(late, quick): training.step(batch)",
    "asked in the body": "others = iter(late)\nfor batch in quick:\n    training.step(batch)\n    next(others)",
    "begun in the body": "for batch in quick:\n    next(iter(late))\n    training.step(batch)",
}


@pytest.mark.parametrize("how", LOOPS)
def test_a_step_waits_for_all_its_loaders(how: str) -> None:
    late, quick = DataLoader(Slow(), batch_size=8), DataLoader(data(160), batch_size=8)
    with watch(resources=False) as seen:
        exec(LOOPS[how], {"late": late, "quick": quick, "training": Training()})
    names = {one.id: one.dataset for one in seen.recording.loaders}
    train = steps(seen.recording, "train")
    assert {names[step.loader] for step in train} == {"TensorDataset"}
    assert len(train) >= 19
    assert all(0.016 <= step.wait_s <= step.duration_s for step in train[1:-1])
    assert all(step.pause_s == 0 and step.backward_s > 0 for step in train)
    assert len(seen.recording.passes) == (1 if how == "begun in the body" else 2)


def test_an_evaluation_in_a_step_of_two_loaders_is_no_wait_of_it() -> None:
    first, second, held_out = (DataLoader(one, batch_size=8) for one in (data(), data(), Slow()))
    training = Training()
    with watch(resources=False) as seen:
        for number, (_, batch) in enumerate(zip(first, second, strict=True)):
            training.step(batch)
            if number == 3:
                for x, _ in held_out:
                    training.model(x)
    evaluated = [step for step in steps(seen.recording, "train") if step.pause_s > 0]
    assert [step.pause_s > 0.3 > step.wait_s for step in evaluated] == [True]


def test_a_thread_that_draws_ahead_is_not_the_loop() -> None:
    """The batches come quickly enough; the thread that draws them waits all the time."""
    ahead: queue.Queue[Any] = queue.Queue(1)
    loader, training = DataLoader(Slow(), batch_size=8), Training()

    def draw() -> None:
        for batch in loader:
            ahead.put(batch)
        ahead.put(None)

    with watch(resources=False) as seen:
        threading.Thread(target=draw).start()
        while (batch := ahead.get()) is not None:
            training.step(batch)
            time.sleep(0.03)
    recording = seen.recording
    assert [one.background for one in recording.loaders] == [True]
    train = steps(recording, "train")
    assert len(train) >= 10
    assert {(step.samples, step.wait_s, step.loader) for step in train} == {(8, 0.0, 0)}
    assert all(step.duration_s >= 0.03 for step in train)
    parts = recording.trainers[0].parts
    assert parts.get("wait", 0.0) < 0.5 * recording.trainers[0].seconds


@pytest.mark.parametrize("how", ["generator", "queue"])
def test_batches_of_the_scripts_own_making_are_told_from_the_model(how: str) -> None:
    stream: queue.Queue[Any] = queue.Queue(1)
    batch = next(iter(DataLoader(data(8), batch_size=8)))

    def make() -> Iterator[Any]:
        while True:
            ends = time.thread_time() + 0.1
            while time.thread_time() < ends:
                pass
            yield batch

    def put() -> None:
        for _ in range(10):
            time.sleep(0.4)
            stream.put(batch)

    training = Training()
    batches = make() if how == "generator" else iter(stream.get, None)
    with watch(resources=False) as seen:
        if how == "queue":
            threading.Thread(target=put, daemon=True).start()
        for _, one in zip(range(9), batches, strict=False):
            training.step(one)
    (trainer,) = seen.recording.trainers
    (loader,) = seen.recording.loaders
    assert loader.kind == "unwatched"
    part = "load" if how == "generator" else "wait"
    assert trainer.parts[part] > 0.5 * trainer.seconds


def test_a_pass_for_each_step_and_its_beginning_is_in_the_wait() -> None:
    training, loader = Training(), DataLoader(Slow(), batch_size=8)
    with watch(resources=False) as seen:
        for _ in range(12):
            training.step(next(iter(loader)))
    found = steps(seen.recording, "train")
    assert len(found) == 11  # the last one never ended
    assert all(0.016 <= step.wait_s <= step.duration_s and step.backward_s > 0 for step in found)
    for before, after in pairwise(found):
        assert after.start_s == pytest.approx(before.start_s + before.duration_s, abs=1e-3)
    assert len(seen.recording.measured()) >= 10


def test_a_batch_more_of_the_same_loader_in_each_step() -> None:
    training, loader = Training(), DataLoader(data(160), batch_size=8)
    with watch(resources=False) as seen:
        for batch in loader:
            next(iter(loader))
            training.step(batch)
    assert len(steps(seen.recording, "train")) >= 19
