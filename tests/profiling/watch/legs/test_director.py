"""Windows of the script's own loop follow the verdict's steps, and end it. Nothing runs twice."""

from pathlib import Path

import pytest

pytest.importorskip("torch")

from feedline.profiling.profile_run import chosen_legs
from feedline.profiling.watch.legs.director import late
from feedline.profiling.watch.legs.ways import worker_counts
from tests.profiling.diagnostic_runs import SCRIPTS, rates, script, seen


def test_legs_follow_the_verdicts_steps_and_nothing_runs_twice(work: Path) -> None:
    argv = script(
        work,
        """
        for batch in DataLoader(data, batch_size=8, num_workers=1):
            step(batch)
        torch.save(model.state_dict(), "model.pt")
        """,
    )
    found = seen(argv, legs=chosen_legs(True))
    assert (work / "started").read_text() == "once\n"
    assert not (work / "model.pt").exists()
    assert {(leg.name, leg.num_workers) for leg in found.legs} == {
        ("normal", None), ("cached", None), ("loader_only", None), ("kept", None), ("cold", None),
        *(("loader_only", count) for count in worker_counts(1)),
    }  # fmt: skip
    assert rates(found) == {leg.name: 1 if leg.name == "cold" else 2 for leg in found.legs}
    assert (found.script.ended_by, len(found.steps), found.notes) == ("steps", 15, [])


@pytest.mark.slow
def test_without_steps_a_short_script_is_held_until_enough_was_seen(work: Path) -> None:
    argv = script(
        work,
        """
        for batch in DataLoader(data, batch_size=8):
            step(batch)
            time.sleep(0.1)
        """,
    )
    found = seen(argv, steps=None, rounds=1)
    assert rates(found) == {"normal": 1, "cached": 1, "kept": 1}
    assert len({step.epoch for step in found.steps}) > 1
    assert found.seconds > 10


@pytest.mark.slow
def test_the_normal_leg_agrees_with_the_verdict(work: Path) -> None:
    """Waits are sleeps, so that neither depends much on who else computes here."""
    argv = script(
        work,
        """
        class Slow(torch.utils.data.Dataset):
            def __len__(self):
                return 200
            def __getitem__(self, index):
                time.sleep(0.01)
                return torch.zeros(4), 1

        for batch in DataLoader(Slow(), batch_size=4, num_workers=2):
            step(batch)
        """,
    )
    found = seen(argv, steps=80, legs=("normal", "cached", "loader_only"), window_s=0.6, rounds=3)
    measured = found.measured()
    verdict = sum(step.samples for step in measured) / sum(step.duration_s for step in measured)
    normal = found.leg("normal")
    assert sorted(normal.samples_per_s)[1] == pytest.approx(verdict, rel=0.5)


EPOCHS = """
for epoch in range(1000):
    for batch in DataLoader(torch.utils.data.Subset(data, range({samples})), batch_size=8, num_workers={workers}):
        step(batch)
    with torch.no_grad():
        for x, y in DataLoader(data, batch_size=16):
            model(x)
    open("evaluated", "a").write("once\\n")
"""


@pytest.mark.parametrize(("samples", "workers"), [(8, 0), (16, 1)])
def test_epochs_shorter_than_a_window(work: Path, samples: int, workers: int) -> None:
    """The loop stays in its first pass, so the evaluation behind it is never reached."""
    found = seen(script(work, EPOCHS.format(samples=samples, workers=workers)), steps=6)
    assert rates(found)["normal"] == rates(found)["cached"] == 2
    assert not (work / "evaluated").exists()
    assert not [note for note in found.notes if "legs" in note]


BROKEN_OFF = """
held_out = DataLoader(data, batch_size=16)
for epoch in range(1000):
    for number, batch in enumerate({loader}):
        step(batch)
        if number == 12:
            break
    with torch.no_grad():
        for x, y in held_out:
            model(x)
    open("evaluated", "a").write("once\\n")
"""


@pytest.mark.slow
@pytest.mark.parametrize("loader", ["DataLoader(data, batch_size=8, num_workers=1)", "kept"])
def test_passes_that_the_script_breaks_off_and_evaluations_between(work: Path, loader: str) -> None:
    kept = "kept = DataLoader(data, batch_size=8, num_workers=1, persistent_workers=True)\n" * (loader == "kept")
    found = seen(script(work, kept + BROKEN_OFF.format(loader=loader)), window_s=0.03)
    assert rates(found)["normal"] == rates(found)["cached"] == 2
    assert (work / "evaluated").exists()
    assert not [note for note in found.notes if "legs" in note]


