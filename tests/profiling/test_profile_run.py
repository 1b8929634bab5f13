"""Whole studies of unmodified scripts in their own processes: verdict pass, legs, lines, ranks, workers that die."""

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("torch")

from feedline.cli.profile import with_trials
from feedline.pipeline.base.errors import UsageError
from feedline.profiling import launch
from feedline.profiling.explain.verdict import diagnose
from feedline.profiling.profile_run import study
from feedline.profiling.record.journal import StudyConfig
from feedline.profiling.record.recording import Recording
from feedline.profiling.record.stages import STAGES
from tests.profiling.recordings import made

SCRIPTS = Path(__file__).with_name("scripts")


def test_a_script_without_images_is_told_why_no_shards_are_predicted(tmp_path: Path) -> None:
    paths = [tmp_path / "train.lmdb", tmp_path / "labels.csv"]
    for path in paths:
        path.write_bytes(b"no picture")
    recording = replace(made(wait_s=0.1, compute_s=0.01), sample_paths=list(map(str, paths)))
    (note,) = with_trials(recording).notes
    assert "of 2 files seen to be opened none is an image" in note and "LMDB" in note


SPAWNED = """
import sys
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.utils.data import DataLoader, TensorDataset

def train(rank, store):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    torch.set_num_threads(1)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for (x,) in DataLoader(TensorDataset(torch.rand(96, 4)), batch_size=8):
        model(x).mean().backward()
        optimizer.step()
    dist.destroy_process_group()

if __name__ == "__main__":
    mp.spawn(train, (sys.argv[1],), nprocs=2)
"""


@pytest.mark.slow
def test_ranks_of_spawned_processes_are_told_apart(tmp_path: Path) -> None:
    script = tmp_path / "spawned.py"
    script.write_text(SPAWNED)
    done = study(StudyConfig(argv=[str(script), str(tmp_path / "store")]))
    assert done.status == 0
    assert {trainer.rank for trainer in done.recording.trainers} == {0, 1}
    assert done.recording.compute.world_size == 2
    for rank in (0, 1):
        assert len([step for step in done.recording.steps if step.rank == rank]) == 12


LOADERLESS = """
import sys, time
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(2000):
    model(torch.rand(8, 4)).mean().backward()
    optimizer.step()
    time.sleep(0.01)
sys.exit("never stopped")
"""


@pytest.mark.parametrize(("limit", "by"), [({"steps": 25}, "steps"), ({"seconds": 0.5}, "seconds")])
def test_a_loop_without_a_loader_stops_too(tmp_path: Path, limit: dict[str, Any], by: str) -> None:
    script = tmp_path / "loaderless.py"
    script.write_text(LOADERLESS)
    done = study(StudyConfig(argv=[str(script)], **limit))
    assert (done.status, done.recording.script.ended_by) == (0, by)
    assert done.recording.optimizer_steps == limit.get("steps", done.recording.optimizer_steps) > 0
    assert diagnose(done.recording).measured.unit == "steps/s"


TWO_OPTIMISERS = """
import sys
import torch

models = [torch.nn.Linear(4, 1) for _ in range(2)]
optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
for number in range(2000):
    for model, optimizer in zip(models, optimizers):
        model(torch.rand(8, 4)).mean().backward()
        optimizer.step()
sys.exit("never stopped")
"""


def test_steps_of_a_loop_without_a_loader_are_those_of_its_first_optimiser(tmp_path: Path) -> None:
    script = tmp_path / "gan.py"
    script.write_text(TWO_OPTIMISERS)
    done = study(StudyConfig(argv=[str(script)], steps=25))
    assert (done.recording.script.ended_by, done.recording.optimizer_steps) == ("steps", 49)
    assert len(done.recording.steps) == 24


ANOTHER_OPTIMISER = """
import torch

model = torch.nn.Linear(4, 1)
for epoch in range(100):  # the head first, then all of it
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kept = [optimizer] if epoch == 0 else kept + [optimizer]
    for _ in range(12 if epoch == 0 else 400):
        model(torch.rand(8, 4)).mean().backward()
        optimizer.step()
"""


def test_a_loop_without_a_loader_goes_on_with_another_optimiser(tmp_path: Path) -> None:
    script = tmp_path / "folds.py"
    script.write_text(ANOTHER_OPTIMISER)
    done = study(StudyConfig(argv=[str(script)], steps=60))
    assert done.recording.script.ended_by == "steps" and done.recording.optimizer_steps < 400


ABORTS = """
import atexit, os, sys, time
import torch
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.rand(4000, 4)), batch_size=4)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
atexit.register(os.abort)
for (batch,) in loader:
    model(batch).mean().backward()
    optimizer.step()
"""


def test_a_script_that_dies_of_a_signal_once_it_was_stopped_has_been_seen(tmp_path: Path) -> None:
    script = tmp_path / "aborts.py"
    script.write_text(ABORTS)
    done = study(StudyConfig(argv=[str(script)], steps=20))
    assert (done.status, done.exit_status, done.recording.script.ended_by) == (0, 128 + signal.SIGABRT, "steps")
    assert len(done.recording.steps) == 20


