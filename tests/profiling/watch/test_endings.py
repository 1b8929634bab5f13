"""However a script ends, and wherever in it training runs: the recording is whole."""

import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from feedline.profiling.launch import launched
from feedline.profiling.record.journal import StudyConfig
from feedline.profiling.record.recording import Recording
from tests.profiling.diagnostic_runs import rates, script, seen

ENDINGS = {
    "os._exit": "train()\nos._exit(0)",
    "a forked child": "child = mp.get_context('fork').Process(target=train)\nchild.start()\nchild.join()",
    "a spawned child": "child = mp.get_context('spawn').Process(target=train)\nchild.start()\nchild.join()",
    "os.fork": "if os.fork() == 0:\n    train()\n    os._exit(0)\nos.wait()",
    "a thread": "thread = threading.Thread(target=train)\nthread.start()\nthread.join()",
}
TRAIN = """
import multiprocessing as mp, threading

def train():
    for epoch in range({epochs}):
        for batch in DataLoader(data, batch_size=8):
            step(batch)

if __name__ == "__main__":
    {ending}
"""


def ending(work: Path, name: str, epochs: int) -> str:
    return script(work, TRAIN.format(epochs=epochs, ending=ENDINGS[name].replace("\n", "\n    ")))


def profiled(argv: str, **options: Any) -> Recording:
    with launched(StudyConfig(argv=[argv], **options)) as run:
        assert run.status == 0
        return run.recording


@pytest.mark.slow
@pytest.mark.parametrize("name", ENDINGS)
def test_every_step_is_in_the_recording(work: Path, name: str) -> None:
    found = profiled(ending(work, name, epochs=3))
    assert len(found.steps) == found.optimizer_steps == 60
    assert {step.phase for step in found.steps} == {"train"}
    assert [loader.phase for loader in found.loaders] == ["train"]
    (trainer,) = found.trainers
    assert trainer.seconds > 0
    assert found.compute.world_size == 1
    assert not found.notes


@pytest.mark.parametrize("name", ["os._exit", "a forked child", "a thread"])
def test_legs_and_lines_wherever_training_runs(work: Path, name: str, capfd: pytest.CaptureFixture[str]) -> None:
    found = seen(ending(work, name, epochs=1000), lines=True)
    assert rates(found) == {"normal": 2, "cached": 2, "kept": 2}
    assert found.lines
    assert (len(found.steps), found.script.ended_by, found.notes) == (15, "steps", [])
    assert "Finished" not in capfd.readouterr().err


TWO_CHILDREN = """
import multiprocessing as mp

def train():
    for batch in DataLoader(data, batch_size=8):
        step(batch)

for _ in range(2):
    child = mp.get_context("fork").Process(target=train)
    child.start()
    child.join()
"""


def test_children_that_follow_each_other_are_not_added_up(work: Path) -> None:
    found = profiled(script(work, TWO_CHILDREN))
    assert (len(found.steps), found.compute.world_size) == (20, 1)


AHEAD = """
import queue, threading

def ahead(loader):
    batches = queue.Queue(2)
    def draw():
        for batch in loader:
            batches.put(batch)
        batches.put(None)
    threading.Thread(target=draw, daemon=True).start()
    return iter(batches.get, None)

try:
    for epoch in range(1000):
        for batch in ahead(DataLoader(data, batch_size=8)):
            step(batch)
finally:
    open("cleaned", "w").write("up")
"""


@pytest.mark.parametrize("legs", [("normal", "cached"), ()])
def test_the_thread_that_trains_is_ended_where_another_one_draws_its_batches(work: Path, legs: Any) -> None:
    found = seen(script(work, AHEAD), legs=legs)
    assert rates(found) == ({"normal": 2, "cached": 2, "kept": 2} if legs else {})
    assert found.script.ended_by == "steps"
    assert (work / "cleaned").exists()


WORKERS = """
import signal

class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 4000
    def __getitem__(self, index):
        time.sleep(0.002)
        return torch.zeros(4), 1

for batch in DataLoader(Slow(), batch_size=4, num_workers=2):
    step(batch)
    if steps == 300:  # workers write down what they do every second
        {end}
"""
ENDED = {
    "os._exit(0)": set[str](),
    "sys.exit()": set[str](),
    "break": set[str](),
    "[one.terminate() for one in torch.multiprocessing.active_children()]; os._exit(0)": set[str](),
    "os.kill(torch.multiprocessing.active_children()[0].pid, 9); time.sleep(0.5)": {"killed"},
}


@pytest.mark.slow
@pytest.mark.parametrize("end", ENDED)
def test_only_a_worker_that_somebody_else_has_killed_is_called_killed(work: Path, end: str) -> None:
    argv = script(work, WORKERS.format(end=end))
    with launched(StudyConfig(argv=[argv])) as run:
        found = run.recording
    assert {worker.ended for worker in found.workers} & {"killed"} == ENDED[end]
    assert any("killed" in note for note in found.notes) == bool(ENDED[end])


WATCHED = """
from feedline.profiling.profile import Profile

with Profile() as seen:
    for batch in DataLoader(data, batch_size=8):
        step(batch)
    print(sorted(seen.metrics()))
print(len(seen.recording.steps), seen.verdict.notes[-1], str(seen)[:4])
with Profile() as again:
    for batch in DataLoader(data, batch_size=8):
        step(batch)
model.weight.data.zero_()
weights = model.weight.clone()
print(len(again.recording.steps), seen.recording is seen.recording)
trained = Profile(legs=True).run(lambda: [step(batch) for batch in DataLoader(data, batch_size=8)])
print(torch.equal(model.weight, weights), len(trained.recording.steps))
"""


def test_a_scripts_own_profile_under_feedline_profile(work: Path, capfd: pytest.CaptureFixture[str]) -> None:
    recording = profiled(script(work, WATCHED))
    assert (len(recording.steps), recording.script.ended_by) == (60, "itself")
    metrics, first, second, third = capfd.readouterr().out.splitlines()
    assert metrics == "['samples_per_s', 'wait_fraction']"
    assert first.startswith("20 seen by `feedline profile` so far")
    assert (second, third) == ("40 True", "True 60")


def test_a_thread_that_fails_is_still_told_of() -> None:
    """What ends a training thread quietly is ours alone."""
    from feedline.profiling.profile import Profile

    told: list[str] = []
    before, threading.excepthook = threading.excepthook, lambda about: told.append(about.exc_type.__name__)
    try:
        with Profile(resources=False):
            thread = threading.Thread(target=[].pop)
            thread.start()
            thread.join()
    finally:
        threading.excepthook = before
    assert told == ["IndexError"]
