"""Loops of every kind: several loaders, an iterator for each batch, a thread that draws ahead, none at all."""

import multiprocessing
import queue
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader, default_collate  # noqa: E402
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter  # noqa: E402

from feedline.profiling.profile import Profile  # noqa: E402
from feedline.profiling.record.recording import Recording, train_loader  # noqa: E402
from feedline.profiling.watch.passes import MOST_OPEN, Loop  # noqa: E402
from tests.profiling.trainings import Slow, Training, data, steps  # noqa: E402

LOOPS = {
    "in lockstep": "for _, batch in zip(late, quick): training.step(batch)",
    "asked in the body": "others = iter(late)\nfor batch in quick:\n    training.step(batch)\n    next(others)",
    "begun in the body": "for batch in quick:\n    next(iter(late))\n    training.step(batch)",
}


@pytest.mark.parametrize("how", LOOPS)
def test_a_step_waits_for_all_its_loaders(how: str) -> None:
    late, quick = DataLoader(Slow(), batch_size=8), DataLoader(data(160), batch_size=8)
    with Profile(resources=False) as seen:
        exec(LOOPS[how], {"late": late, "quick": quick, "training": Training()})
    names = {one.id: one.dataset for one in seen.recording.loaders}
    train = steps(seen.recording, "train")
    whose = {"TensorDataset"} if how == "begun in the body" else {"Slow"}  # a step is the loader's that is waited for
    assert {names[step.loader] for step in train} == whose
    assert len(train) >= 19
    assert all(0.016 <= step.wait_s <= step.duration_s for step in train[1:-1])
    assert all(step.pause_s == 0 and step.backward_s > 0 for step in train[:-1])
    assert len(seen.recording.passes) == (1 if how == "begun in the body" else 2)


class Round:
    """Three batches, of which a pass takes a while to begin, and to say that there are no more."""

    def __iter__(self) -> Any:
        time.sleep(0.2)
        return self.batches()

    def batches(self) -> Iterator[list[int]]:
        yield from ([number, number + 1] for number in range(3))
        time.sleep(0.1)


@pytest.mark.parametrize("first", [True, False])
def test_a_loader_that_goes_round_beside_another_is_waited_for_as_it_ends_and_begins_again(first: bool) -> None:
    """`except StopIteration: it = iter(labelled)`, as in semi-supervised training."""
    labelled, other = DataLoader(data(8), batch_sampler=Round()), DataLoader(Slow(), batch_size=8)
    training = Training()

    def drawn() -> Any:
        nonlocal batches
        try:
            return next(batches)
        except StopIteration:
            batches = iter(labelled)
            return next(batches)

    with Profile(resources=False) as seen:
        batches = iter(labelled)
        others = iter(other)
        for _ in range(20):
            batch = (drawn(), next(others)) if first else (next(others), drawn())
            training.step(batch[1 if first else 0])
    train = steps(seen.recording, "train")
    waits = sorted(step.wait_s for step in train)
    assert len(train) >= 18 and all(step.wait_s <= step.duration_s and not step.pause_s for step in train)
    assert sum(wait > 0.3 for wait in waits) == 6 and waits[-7] < 0.2


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_of_two_loaders_in_lockstep_the_one_that_is_waited_for_is_told_of(order: tuple[int, int]) -> None:
    """Whichever is drawn last, and though a gradient is asked for behind each."""
    loaders = [DataLoader(one, batch_size=8) for one in (Slow(), data(160))]
    training = Training()
    with Profile(resources=False) as seen:
        for batches in zip(*(loaders[number] for number in order), strict=True):
            training.step(batches[order.index(1)])
    recording = seen.recording
    assert [one.dataset for one in recording.loaders if one.phase == "train"] == ["Slow"]
    train = steps(recording, "train")
    assert len(train) == 20 and all(0.016 <= step.wait_s <= step.duration_s for step in train[1:-1])
    assert all(step.backward_s > 0 and step.optimizer_s > 0 for step in train[:-1])
    evaluated = steps(recording, "eval")
    assert {step.loader for step in evaluated} == {one.id for one in recording.loaders if one.dataset != "Slow"}


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_of_two_loaders_that_take_turns_the_one_that_is_waited_for_is_told_of(order: tuple[int, int]) -> None:
    loaders = [DataLoader(one, batch_size=8) for one in (Slow(), data(160))]
    training = Training()
    with Profile(resources=False) as seen:
        both = [iter(loaders[number]) for number in order]
        for _ in range(20):
            for batches in both:
                training.step(next(batches))
    recording = seen.recording
    assert [one.dataset for one in recording.loaders if one.phase == "train"] == ["Slow"]
    train = steps(recording, "train")[:-1]
    assert len(train) >= 18 and all(0.016 <= step.wait_s <= step.duration_s for step in train[1:])
    assert all(step.backward_s > 0 and step.optimizer_s > 0 for step in train)