UNTRAINED = """
import sys, time
from torch.utils.data import DataLoader

for epoch in range(100):
    for batch in DataLoader(list(range(256)), batch_size=4):
        time.sleep(0.05)
sys.exit("never stopped")
"""


def test_a_loop_that_only_loads_stops_too(tmp_path: Path) -> None:
    """Long after its first rows were written."""
    script = tmp_path / "untrained.py"
    script.write_text(UNTRAINED)
    done = study(StudyConfig(argv=[str(script)], steps=40))
    assert (done.status, done.recording.script.ended_by) == (0, "steps")
    assert len(done.recording.steps) == 40


CATCHES = """
import pathlib, sys, time
import torch
from torch.utils.data import DataLoader, TensorDataset

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def train():
    for (batch,) in DataLoader(TensorDataset(torch.rand(40_000, 4)), batch_size=4):
        model(batch).mean().backward()
        optimizer.step()
        time.sleep(0.001)

"""


def caught(folder: Path, text: str) -> StudyConfig:
    script = folder / "catches.py"
    script.write_text(CATCHES + text)
    return StudyConfig(argv=[str(script), str(folder / "saved")], steps=20)


@pytest.mark.slow
def test_a_script_that_takes_long_to_end_ends_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "LEAVE_S", 1.0)
    text = "try:\n    train()\nfinally:\n    time.sleep(4)\n    pathlib.Path(sys.argv[1]).touch()\n"
    said: list[str] = []
    done = study(caught(tmp_path, text), said.append)
    assert (tmp_path / "saved").exists()
    assert (done.status, done.recording.script.ended_by) == (0, "steps")
    assert said == ["the script is still ending; Ctrl-C ends it at once"] and not done.recording.notes


def test_a_script_that_trains_on_is_terminated_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "LEAVE_S", 1.0)
    text = "while True:\n    try:\n        train()\n    except BaseException:\n        pass\n"
    said: list[str] = []
    done = study(caught(tmp_path, text), said.append)
    assert (done.status, done.recording.script.ended_by) == (0, "steps")
    assert said == ["the script was told to stop and trains on: it is terminated"]
    assert done.recording.notes == ["the script was told to stop and trains on: it was terminated"]


@pytest.mark.slow
def test_a_script_that_hangs_as_it_ends_is_terminated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread of its own that is no daemon waits for ever to hand a batch over."""
    monkeypatch.setattr(launch, "LEAVE_S", 0.5)
    monkeypatch.setattr(launch, "IDLE_MOST_S", 3.0)
    text = "import threading\nthreading.Thread(target=threading.Event().wait).start()\ntrain()\n"
    said: list[str] = []
    done = study(caught(tmp_path, text), said.append)
    assert (done.status, done.recording.script.ended_by) == (0, "steps")
    assert said[-1] == "the script was told to stop and has not ended: it is terminated"


@pytest.mark.slow
def test_what_a_script_that_is_terminated_has_started_ends_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "LEAVE_S", 0.5)
    monkeypatch.setattr(launch, "IDLE_MOST_S", 1.0)
    text = "import multiprocessing\nmaker = multiprocessing.Process(target=time.sleep, args=(600,))\nmaker.start()\n"
    text += "pathlib.Path(sys.argv[1]).write_text(str(maker.pid))\ntrain()\n"
    study(caught(tmp_path, text))
    with suppress(psutil.NoSuchProcess):
        assert psutil.Process(int((tmp_path / "saved").read_text())).status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize(
    ("caught_with", "status", "by"), [("sys.exit(1)", 0, "steps"), ("raise ValueError('no disk')", 1, "error")]
)
def test_a_status_that_a_script_makes_of_its_end_is_none_but_an_error_of_its_own_is(
    tmp_path: Path, caught_with: str, status: int, by: str
) -> None:
    text = f"try:\n    train()\nexcept BaseException:\n    {caught_with}\n"
    done = study(caught(tmp_path, text))
    assert (done.status, done.recording.script.ended_by) == (status, by)


@pytest.mark.parametrize("options", [{"seconds": 1.0}, {"steps": 20, "legs": ("normal", "cached")}])
def test_ranks_on_other_machines_are_refused_what_they_would_hang_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """As under `srun`, where each rank has a profiler of its own."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    text = "from feedline.profiling.watch import stop\nstop.MEET_S = 0.5\ntrain()\n"
    config = replace(caught(tmp_path, text), steps=None)
    with pytest.raises(UsageError, match=r"1 of 2 ranks run on this machine, .* give --steps"):
        study(replace(config, **options))


MURDER = """
import os, signal, sys, time
import torch
from torch.utils.data import DataLoader, Dataset

class Data(Dataset):
    def __len__(self):
        return 4000
    def __getitem__(self, index):
        time.sleep(0.002)
        if index == 900:
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.zeros(3)

if __name__ == "__main__":
    for batch in DataLoader(Data(), batch_size=4, num_workers=2):
        pass
"""


