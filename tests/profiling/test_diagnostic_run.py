"""Runs with legs and lines: windows of the script's own loop, after which it is ended. Nothing runs twice."""

import textwrap
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from feedline.profiling.profile_run import chosen_legs, study
from feedline.profiling.record.journal import StudyConfig
from feedline.profiling.record.recording import Line, Recording
from feedline.profiling.watch.legs.ways import worker_counts

SCRIPTS = Path(__file__).with_name("scripts")
BATCH = 8
PRELUDE = """
import atexit, os, sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
torch.set_num_threads(1)
open("started", "a").write("once\\n")
model = nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
data = TensorDataset(torch.rand(160, 4), torch.randint(0, 3, (160,)))
steps = 0

def step(batch):
    global steps
    x, y = batch
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    steps += 1
    time.sleep(0.002)

"""


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def script(work: Path, text: str) -> str:
    path = work / "train.py"
    path.write_text(PRELUDE + textwrap.dedent(text))
    return str(path)


def seen(argv: str | list[str], **options: Any) -> Recording:
    """By a run with short windows, which succeeds."""
    given: dict[str, Any] = {"steps": 15, "legs": ("normal", "cached"), "window_s": 0.15, "rounds": 2} | options
    done = study(StudyConfig(argv=[argv] if isinstance(argv, str) else argv, **given))
    assert done.status == 0
    assert done.recording.script.exit_status == 0
    return done.recording


def rates(recording: Recording) -> dict[str, int]:
    """Windows by leg."""
    for leg in recording.legs:
        assert all(rate > 0 for rate in leg.samples_per_s)
    return {leg.name: len(leg.samples_per_s) for leg in recording.legs}


def hits(lines: list[Line], where: str) -> dict[str, int]:
    return {line.source: line.hits for line in lines if line.where == where}


# --- the windows --------------------------------------------------------------------------------------


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
    assert normal is not None
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


@pytest.mark.parametrize("loader", ["DataLoader(data, batch_size=8, num_workers=1)", "kept"])
def test_passes_that_the_script_breaks_off_and_evaluations_between(work: Path, loader: str) -> None:
    kept = "kept = DataLoader(data, batch_size=8, num_workers=1, persistent_workers=True)\n" * (loader == "kept")
    found = seen(script(work, kept + BROKEN_OFF.format(loader=loader)), window_s=0.03)
    assert rates(found)["normal"] == rates(found)["cached"] == 2
    assert (work / "evaluated").exists()
    assert not [note for note in found.notes if "legs" in note]


LOADERS = {
    "no workers": "DataLoader(data, batch_size=8)",
    "persistent workers": "DataLoader(data, batch_size=8, num_workers=2, persistent_workers=True)",
    "iterable": "DataLoader(Stream(), batch_size=8, num_workers=1)",
    "stateful": "StatefulDataLoader(data, batch_size=8, num_workers=1)",
    "nodes": "nodes.Loader(nodes.Mapper(nodes.Batcher(nodes.IterableWrapper(data), batch_size=8), default_collate))",
}


@pytest.mark.parametrize("name", LOADERS)
def test_loaders_of_all_kinds(work: Path, name: str) -> None:
    if name in ("stateful", "nodes"):
        pytest.importorskip("torchdata")
    argv = script(
        work,
        f"""
        class Stream(IterableDataset):
            def __iter__(self):
                yield from data
        if {name in ("stateful", "nodes")}:
            from torch.utils.data import default_collate
            from torchdata import nodes
            from torchdata.stateful_dataloader import StatefulDataLoader
        loader = {LOADERS[name]}
        def train():
            for batch in loader:
                step(batch)
        train()
        """,
    )
    found = seen(argv, legs=chosen_legs(True), lines=True, rounds=1)
    assert set(rates(found)) >= {"normal", "cached", "loader_only", "kept", "cold"}
    assert hits(found.lines, "trainer")["optimizer.step()"] == 30
    assert not [note for note in found.notes if "legs" in note or "lines" in note]


