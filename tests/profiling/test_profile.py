"""`Profile` around real loops in this process: what is counted, kept apart, and left as it was."""

import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader, Dataset, IterableDataset  # noqa: E402

from feedline.pipeline.base.errors import UsageError  # noqa: E402
from feedline.profiling.explain.measure.situation import measure  # noqa: E402
from feedline.profiling.explain.predict import all_predictions  # noqa: E402
from feedline.profiling.profile import Profile  # noqa: E402
from feedline.profiling.watch.capture import Capture  # noqa: E402
from tests.profiling.trainings import Slow, Training, data, steps  # noqa: E402


def test_a_plain_loop() -> None:
    training = Training()
    with Profile(resources=False) as seen:
        for _ in range(2):
            for batch in DataLoader(data(), batch_size=8):
                training.step(batch)
    recording = seen.recording
    assert [step.samples for step in recording.steps] == [8] * 16
    assert recording.optimizer_steps == 16
    assert {step.phase for step in recording.steps} == {"train"}
    assert all(step.backward_s > 0 and step.optimizer_s > 0 for step in recording.steps)
    assert all(0 < step.wait_s <= step.duration_s for step in recording.steps)
    loader = recording.train_loader
    assert loader is not None
    assert (loader.kind, loader.num_workers, loader.batch_size, loader.dataset) == ("torch", 0, 8, "TensorDataset")
    assert loader.batch_dtypes == ["float32", "int64"]
    assert recording.compute.optimizer == "SGD"
    assert recording.compute.parameters == 15


def test_a_loader_built_anew_for_every_epoch_is_one_loader() -> None:
    training = Training()
    with Profile(resources=False) as seen:
        for _ in range(3):
            for batch in DataLoader(data(), batch_size=8):
                training.step(batch)
            with torch.no_grad():
                for x, _ in DataLoader(data(), batch_size=32):
                    training.model(x)
    assert [(loader.batch_size, loader.made) for loader in seen.recording.loaders] == [(8, 3), (32, 3)]
    assert {step.epoch for step in steps(seen.recording, "train")} == {0, 1, 2}
    assert measure(seen.recording).rates.epoch_samples == 64


def test_passes_are_told_whole_or_broken_off() -> None:
    loader = DataLoader(data(), batch_size=8)
    with Profile(resources=False) as seen:
        for epoch in range(3):
            for number, _ in enumerate(loader):
                if epoch == 2 and number == 3:
                    break
    assert [(one.epoch, one.samples, one.end_s is not None) for one in seen.recording.passes] == [
        (0, 64, True), (1, 64, True), (2, 32, False),
    ]  # fmt: skip
    assert all(one.start_s > 0 for one in seen.recording.passes)


def test_steps_follow_each_other_without_gaps() -> None:
    training = Training()
    with Profile(resources=False) as seen:
        for batch in DataLoader(data(), batch_size=8):
            training.step(batch)
    found = seen.recording.steps
    for before, after in pairwise(found):
        assert after.start_s == pytest.approx(before.start_s + before.duration_s, abs=1e-6)


@pytest.mark.parametrize("broken_off", [False, True])
def test_an_evaluation_inside_training_is_a_pause(broken_off: bool) -> None:
    training, held_out = Training(), DataLoader(data(), batch_size=8)
    with Profile(resources=False) as seen:
        for number, batch in enumerate(DataLoader(data(), batch_size=8)):
            training.step(batch)
            if number == 3:
                with torch.no_grad():
                    for i, (x, _) in enumerate(held_out):
                        training.model(x)
                        time.sleep(0.005)  # beside which a busy machine's delays are small
                        if broken_off and i == 4:
                            break
    train, evaluation = steps(seen.recording, "train"), steps(seen.recording, "eval")
    assert len(train) == 8
    assert len(evaluation) == (5 if broken_off else 8)
    assert [step.pause_s > 0 for step in train] == [False] * 3 + [True] + [False] * 4
    inside = sum(step.duration_s for step in evaluation)
    assert train[3].pause_s == pytest.approx(inside, rel=0.5)
    assert train[3].pause_s <= train[3].duration_s
    assert {loader.phase for loader in seen.recording.loaders} == {"train", "eval"}