def test_a_worker_that_is_killed_has_told_what_it_did(tmp_path: Path) -> None:
    script = tmp_path / "killed.py"
    script.write_text(MURDER)
    done = study(StudyConfig(argv=[str(script)]))
    assert done.status == 1
    # torch says that a worker was killed, or, in the midst of a batch from it, that its pipe has ended
    assert done.recording.script.error and re.search("DataLoader worker|EOF|Connection", done.recording.script.error)
    assert "killed" in {worker.ended for worker in done.recording.workers}
    assert len(done.recording.steps) > 100
    assert any("killed" in note for note in done.recording.notes)


@pytest.mark.slow
def test_ranks_under_torchrun_are_merged() -> None:
    argv = ["torchrun", "--nproc-per-node", "2", str(SCRIPTS / "ddp.py")]
    done = study(StudyConfig(argv=argv, steps=40))
    assert done.status == 0
    assert done.recording.compute.world_size == 2
    by_rank = {rank: [step for step in done.recording.steps if step.rank == rank] for rank in (0, 1)}
    assert [len(found) for found in by_rank.values()] == [40, 40]
    assert {trainer.rank for trainer in done.recording.trainers} == {0, 1}
    assert {worker.rank for worker in done.recording.workers} == {0, 1}


@pytest.mark.slow
def test_an_image_folder_and_mobilenet(tmp_path: Path) -> None:
    pytest.importorskip("torchvision")
    image = pytest.importorskip("PIL.Image")
    for number in range(480):
        folder = tmp_path / f"class{number % 2}"
        folder.mkdir(exist_ok=True)
        image.new("RGB", (90, 90), (number % 256, 9, 9)).save(folder / f"{number}.jpg")
    argv = [str(SCRIPTS / "imagefolder_mobilenet.py"), str(tmp_path), "1", "1"]
    done = study(StudyConfig(argv=argv))
    assert done.status == 0
    loader = done.recording.train_loader
    assert loader is not None
    assert (loader.kind, loader.dataset, loader.dataset_samples, loader.num_workers) == (
        "torch",
        "ImageFolder",
        480,
        1,
    )
    assert loader.folder == str(tmp_path)
    assert loader.transforms == ["RandomResizedCrop", "RandomHorizontalFlip", "ToTensor", "Normalize"]
    assert (done.recording.compute.optimizer, done.recording.optimizer_steps) == ("SGD", 60)
    (worker,) = done.recording.workers
    assert worker.stages["other"] < 0.1 * worker.seconds
    found = diagnose(done.recording)
    assert found.bound == "compute"  # MobileNetV2 on one thread, beside pictures of 90 pixels


@pytest.mark.slow
def test_webdataset_without_a_dataloader(tmp_path: Path) -> None:
    wds, image = pytest.importorskip("webdataset"), pytest.importorskip("PIL.Image")
    with wds.TarWriter(str(tmp_path / "shard.tar")) as sink:
        for number in range(40):
            sink.write(
                {"__key__": f"{number:03d}", "jpg": image.new("RGB", (90, 90), (number, 9, 9)), "cls": number % 9}
            )
    argv = [str(SCRIPTS / "webdataset_loop.py"), str(tmp_path / "shard.tar"), "-1"]
    found = study(StudyConfig(argv=argv)).recording
    assert found.loaders[0].kind == "webdataset"
    assert len(found.measured()) > 40
    (worker,) = found.workers
    assert worker.in_trainer
    assert worker.stages["other"] < 0.1 * worker.seconds
    assert set(worker.transforms) & {"RandomResizedCrop", "ToTensor"}
    assert str(tmp_path / "shard.tar") in found.sample_paths


def test_the_record_has_the_keys_others_rely_on(tmp_path: Path) -> None:
    script = SCRIPTS / "mnist_like.py"
    command = [sys.executable, "-c", "from feedline.cli.main import run; run()", "profile", "--no-trials"]
    words = [
        "--json",
        "out.json",
        "--html",
        "r.html",
        "--trace",
        "t.json",
        "--fail-if",
        "samples_per_s>0",
        str(script),
    ]
    done = subprocess.run([*command, *words], cwd=tmp_path, capture_output=True, text=True, env={**os.environ})
    assert done.returncode == 1, done.stderr
    assert "Train Epoch: 1 [0]" in done.stdout
    assert "samples_per_s" in done.stderr
    record = json.loads((tmp_path / "out.json").read_text())
    assert record["verb"] == "profile"
    assert record["verdict"]["bound"] in ("data", "copy", "compute", "trainer", None)  # so short a run may not tell
    assert record["verdict"]["ceiling_samples_per_s"] is None
    assert {"wait_fraction", "samples_per_s", "overhead_fraction"} <= set(record["verdict"])
    assert {"stages", "workers", "predictions", "gpu", "lines"} <= set(record)
    assert not record["stages"] or set(record["stages"]) == set(STAGES)
    recording = Recording.load(tmp_path / "out.json")
    assert [loader.phase for loader in recording.loaders] == ["train", "eval"]
    assert (tmp_path / "r.html").read_text().startswith("<!")
    assert json.loads((tmp_path / "t.json").read_text())["traceEvents"]