def test_of_two_loaders_that_take_turns_unevenly_too() -> None:
    """Rehearsal: a batch of old samples in every fifth step, and these are dear."""
    quick, late, training = DataLoader(data(640), batch_size=8), DataLoader(Slow(), batch_size=8), Training()
    with Profile(resources=False) as seen:
        new, old = iter(quick), iter(late)
        for number in range(80):
            training.step(next(new if number % 5 else old))
    recording = seen.recording
    assert [one.dataset for one in recording.loaders if one.phase == "train"] == ["Slow"]
    train = steps(recording, "train")[:-1]
    assert len(train) >= 14 and all(0.016 <= step.wait_s <= step.duration_s for step in train[1:])


def test_of_two_trainings_one_after_the_other_the_longer_one_is_told_of() -> None:
    """Though the other has more steps."""
    long, short = DataLoader(Slow(), batch_size=8), DataLoader(data(200), batch_size=8)
    with Profile(resources=False) as seen:
        for batches in (long, short):
            training = Training()
            for batch in batches:
                training.step(batch)
    whose = train_loader(seen.recording.loaders, seen.recording.steps)
    assert whose is not None and whose.dataset == "Slow"


def test_a_batch_that_is_evaluated_in_each_step_is_none_of_a_loader_in_lockstep() -> None:
    train_on, held_out, training = (
        DataLoader(data(160), batch_size=8),
        iter(DataLoader(Slow(), batch_size=8)),
        Training(),
    )
    with Profile(resources=False) as seen:
        for batch in train_on:
            training.step(batch)
            time.sleep(0.05)
            training.model(next(held_out)[0])
            time.sleep(0.05)
    recording = seen.recording
    assert {one.dataset for one in recording.loaders if one.phase == "train"} == {"TensorDataset"}


def test_epochs_of_two_loaders_in_lockstep_leave_no_row_open() -> None:
    late, quick = DataLoader(Slow(), batch_size=8), DataLoader(data(160), batch_size=8)
    training = Training()
    with Profile(resources=False) as seen:
        for _ in range(3):
            for _, batch in zip(late, quick):  # noqa: B905
                training.step(batch)
    train = steps(seen.recording, "train")
    assert 54 <= len(train) <= 60 and not any(step.pause_s for step in train)


def test_an_evaluation_in_a_step_of_two_loaders_is_no_wait_of_it() -> None:
    first, second, held_out = (DataLoader(one, batch_size=8) for one in (data(), data(), Slow()))
    training = Training()
    with Profile(resources=False) as seen:
        for number, (_, batch) in enumerate(zip(first, second, strict=True)):
            training.step(batch)
            if number == 3:
                for x, _ in held_out:
                    training.model(x)
    evaluated = [step for step in steps(seen.recording, "train") if step.pause_s > 0]
    assert [step.pause_s > 0.3 > step.wait_s for step in evaluated] == [True]


class Kept(DataLoader[Any]):
    """As YOLO's and timm's: one iterator for all epochs, made at once or when it is needed."""

    late = False
    batches: Any = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.batches = None if self.late else super().__iter__()

    def __iter__(self) -> Any:
        self.batches = self.batches or super().__iter__()
        for _ in range(20):
            try:
                yield next(self.batches)
            except StopIteration:
                self.batches = super().__iter__()
                yield next(self.batches)