def test_an_evaluation_before_training_is_no_training() -> None:
    training = Training()
    with Profile(resources=False) as seen:
        for x, _ in DataLoader(data(), batch_size=16):
            training.model(x)
        for batch in DataLoader(data(), batch_size=8):
            training.step(batch)
    assert len(steps(seen.recording, "eval")) == 4
    assert len(steps(seen.recording, "train")) == 8


def test_two_loaders_in_lockstep_are_no_pauses() -> None:
    training = Training()
    with Profile(resources=False) as seen:
        for batch, _ in zip(DataLoader(data(), batch_size=8), DataLoader(data(), batch_size=8), strict=True):
            training.step(batch)
    assert all(step.pause_s == 0 for step in seen.recording.steps)


def test_a_checkpoint_is_a_pause(tmp_path: Any) -> None:
    training = Training()
    with Profile(resources=False) as seen:
        for batch in DataLoader(data(), batch_size=32):
            training.step(batch)
            torch.save(training.model.state_dict(), tmp_path / "c.pt")
    assert all(step.pause_s > 0 for step in seen.recording.steps)
    assert (tmp_path / "c.pt").exists()


def test_a_loop_that_trains_nothing_is_the_loop_asked_about() -> None:
    with Profile(resources=False) as seen:
        for _ in DataLoader(data(), batch_size=8):
            pass
    assert len(steps(seen.recording, "train")) == 8