def test_webdataset(work: Path) -> None:
    wds, image = pytest.importorskip("webdataset"), pytest.importorskip("PIL.Image")
    with wds.TarWriter(str(work / "shard.tar")) as sink:
        for number in range(40):
            picture = image.new("RGB", (90, 90), (number, 9, 9))
            sink.write({"__key__": f"{number:03d}", "jpg": picture.crop((0, 0, 4, 9)), "cls": number % 3})
    argv = script(
        work,
        """
        import webdataset as wds
        shards = wds.WebDataset("shard.tar", shardshuffle=False).decode("torchrgb").to_tuple("jpg", "cls").batched(8)
        for images, labels in shards:
            step((images.mean(dim=(1, 2)), torch.tensor(labels) % 3))
        """,
    )
    found = seen(argv, legs=("normal", "cached", "loader_only"), steps=12)
    assert set(rates(found)) >= {"normal", "cached", "loader_only"}
    assert found.loaders[0].kind == "webdataset"
    assert not [note for note in found.notes if "legs" in note]


def test_feedlines_own_loader(work: Path) -> None:
    pytest.importorskip("simplejpeg")
    from tests.lab import tiny_split

    tiny_split.write(work / "train", 120, 3, classes=3)
    argv = script(
        work,
        """
        from feedline.pipeline.loader import Loader
        for images, labels in Loader("train", batch_size=8, image_size=32, train=True, num_workers=1):
            step((images.float().mean(dim=(1, 2)).repeat(1, 2)[:, :4], labels))
        """,
    )
    found = seen(argv, legs=chosen_legs(True), rounds=1, steps=12)
    assert set(rates(found)) == {"normal", "cached", "loader_only", "cold"}
    assert found.loaders[0].kind == "feedline"
    assert not [note for note in found.notes if "legs" in note]


def test_ranks_measure_together_and_leave_together() -> None:
    argv = ["torchrun", "--nproc-per-node", "2", str(SCRIPTS / "ddp.py")]
    found = seen(argv, steps=30, legs=("normal", "cached", "loader_only"), lines=True)
    assert {step.rank for step in found.steps} == {0, 1}
    assert rates(found)["normal"] == rates(found)["cached"] == 2
    assert found.lines
    assert not [note for note in found.notes if "legs" in note]


# --- lines --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_lines_of_workers_and_trainer_are_complete(method: str, tmp_path: Path) -> None:
    argv = [str(SCRIPTS / "toy.py"), "1", method, "96", str(tmp_path / "run")]
    found = seen(argv, legs=(), lines=True, steps=6)
    in_trainer, in_workers = hits(found.lines, "trainer"), hits(found.lines, "workers")
    assert in_trainer["loss.backward()"] == in_trainer["optimizer.step()"] == 30
    made = in_workers["values = torch.stack([value for value, _ in samples])"]
    assert made >= 30
    assert in_workers["value = self.make(index)"] >= BATCH * made
    assert in_workers["return torch.full((4,), float(index))"] == in_workers["value = self.make(index)"]
    assert not (tmp_path / "run" / "model.pt").exists()
    assert not found.legs and not found.notes


def test_a_loop_in_a_module_of_the_scripts_own_is_timed(work: Path) -> None:
    (work / "engine.py").write_text("def train(loader, step):\n    for batch in loader:\n        step(batch)\n")
    argv = script(work, "import engine\nengine.train(DataLoader(data, batch_size=8), step)\n")
    found = seen(argv, legs=(), lines=True)
    assert hits(found.lines, "trainer")["step(batch)"] == 30


MANY = """
def rarely():
    return 1

""" + "".join(f"def often{n}():\n    return sum(range(2000))\n\n" for n in range(15)) + """
OFTEN = [value for name, value in list(globals().items()) if name.startswith("often")]

def train():
    for batch in DataLoader(torch.rand(64, 2), batch_size=8):
        rarely()
        for one in OFTEN:
            one()

train()
"""  # fmt: skip


def test_a_named_function_is_told_as_such(work: Path) -> None:
    found = seen(script(work, MANY), legs=(), lines=True, functions=("rarely",), steps=5)
    assert {line.function.rpartition(".")[2] for line in found.lines} >= {"train", "rarely"}


