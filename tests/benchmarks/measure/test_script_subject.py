"""Scripts whose training loader is swapped, in fresh processes: whatever they do is measured, and nothing saved."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from feedline.benchmarks.measure.rounds import Bench, MeasureError
from feedline.benchmarks.measure.script_subject import ours
from feedline.benchmarks.measure.window import Subject, Window
from feedline.pipeline.loader import Loader

PRELUDE = """
import os, time
from pathlib import Path
os.environ["OMP_NUM_THREADS"] = "3"
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
here = Path(__file__).parent
os.chdir(here)
data = TensorDataset(torch.rand(64, 5))
"""


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with Bench() as bench:
        yield bench


def measured(bench: Bench, folder: Path, text: str, how: str = "none", **settings: Any) -> Window:
    path = folder / "train.py"
    path.write_text(PRELUDE + text)
    return bench.measure(
        Subject(kind="script", settings={"argv": [str(path)], "how": how, **settings}, warm_up_s=0.05,
                warm_up_batches=2, window_s=0.2)
    )  # fmt: skip


def test_no_model_changes_however_the_script_saves_and_takes_its_end(bench: Bench, tmp_path: Path) -> None:
    names = ("best.pt", "tmp.pt", "last.pt", "jit.pt")
    for name in names:
        (tmp_path / name).write_text(name)
    text = """
try:
    for epoch in range(10**6):
        for batch in DataLoader(data, batch_size=16, shuffle=True):
            torch.save({}, "best.pt")
except BaseException:
    torch.jit.script(torch.nn.Linear(1, 1)).save("jit.pt")
finally:
    (here / "ended").touch()
    torch.save({}, "tmp.pt")
    os.replace("tmp.pt", "last.pt")
"""
    assert measured(bench, tmp_path, text).samples > 0
    assert (tmp_path / "ended").exists()
    assert {name: (tmp_path / name).read_text() for name in names} == {name: name for name in names}


def test_a_script_that_changes_a_model_by_itself_is_ended_before(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "own.pt").write_text("mine")
    text = """
for batch in DataLoader(data, batch_size=16, shuffle=True):
    open("own.pt", "w").write("yours")
"""
    with pytest.raises(MeasureError, match=r"about to change own\.pt by itself, so it was ended"):
        measured(bench, tmp_path, text)
    assert (tmp_path / "own.pt").read_text() == "mine"


def test_the_loader_that_is_asked_for_is_swapped(bench: Bench, tmp_path: Path) -> None:
    """Neither the first that shuffles nor one that does not go in order: a profile knows which one trains."""
    text = """
for batch in DataLoader(data, batch_size=8, shuffle=True):
    pass
train = DataLoader(data, batch_size=16)
for epoch in range(10**6):
    for batch in train:
        time.sleep(0.001)
"""
    assert measured(bench, tmp_path, text, loader=1).facts["shape"] == [16, 5]
    with pytest.raises(MeasureError, match="iterated 2 DataLoaders, not the one that trains"):
        measured(bench, tmp_path, text.replace("10**6", "1"), loader=2)


def test_passes_that_the_script_breaks_off_are_one_window(bench: Bench, tmp_path: Path) -> None:
    text = """
loader = DataLoader(data, batch_size=16, shuffle=True)
for epoch in range(60):
    for number, batch in enumerate(loader):
        time.sleep(0.005)
        if number == 1:
            break
"""
    assert measured(bench, tmp_path, text).seconds >= 0.2


@pytest.mark.parametrize(
    ("made", "shape"),
    [
        ("DataLoader(Stream(), batch_size=4)", [4, 5]),
        ("DataLoader(Batches(), batch_size=None, shuffle=True, generator=torch.Generator())", [6, 5]),
        ("DataLoader(data, batch_sampler=[[1, 2, 3]] * 4, timeout=60, num_workers=2, prefetch_factor=3)", [3, 5]),
    ],
)
def test_the_same_loader_with_workers_is_the_same_whatever_it_is(
    bench: Bench, tmp_path: Path, made: str, shape: list[int]
) -> None:
    text = f"""
def told(value):
    with (here / "pids").open("a") as file:
        file.write(f"{{os.getpid()}}\\n")
    return value

class Stream(IterableDataset):
    def __iter__(self):
        return (told(torch.rand(5)) for _ in range(40))

class Batches:
    def __len__(self):
        return 8
    def __getitem__(self, number):
        return told(torch.rand(6, 5))

loader = {made}
for epoch in range(10**6):
    for batch in loader:
        time.sleep(0.001)
"""
    assert measured(bench, tmp_path, text, "workers", num_workers=1).facts["shape"] == shape
    pids = (tmp_path / "pids").read_text().split() if (tmp_path / "pids").exists() else []
    assert len(set(pids)) <= 1  # it lives on from epoch to epoch


def test_threads_asked_for_before_torch_is_imported_are_heeded(bench: Bench, tmp_path: Path) -> None:
    text = """
for epoch in range(10**6):
    for batch in DataLoader(data, batch_size=16, shuffle=True):
        assert torch.get_num_threads() == 3
"""
    assert measured(bench, tmp_path, text).samples > 0
    with pytest.raises(MeasureError, match="AssertionError"):
        measured(bench, tmp_path, "torch.set_num_threads(torch.get_num_threads() + 5)" + text)  # its last word


@pytest.mark.parametrize(
    ("usual", "cuda", "wanted"), [("cpu", True, "cuda"), (None, True, None), ("cpu", False, "cpu")]
)
def test_floats_are_made_on_the_gpu_that_the_script_uses(
    monkeypatch: pytest.MonkeyPatch, usual: str | None, cuda: bool, wanted: str | None
) -> None:
    """On the host the trainer's threads would make them, 15 cores of 16 busy, and the model would wait for that."""

    def like(dataloader: Any, split: str, *, device: str | None = usual, **options: Any) -> Any:
        told = {"num_workers": 3, "persistent_workers": True, "checksums": False}
        assert (dataloader, split, options) == ("theirs", "OUT", told)
        return SimpleNamespace(device=device)

    monkeypatch.setattr(Loader, "like", like)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: cuda)
    assert ours("theirs", {"split": "OUT", "num_workers": 3}).device == wanted