class Broken(Dataset[Any]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        if index == 5:
            raise ValueError("sample 5 is broken")
        return torch.zeros(2)


def test_errors_of_the_dataset_come_through() -> None:
    got = 0
    with Profile(resources=False) as seen, pytest.raises(ValueError, match="sample 5 is broken"):
        for _ in DataLoader(Broken(), batch_size=2):
            got += 1
    assert got == len(seen.recording.steps) == 2


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield from torch.rand(20, 4)


class OwnLoader(DataLoader[Any]):
    """As fast.ai-like and timm's multi-epoch loaders do: a generator around the real one."""

    def __iter__(self) -> Any:
        for batch in super().__iter__():
            yield batch * 2


@pytest.mark.parametrize("loader", [DataLoader(Stream(), batch_size=4), OwnLoader(Stream(), batch_size=4)])
def test_iterable_datasets_and_own_subclasses(loader: DataLoader[Any]) -> None:
    with Profile(resources=False) as seen:
        for _ in loader:
            pass
    assert [step.samples for step in seen.recording.steps] == [4] * 5
    assert seen.recording.loaders[0].dataset == "Stream"


def test_what_a_loop_without_workers_prepares_is_known_by_sample_and_stage() -> None:
    training = Training()
    with Profile(resources=False) as seen:
        for batch in DataLoader(Slow(), batch_size=8):
            training.step(batch)
    (worker,) = seen.recording.workers
    assert worker.in_trainer
    measured = seen.recording.measured()
    assert worker.samples == sum(step.samples for step in measured) > 100
    found = measure(seen.recording)
    workers = found.workers
    assert workers.stage_alone_s["blocked"] > 0.5 * workers.alone_s
    assert workers.alone_s * (1 + 2 * workers.alone_error) > 0.001  # on a busy machine few looks were taken
    more = next(one for one in all_predictions(found) if one.family == "workers")
    assert not more.vain and "the training process prepares every batch itself" in more.why


@pytest.mark.slow
def test_pictures_that_a_watched_loop_draws_are_its_own_python() -> None:
    """Not batches: these come from the loader."""
    image, training = pytest.importorskip("PIL.Image"), Training()
    pixels = torch.zeros(1500, 1500, 3, dtype=torch.uint8).numpy()

    def draws() -> None:
        for _ in range(6):  # on a fast machine, too, so long that the sampler looks often
            image.fromarray(pixels).resize((900, 900)).tobytes()

    with Profile(resources=False) as seen:
        for batch in DataLoader(data(1600), batch_size=16):
            training.step(batch)
            draws()
    shares = measure(seen.recording).trainer.shares
    assert shares.trainer > 0.2 > shares.other


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_are_seen(persistent: bool) -> None:
    training = Training()
    loader = DataLoader(data(256), batch_size=8, num_workers=2, persistent_workers=persistent)
    with Profile() as seen:
        for _ in range(2):
            for batch in loader:
                training.step(batch)
                time.sleep(0.005)  # so that every worker lives on past the warm-up
    recording = seen.recording
    del loader
    assert len(recording.steps) == 64
    assert {worker.worker for worker in recording.workers} == {0, 1}
    assert len(recording.workers) == (2 if persistent else 4)
    for worker in recording.workers:
        assert sum(worker.stages.values()) == pytest.approx(worker.seconds)
    assert {step.epoch for step in recording.steps} == {0, 1}
    assert any(step.warm_up for step in recording.steps) and recording.warm_up.startswith("the first ")


def test_everything_is_as_it_was_afterwards() -> None:
    """Once: what cannot be taken back is there after the first time."""
    from torch.utils.data import dataloader

    def state() -> list[Any]:
        return [
            DataLoader.__iter__, dataloader._BaseDataLoaderIter.__next__, torch.save, torch.autograd.backward,
            dataloader._MultiProcessingDataLoaderIter.__init__, torch.autocast.__enter__, list(sys.meta_path),
            sys.getswitchinterval(), sys.excepthook,
        ]  # fmt: skip

    def captures() -> list[Any]:
        return [one for one in gc.get_objects() if type(one) is Capture]

    before, threads, kept = state(), set(threading.enumerate()), len(captures())
    with Profile(resources=False):
        assert DataLoader.__iter__ is not before[0]
        for _ in DataLoader(data(), batch_size=8):
            pass
    assert state() == before and set(threading.enumerate()) <= threads
    gc.collect()
    assert len(captures()) <= kept


def test_nothing_comes_between_an_error_and_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr("feedline.profiling.watch.facts.refused", asked.append)
    training = Training()
    loader = DataLoader(data(), batch_size=8, collate_fn=Failing(after=5))
    with Profile(resources=False):
        with pytest.raises(SystemExit):
            for batch in loader:
                training.step(batch)
        assert not asked


class Failing:
    def __init__(self, after: int) -> None:
        self._left = after

    def __call__(self, samples: list[Any]) -> Any:
        self._left -= 1
        if self._left < 0:
            sys.exit(0)
        return torch.utils.data.default_collate(samples)


class Interval(Dataset[Any]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> float:
        time.sleep(0.001)
        return sys.getswitchinterval()


def test_workers_that_live_on_get_back_the_usual_switch_interval() -> None:
    loader = DataLoader(Interval(), batch_size=8, num_workers=1, persistent_workers=True)
    with Profile(resources=False):
        during = {float(value) for batch in loader for value in batch}
    assert min(during) < sys.getswitchinterval()
    assert {float(value) for batch in loader for value in batch} == {sys.getswitchinterval()}


def test_metrics_for_the_loops_own_log() -> None:
    training = Training()
    with Profile(resources=False) as seen:
        assert seen.metrics() == {}
        for batch in DataLoader(data(), batch_size=8):
            training.step(batch)
        told = seen.metrics()
        assert seen.metrics() == {}
    assert 0 < told["wait_fraction"] < 1
    assert told["samples_per_s"] > 0


class Telling:
    """A loader that speaks for its workers, as feedline's own does."""

    num_workers, worker_pids = 2, ()

    def __init__(self, pid: int = 999_999_990, split: str = "") -> None:
        self.pid, self.split = pid, split
        self.asked = 0

    def __iter__(self) -> Iterator[Any]:
        yield from torch.rand(20, 8, 4)

    def stats(self) -> dict[str, Any]:
        self.asked += 1
        seconds = {"read": 1.0 * self.asked, "decode": 3.0 * self.asked, "idle": 0.5 * self.asked}
        worker = {"pid": self.pid, "samples": 80 * self.asked, "batches": self.asked, "seconds": seconds}
        return {"workers": [worker], "split": self.split}


@pytest.fixture
def telling(monkeypatch: pytest.MonkeyPatch) -> None:
    module = type(sys)("feedline.pipeline.loader")
    module.Loader = Telling  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "feedline.pipeline.loader", module)


@pytest.mark.usefixtures("telling")
def test_the_cpu_time_of_preparing_that_nobody_counts_is_unknown() -> None:
    with Profile(resources=False) as seen:
        for _ in Telling(os.getpid()):
            time.sleep(0.001)
    (worker,) = seen.recording.workers
    assert worker.in_trainer and worker.samples == 8 * len(seen.recording.measured())
    assert worker.cpu_s is None and seen.recording.costs.worker_cpu_s is None


@pytest.mark.usefixtures("telling")
def test_a_loader_that_tells_itself_is_believed(tmp_path: Path) -> None:
    (tmp_path / "train-000000.tar").touch()
    with Profile(resources=False) as seen:
        for _ in Telling(split=str(tmp_path)):
            pass
    assert seen.recording.sample_paths == [str(tmp_path / "train-000000.tar")]
    (worker,) = seen.recording.workers
    assert worker.stages["decode"] == pytest.approx(3 * worker.stages["read"])
    assert seen.recording.loaders[0].kind == "feedline"
    assert len(seen.recording.steps) == 20


def test_an_error_that_cannot_be_told_is_the_scripts_to_show(monkeypatch: pytest.MonkeyPatch) -> None:
    shown, wordless = list[Any](), type("Wordless", (Exception,), {"__str__": None})
    monkeypatch.setattr(sys, "excepthook", lambda *error: shown.append(error))
    with Profile(resources=False):
        sys.excepthook(wordless, wordless(), None)
    assert len(shown) == 1


def test_two_at_once_are_refused() -> None:
    with Profile(resources=False) as seen:
        with pytest.raises(UsageError, match="already being profiled"), Profile():
            pass
        with pytest.raises(UsageError, match="already being profiled"):
            seen.start()
        for _ in DataLoader(data(), batch_size=8):
            pass
    assert len(seen.recording.steps) == 8
    with pytest.raises(UsageError, match="not being profiled"):
        seen.stop()


def test_the_recording_is_there_after_the_block() -> None:
    with Profile(resources=False) as seen:
        with pytest.raises(UsageError, match="once the"):
            _ = seen.recording
        assert str(seen) == "Profile: it goes on" and seen._repr_html_() is None
    assert seen.recording.notes[0].startswith("no DataLoader")


def test_a_process_that_knows_only_its_local_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Lightning starts them."""
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setenv("LOCAL_RANK", "3")
    with Profile(resources=False) as seen:
        for _ in DataLoader(data(), batch_size=8):
            pass
    assert {step.rank for step in seen.recording.steps} == {3}
    assert [trainer.rank for trainer in seen.recording.trainers] == [3]


def test_a_loop_over_something_else_is_seen_by_its_optimiser() -> None:
    training = Training()
    with Profile(resources=False) as seen:
        for batch in [(torch.rand(8, 4), torch.randint(0, 3, (8,)))] * 20:
            training.step(batch)
            time.sleep(0.01)
    assert seen.recording.optimizer_steps == 20
    assert sum(seen.recording.trainers[0].stages.values()) > 0
    assert seen.recording.seconds > 0


# --- the ways to use it -------------------------------------------------------------------------------


def epoch(training: Training | None = None) -> int:
    training = training or Training()
    count = 0
    for batch in DataLoader(data(), batch_size=8):
        training.step(batch)
        count += 1
    return count


def test_a_decorator_keeps_what_the_last_call_has_shown() -> None:
    profile = Profile(resources=False)
    profiled = profile(epoch)
    assert (profiled(), profiled.__name__) == (8, "epoch")
    first = profile.recording
    assert profiled(Training()) == 8
    assert profile.recording is not first and len(profile.recording.steps) == 8


def test_what_returns_before_it_has_run_is_no_function_to_decorate() -> None:
    def batches() -> Iterator[Any]:
        yield from DataLoader(data(), batch_size=8)

    with pytest.raises(UsageError, match="batches returns before it has run"):
        Profile()(batches)


def test_start_and_stop() -> None:
    profile = Profile(resources=False)
    assert str(profile) == "Profile: nothing has been profiled yet"
    for samples in (64, 32):
        profile.start()
        for batch in DataLoader(data(samples), batch_size=8):
            Training().step(batch)
        assert len(profile.stop().recording.steps) == samples // 8


def test_a_call_and_its_report() -> None:
    profile = Profile(resources=False, argv=("train.py", "--epochs", "1")).run(epoch)
    assert profile.recording.script.name == "epoch"
    assert profile.verdict.recording is profile.recording and profile.predictions is profile.verdict.predictions
    assert profile.verdict.headline.split()[0] in str(profile) == repr(profile)
    page = profile._repr_html_() or ""
    assert page.startswith("<iframe ") and page.count("<") == 2 and 'sandbox=""' in page
    assert "train.py --epochs 1" in page


def test_so_many_steps_and_the_code_runs_on() -> None:
    profile = Profile(resources=False, steps=3)
    with profile:
        assert epoch() == 8
    assert len(profile.recording.steps) == 3
    assert any("ran on unwatched" in note for note in profile.recording.notes)


@pytest.mark.parametrize(("error", "ended_by"), [(KeyboardInterrupt(), "signal"), (ValueError("wrong\nx"), "error")])
def test_what_was_seen_before_an_error_or_an_interrupt(error: BaseException, ended_by: str) -> None:
    profile = Profile(resources=False)
    with pytest.raises(type(error)), profile:
        epoch()
        raise error
    script = profile.recording.script
    assert (script.ended_by, len(profile.recording.steps)) == (ended_by, 8)
    assert script.error in ("KeyboardInterrupt", "ValueError: wrong")
    with profile:  # and again
        epoch()
    assert profile.recording.script.ended_by == "itself"


def test_one_that_is_forgotten_ends_with_its_last_name() -> None:
    Profile(resources=False).start()
    gc.collect()
    with Profile(resources=False) as seen:
        epoch()
    assert len(seen.recording.steps) == 8


def test_workers_that_were_there_before_are_said_to_be_unseen() -> None:
    loader = DataLoader(data(), batch_size=8, num_workers=1, persistent_workers=True)
    unseen = "they were there before"
    for told in (False, True):
        with Profile(resources=False) as seen:
            for _ in loader:
                pass
        assert bool(seen.recording.workers) is not told
        assert any(unseen in note for note in seen.recording.notes) is told


HERE_ALONE = """
import torch
from torch.utils.data import DataLoader, Dataset
from feedline.profiling.profile import Profile

class Mine(Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return torch.zeros(2)

for method in ("fork", "spawn"):
    profile = Profile(resources=False)
    try:
        with profile:
            print(len(list(DataLoader(Mine(), batch_size=2, num_workers=1, multiprocessing_context=method))))
    except RuntimeError as error:
        print(error.__notes__)
    print(profile.recording.notes)
"""


def test_a_dataset_that_fresh_workers_cannot_import_is_named() -> None:
    """As a notebook's: `-c` has no file either."""
    done = subprocess.run([sys.executable, "-c", HERE_ALONE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    count, fork, notes, spawn = done.stdout.splitlines()
    assert count == "4" and "cannot import" not in fork
    assert "cannot import what a notebook defines" in notes and "cannot import what a notebook defines" in spawn


class Nested(torch.autograd.Function):
    """A checkpoint's: its backward calls one of its own, here in another thread, as autograd does it on a GPU."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        with torch.enable_grad():
            inner = [torch.ones(3, requires_grad=True) * 2 for _ in range(2)]
        other = threading.Thread(target=lambda: torch.autograd.backward(inner[0].sum()))
        other.start()
        other.join()
        with torch.enable_grad():
            torch.autograd.backward(inner[1].sum())
        time.sleep(0.01)
        return gradients[0] * 2


def test_a_backward_within_another_is_neither_another_trainer_nor_counted_twice() -> None:
    weight = torch.ones(3, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with Profile(resources=False) as seen:
        for x, _ in DataLoader(data(), batch_size=8):
            optimizer.zero_grad()
            (Nested.apply(weight) * x.mean()).sum().backward()
            optimizer.step()
    train = steps(seen.recording, "train")
    assert len(train) == 8 and not any(one.background for one in seen.recording.loaders)
    assert all(0.01 < step.backward_s <= step.duration_s for step in train)