def test_a_loop_outside_any_function_is_told_so(work: Path) -> None:
    found = seen(
        script(work, "for batch in DataLoader(data, batch_size=8):\n    pass\n"), legs=(), lines=True, steps=5
    )
    assert any("put it into one" in note or "none of the chosen functions ran" in note for note in found.notes)


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
    assert found.leg("normal") is not None
    (note,) = [note for note in found.notes if "legs" in note]
    assert note.startswith(f"the legs are not whole: {reason}")
    assert (len(found.steps), found.script.ended_by) == (15, "steps")
    assert not (work / "best.pt").exists()


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


@pytest.mark.parametrize("how", ["flatten", "view"])
def test_a_script_that_cannot_take_channels_last_is_told_so_and_has_all_else(work: Path, how: str) -> None:
    found = seen([script(work, IMAGES), how], legs=chosen_legs(True), lines=True)
    assert {"normal", "cached", "loader_only", "cold", "kept"} <= set(rates(found))
    assert found.lines
    assert (found.leg("laid_out") is not None) == (how == "flatten")
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


# --- models stay as they are --------------------------------------------------------------------------

SAVES = """
import contextlib
from torch import save as store
sys.path.insert(0, ".")

def at_exit():
    store(model.state_dict(), "exit.pt")
    with contextlib.suppress(ImportError):
        from safetensors.torch import save_file
        save_file(model.state_dict(), "exit.safetensors")
    torch.jit.script(model).save("jit.pt")
    os.remove("old.ckpt")
atexit.register(at_exit)

try:
    for batch in DataLoader(data, batch_size=8):
        step(batch)
        if steps > 20:
            store(model.state_dict(), "best.pt")
except BaseException:
    with open("broken.pth", "wb") as file:
        store(model.state_dict(), file)
finally:
    open("result.txt", "w").write("done")
    store(model.state_dict(), "last.tmp")
    os.replace("other.tmp", "last.pt")
"""


def test_no_model_file_changes_from_the_first_leg_to_the_end(work: Path) -> None:
    models = ("exit.pt", "exit.safetensors", "jit.pt", "old.ckpt", "best.pt", "broken.pth", "last.pt", "other.tmp")
    for name in models:
        (work / name).write_bytes(name.encode())
    found = seen(script(work, SAVES))
    assert rates(found)["normal"] == 2
    assert {name: (work / name).read_bytes() for name in models} == {name: name.encode() for name in models}
    assert not (work / "last.tmp").exists()
    assert (work / "result.txt").read_text() == "done"
    assert not [note for note in found.notes if "legs" in note]


LIGHTNING = """
import lightning.pytorch as pl
from lightning.pytorch.callbacks import ModelCheckpoint, OnExceptionCheckpoint

class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = model
    def training_step(self, batch, _):
        for name in ("broken", "often", "last"):  # Lightning resumes from such a file that is there as it starts
            if not os.path.exists(f"{name}.ckpt"):
                open(f"{name}.ckpt", "w").write(name)
        return nn.functional.cross_entropy(self.model(batch[0]), batch[1])
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-6)

often = ModelCheckpoint(".", "often", every_n_train_steps=5, save_last="link", enable_version_counter=False)
callbacks = [OnExceptionCheckpoint(".", "broken"), often]
trainer = pl.Trainer(max_epochs=9999, accelerator="cpu", logger=False, callbacks=callbacks, enable_progress_bar=0)
trainer.fit(Module(), DataLoader(data, batch_size=8))
"""


def test_lightnings_checkpoints_stay_as_they_are(work: Path) -> None:
    """One is written when an exception ends the loop, and removed again as the trainer is torn down."""
    pytest.importorskip("lightning.pytorch")
    found = seen(script(work, LIGHTNING), steps=4)
    assert rates(found)["normal"] == 2
    assert {path.stem: path.read_text() for path in work.glob("*.ckpt")} == {
        name: name for name in ("often", "last", "broken")
    }
