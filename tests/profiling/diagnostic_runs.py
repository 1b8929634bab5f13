"""Scripts that are run with legs and lines, in short windows."""

import textwrap
from pathlib import Path
from typing import Any

from feedline.profiling.profile_run import study
from feedline.profiling.record.journal import StudyConfig
from feedline.profiling.record.recording import Line, Recording

SCRIPTS = Path(__file__).with_name("scripts")
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


def script(work: Path, text: str) -> str:
    path = work / "train.py"
    path.write_text(PRELUDE + textwrap.dedent(text))
    return str(path)


def seen(argv: str | list[str], **options: Any) -> Recording:
    """By a run with short windows, which succeeds."""
    given: dict[str, Any] = {"steps": 15, "legs": ("normal", "cached"), "window_s": 0.05, "rounds": 2} | options
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