@pytest.mark.slow
def test_ranks_measure_together_and_leave_together() -> None:
    argv = ["torchrun", "--nproc-per-node", "2", str(SCRIPTS / "ddp.py")]
    found = seen(argv, steps=30, legs=("normal", "cached", "loader_only"), lines=True)
    assert {step.rank for step in found.steps} == {0, 1}
    assert rates(found)["normal"] == rates(found)["cached"] == 2
    assert found.lines
    assert not [note for note in found.notes if "legs" in note]


# --- what ends windows early --------------------------------------------------------------------------

ENDS = {
    "a schedule that is over": ("schedule.step()", "the script ended with ValueError: Tried to step 61 times"),
    "a loss that is not finite": (
        "if steps == 60: raise FloatingPointError('loss is nan')",
        "the script ended with FloatingPointError: loss is nan",
    ),
    "an exit of the script's own": ("if steps == 60: sys.exit(3)", "the script ended with status 3"),
    "a loop that is left": ("if steps == 60: break", "the script left its training loop"),
    "a model written by itself": (
        "if steps == 60: torch.save(model.state_dict(), open('best.pt', 'wb'))",
        "the script was about to change best.pt by itself",
    ),
}


@pytest.mark.parametrize("name", ENDS)
def test_what_was_measured_is_kept_and_the_reason_is_said(work: Path, name: str) -> None:
    line, reason = ENDS[name]
    argv = script(
        work,
        f"""
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=60)
        for batch in DataLoader(data, batch_size=8):
            step(batch)
            {line}
        """,
    )
    found = seen(argv, legs=("normal", "cached", "cold"), window_s=0.03, rounds=4)
    assert found.leg("normal").samples_per_s
    (note,) = [note for note in found.notes if "legs" in note]
    assert note.startswith(f"the legs are not whole: {reason}")
    assert (len(found.steps), found.script.ended_by) == (15, "steps")
    assert not (work / "best.pt").exists()


def test_what_came_first_ended_the_steps_also_where_the_script_ends_in_a_window(work: Path) -> None:
    argv = script(work, "for batch in DataLoader(data, batch_size=8):\n    step(batch)\n    if steps == 25: break\n")
    found = seen(argv, steps=5000, seconds=0.03, window_s=0.03, rounds=4)
    assert (found.script.ended_by, len(found.steps) < 25) == ("seconds", True)
    assert any("the script left its training loop" in note for note in found.notes)


IMAGES = """
class Pictures(torch.utils.data.Dataset):
    def __len__(self):
        return 96
    def __getitem__(self, index):
        return torch.rand(3, 16, 16), index % 4

model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU())
head = torch.nn.Linear(8 * 14 * 14, 4)
optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.1)

def train():
    for images, labels in DataLoader(Pictures(), batch_size=8, num_workers=1):
        features = model(images)
        flat = features.view(8, -1) if sys.argv[1] == "view" else features.flatten(1)
        torch.nn.functional.cross_entropy(head(flat), labels).backward()
        optimizer.step()

train()
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["flatten", "view"])
def test_a_script_that_cannot_take_channels_last_is_told_so_and_has_all_else(work: Path, how: str) -> None:
    found = seen([script(work, IMAGES), how], legs=chosen_legs(True), lines=True)
    assert {"normal", "cached", "loader_only", "cold", "kept"} <= set(rates(found))
    assert found.lines
    assert bool(found.leg("laid_out").samples_per_s) == (how == "flatten")
    told = [note for note in found.notes if "channels_last" in note and "view size is not compatible" in note]
    assert len(told) == (how == "view")
    assert not [note for note in found.notes if "not whole" in note]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("for batch in DataLoader(data, batch_size=32):\n    pass\n", "give --steps, fewer than"),
        ("print(1)\n", "no loader was seen"),
    ],
)
def test_a_script_that_ends_before_its_windows_is_told_why(work: Path, text: str, reason: str) -> None:
    found = seen(script(work, text))
    assert found.legs == []
    assert any(note.startswith("no legs: ") and reason in note for note in found.notes)


def test_slow_steps_leave_time_for_what_tells_small_gains_apart() -> None:
    assert not late("normal", 0, 200) and late("normal", 1, 200)
    assert not late("kept", 2, 200) and late("kept", 3, 200)
    assert late("kept", 0, 300) and not late("normal", 4, 100)