class KeptLate(Kept):
    late = True


@pytest.mark.parametrize(
    ("kind", "samples", "at_top"),
    [(Kept, 160, False), (Kept, 1600, True), (Kept, 176, True), (KeptLate, 160, True), (KeptLate, 176, False)],
)
def test_an_evaluation_that_draws_on_from_its_iterator_is_a_pause(
    kind: type[Kept], samples: int, at_top: bool
) -> None:
    """Of all batches there are, or some of them; what the loop had begun before has ended at the third of them."""
    training = Training()
    with Profile(resources=False) as seen:
        held_out = kind(Slow(samples), batch_size=8)
        for number, batch in enumerate(DataLoader(data(320), batch_size=8)):
            if not at_top:
                training.step(batch)
            for x, _ in held_out if number % 10 == 5 else ():
                training.model(x)
            if at_top:
                training.step(batch)
    recording = seen.recording
    assert [one.phase for one in recording.loaders] == (["eval", "train"] if kind is Kept else ["train", "eval"])
    train = steps(recording, "train")
    evaluated = [number for number, step in enumerate(train) if step.pause_s > 0.3]
    assert evaluated == [5, 15, 25, 35]
    left_s = sum(train[number].duration_s - train[number].pause_s + train[number].wait_s for number in evaluated)
    assert left_s < 0.5 * sum(step.pause_s for step in train)
    assert len(train) == 40 and all(step.backward_s > 0 for step in train)


def test_an_evaluation_by_a_kept_iterator_in_a_loop_of_its_own_is_a_pause() -> None:
    training = Training()
    batch = next(iter(DataLoader(data(8), batch_size=8)))
    with Profile(resources=False) as seen:
        held_out = iter(DataLoader(Slow(), batch_size=8))
        for number in range(40):
            for _ in range(8 if number in (20, 30) else 0):
                training.model(next(held_out)[0])
            training.step(batch)
    names = {one.id: one.kind for one in seen.recording.loaders}
    train = steps(seen.recording, "train")
    assert {names[step.loader] for step in train} == {"unwatched"}
    assert [number for number, step in enumerate(train) if step.pause_s > 0.1] == [19, 29]


@pytest.mark.parametrize(("every", "behind"), [(1, True), (4, True), (4, False)])
def test_a_batch_that_only_some_steps_begin_a_pass_for_is_a_pause(every: int, behind: bool) -> None:
    """One in each step is part of it."""
    train_on, held_out, training = DataLoader(data(320), batch_size=8), DataLoader(Slow(), batch_size=8), Training()
    with Profile(resources=False) as seen:
        for number, batch in enumerate(train_on):
            if behind:
                training.step(batch)
            if number % every == 0:
                training.model(next(iter(held_out))[0])
            if not behind:
                training.step(batch)
    train, evaluated = steps(seen.recording, "train"), steps(seen.recording, "eval")
    is_apart = every > 1
    assert [number for number, step in enumerate(train) if step.pause_s > 0.01] == [*range(4, 40, 4)] * is_apart
    assert len(evaluated) == 9 * is_apart and all(step.wait_s > 0.01 for step in evaluated)
    assert sum(step.wait_s > 0.01 for step in train) >= (1 if is_apart else 40 // every - 1)


@pytest.mark.parametrize("how", ["begun ahead", "two at once", "behind an evaluation"])
def test_a_batch_now_and_then_takes_no_longer_than_it_is_waited_for(how: str) -> None:
    host, training = DataLoader(data(320), batch_size=8), Training()
    one, other = (DataLoader(Slow(16), batch_size=8) for _ in range(2))
    waited_s, drawn = 0.0, iter(one)
    with Profile(resources=False) as seen:
        for number, batch in enumerate(host):
            if number % 5 == 4:
                if how == "behind an evaluation":
                    for x, _ in one:
                        training.model(x)
                drawn = iter(zip(one, other, strict=True)) if how == "two at once" else iter(one)
            time.sleep(0.03)
            training.step(batch)
            if number % 5 == 4:
                started = time.perf_counter()
                next(drawn)
                waited_s += time.perf_counter() - started
    train = steps(seen.recording, "train")
    paused_s = sum(step.pause_s for step in train)
    evaluated_s = sum(step.wait_s for step in steps(seen.recording, "eval"))
    whole_s = (3 if how == "behind an evaluation" else 1) * waited_s
    assert 0.8 * whole_s < paused_s < 1.2 * whole_s and 0.8 * whole_s < evaluated_s < 1.2 * whole_s
    assert sum(step.wait_s for step in train) < 0.3 * waited_s


def test_an_iterator_that_is_made_anew_now_and_then_is_of_the_steps_that_all_draw_from_it() -> None:
    host, other, training = DataLoader(data(320), batch_size=8), DataLoader(Slow(), batch_size=8), Training()
    with Profile(resources=False) as seen:
        for number, batch in enumerate(host):
            if number % 5 == 0:
                drawn = iter(other)
            next(drawn)  # type: ignore[possibly-undefined]
            training.step(batch)
    assert not any(step.pause_s for step in seen.recording.steps) and not steps(seen.recording, "eval")


def test_batches_that_a_step_draws_one_by_one_and_trains_on_are_no_evaluation() -> None:
    """As a critic's: five steps of it for one of the other."""
    noise, critic = DataLoader(data(80), batch_size=8), Training()
    with Profile(resources=False) as seen:
        real = iter(DataLoader(Slow(), batch_size=4))
        for batch in noise:
            for _ in range(4):
                critic.step(next(real))
            critic.step(batch)
    assert {one.dataset: one.phase for one in seen.recording.loaders}["Slow"] == "train"
    assert not any(step.pause_s for step in seen.recording.steps)


def test_many_batches_that_every_step_draws_and_trains_on_at_once_are_no_evaluation() -> None:
    """As from a replay buffer, or of unlabelled pictures."""
    training = Training()
    with Profile(resources=False) as seen:
        more = iter(DataLoader(Slow(1000), batch_size=8))
        for batch in DataLoader(data(160), batch_size=8):
            for _ in range(4):
                next(more)
            training.step(batch)
    train = [step for step in steps(seen.recording, "train") if step.loader == 1]
    assert len(train) == 20
    assert all(step.pause_s == 0 and step.wait_s > 0.05 for step in train[2:-1])


def test_a_loop_that_was_begun_behind_a_batch_of_another_loader_is_watched_to_its_end() -> None:
    """Held-out batches are drawn before it and in it."""
    training, held_out = Training(), DataLoader(data(), batch_size=8)
    with Profile(resources=False) as seen:
        kept = iter(held_out)
        next(kept)
        for number, batch in enumerate(DataLoader(data(320), batch_size=8)):
            training.step(batch)
            if number in (20, 30):
                next(kept)
    assert {one.id: one.phase for one in seen.recording.loaders} == {0: "eval", 1: "train"}
    train = steps(seen.recording, "train")
    assert len(train) == 40 and {step.epoch for step in train} == {0}
    assert [one.samples for one in seen.recording.passes if one.end_s is not None] == [320]


def test_a_thread_that_draws_ahead_is_not_the_loop() -> None:
    """The batches come quickly enough; the thread that draws them waits all the time."""
    ahead: queue.Queue[Any] = queue.Queue(1)
    loader, training = DataLoader(Slow(), batch_size=8), Training()

    def draw() -> None:
        for batch in loader:
            ahead.put(batch)
        ahead.put(None)

    with Profile(resources=False) as seen:
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
    parts = recording.trainers[0].stages
    assert parts.get("wait", 0.0) < 0.5 * recording.trainers[0].seconds


class BackgroundGenerator(threading.Thread):
    """As prefetch_generator's: its loop draws from an iterator that another thread has made."""

    def __init__(self, iterator: Iterator[Any]) -> None:
        super().__init__(daemon=True)
        self._iterator, self._ahead = iterator, queue.Queue[Any](1)
        self.start()

    def run(self) -> None:
        for batch in self._iterator:
            self._ahead.put(batch)
        self._ahead.put(None)

    def __iter__(self) -> "BackgroundGenerator":
        return self

    def __next__(self) -> Any:
        if (batch := self._ahead.get()) is None:
            raise StopIteration
        return batch


class DataLoaderX(DataLoader[Any]):
    def __iter__(self) -> Any:
        return BackgroundGenerator(super().__iter__())


def slow_collate(rows: list[Any]) -> Any:
    time.sleep(0.03)
    return default_collate(rows)


@pytest.mark.slow
@pytest.mark.parametrize("late", [True, False])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_whose_iterator_a_thread_draws_from_is_in_the_background(late: bool, workers: int) -> None:
    """Either its batches come late, or the model does."""
    loader = DataLoaderX(Slow(), batch_size=8, num_workers=workers, collate_fn=slow_collate if late else None)
    held_out, training = DataLoaderX(data(80), batch_size=8), Training()
    with Profile(resources=False) as seen:
        for epoch in range(5):
            for number, batch in enumerate(loader):
                if not epoch + number:
                    time.sleep(0.3)  # the first model compiles: rows are written meanwhile
                training.step(batch)
                time.sleep(0.0 if late else 0.03)
            for x, _ in held_out if epoch == 2 else ():
                training.model(x)
                time.sleep(0.02)
    recording = seen.recording
    train = steps(recording, "train")
    assert [one.background for one in recording.loaders] == [True, True]
    assert len(recording.steps) == len(train) == 99
    assert {(step.samples, step.wait_s, step.loader, step.epoch) for step in train} == {(8, 0.0, 0, 0)}
    assert len(Recording.from_dict(recording.to_dict()).steps) == 99  # no row that cannot be read back
    assert late or all(step.duration_s >= 0.03 for step in recording.measured())
    assert [number for number, step in enumerate(train) if step.pause_s > 0.1] == [59]
    (trainer,) = recording.trainers
    waits = trainer.stages.get("wait", 0.0) / trainer.seconds
    assert waits > 0.3 if late else waits < 0.2


@pytest.mark.parametrize("how", ["whole", "broken off", "broken off before"])
def test_an_evaluation_in_a_loop_of_another_source_is_a_pause(how: str) -> None:
    """One before it, as a check whether it runs, is nothing of the loop's."""
    training, held_out = Training(), DataLoader(Slow(), batch_size=8)
    batch = next(iter(DataLoader(data(8), batch_size=8)))

    def evaluate(last: int) -> None:
        for number, (x, _) in enumerate(held_out):
            training.model(x)
            if number == last:
                break

    with Profile(resources=False) as seen:
        if how == "broken off before":
            evaluate(1)
        for number in range(60):
            training.step(batch)
            time.sleep(0.001)
            if number in (20, 40) and how != "broken off before":
                evaluate(100 if how == "whole" else 5)
    names = {one.id: one.kind for one in seen.recording.loaders}
    train = steps(seen.recording, "train")
    assert {names[step.loader] for step in train} == {"unwatched"}
    assert sum(step.warm_up for step in train) == 3
    if how == "broken off before":
        assert len(train) >= 40
    else:
        assert len(train) == 59
        assert [number for number, step in enumerate(train) if step.pause_s > 0.05] == [20, 40]
        assert all(step.backward_s > 0 for step in train)
        assert all(train[number].duration_s < 2 * train[number].pause_s for number in (20, 40))


def test_page_faults_are_of_one_step_each() -> None:
    """Not of all that came since a validation."""
    training, held_out = Training(), DataLoader(data(40), batch_size=8)
    batch = next(iter(held_out))
    with Profile(resources=False) as seen:
        for number in range(40):
            training.step(batch)
            if number % 6 == 3:
                for x, _ in held_out:
                    training.model(x)
    assert seen.recording.compute.faulty_steps == 0


def test_a_few_steps_are_enough_to_count_page_faults() -> None:
    training = Training()
    with Profile(resources=False) as seen:
        for batch in DataLoader(data(96), batch_size=8):
            training.step(batch)
    assert seen.recording.compute.faulty_steps >= 5


def test_what_another_thread_saves_is_no_pause(tmp_path: Path) -> None:
    training, loader = Training(), DataLoader(data(160), batch_size=8)
    with Profile(resources=False) as seen:
        for batch in loader:
            training.step(batch)
            saving = threading.Thread(target=torch.save, args=(training.model.state_dict(), tmp_path / "c.pt"))
            saving.start()
            saving.join()
    assert (tmp_path / "c.pt").exists()
    assert not any(step.pause_s for step in seen.recording.steps)


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
    with Profile(resources=False) as seen:
        if how == "queue":
            threading.Thread(target=put, daemon=True).start()
        for _, one in zip(range(9), batches, strict=False):
            training.step(one)
    (trainer,) = seen.recording.trainers
    (loader,) = seen.recording.loaders
    assert loader.kind == "unwatched"
    part = "load" if how == "generator" else "wait"
    assert trainer.stages[part] > 0.5 * trainer.seconds


def put_large(to: Any) -> None:
    """Batches that are made in no time, and take long to hand over."""
    images, labels = np.zeros((8, 3, 800, 800)), np.zeros(8, np.int64)
    while True:
        to.put((images, labels))


@pytest.mark.slow
def test_batches_from_a_queue_of_the_scripts_own_are_handed_over_not_made() -> None:
    """61 MB each, out of a pipe."""
    context = multiprocessing.get_context("fork")
    stream = context.Queue(1)
    producer = context.Process(target=put_large, args=(stream,), daemon=True)

    def drawn() -> Iterator[Any]:
        while True:
            images, labels = stream.get()
            yield torch.from_numpy(images[:, 0, 0, :4]).float(), torch.from_numpy(labels)

    training = Training()
    with Profile(resources=False) as seen:
        producer.start()
        for _, one in zip(range(12), drawn(), strict=False):
            training.step(one)
    producer.kill()
    (trainer,) = seen.recording.trainers
    assert trainer.stages["unpickle"] > 2 * trainer.stages.get("load", 0.0)
    assert not trainer.stages.get("logging")


def test_a_pass_for_each_step_and_its_beginning_is_in_the_wait() -> None:
    training, loader = Training(), DataLoader(Slow(), batch_size=8)
    with Profile(resources=False) as seen:
        for _ in range(12):
            training.step(next(iter(loader)))
    found = steps(seen.recording, "train")
    assert len(found) == 11  # the last one never ended
    assert all(0.016 <= step.wait_s <= step.duration_s and step.backward_s > 0 for step in found)
    for before, after in pairwise(found):
        assert after.start_s == pytest.approx(before.start_s + before.duration_s, abs=1e-3)
    assert len(seen.recording.measured()) >= 10


def test_workers_that_end_within_a_step_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = _MultiProcessingDataLoaderIter._shutdown_workers

    def slowly(iterator: Any) -> None:
        time.sleep(0.2)
        ends(iterator)

    monkeypatch.setattr(_MultiProcessingDataLoaderIter, "_shutdown_workers", slowly)
    training, loader = Training(), DataLoader(data(), batch_size=8, num_workers=1)
    with Profile(resources=False) as seen:
        for _ in range(8):
            training.step(next(iter(loader)))
    found = steps(seen.recording, "train")[1:]
    assert all(step.wait_s > 0.2 for step in found)
    assert median(step.duration_s - step.wait_s for step in found) < 0.2


def test_a_batch_more_of_the_same_loader_in_each_step() -> None:
    training, loader = Training(), DataLoader(data(160), batch_size=8)
    with Profile(resources=False) as seen:
        for batch in loader:
            next(iter(loader))
            training.step(batch)
    assert len(steps(seen.recording, "train")) >= 19


def test_passes_that_a_script_breaks_off_are_forgotten() -> None:
    """As of a loader that is begun anew for every task: what is asked of all of them stays cheap."""
    loop, now = Loop(), 0.0
    for loader in range(100):
        begun, _ = loop.begin(loader, now, in_trainer=True)
        for _ in range(2):
            begun.asked, now = now, now + 1
            loop.close(begun, begun.asked)
            loop.got(begun, now, 8, 0)
    assert len(loop.passes()) == MOST_OPEN
