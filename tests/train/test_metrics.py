"""The journal of a run: on a disk that is full, in a folder that is taken."""

import subprocess
import sys
from pathlib import Path

import pytest

from feedline.pipeline.base.errors import UsageError
from feedline.train.metrics import Journal

SCRIPT = """
import resource, sys
from pathlib import Path
import torch
from feedline.pipeline.base.errors import FeedlineError
from feedline.train.metrics import Journal

try:
    with Journal(Path("run"), tensorboard=True) as journal:
        journal({"event": "start"})
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))  # no file may grow beyond it
        journal.show_model(torch.nn.Conv2d(3, 3, 3), torch.rand(16, 3, 128, 128))
        for step in range(100):
            journal({"event": "step", "step": step, "loss": 1.0})
except FeedlineError as error:
    sys.exit(str(error))
"""


def test_a_full_disk_is_one_line_though_tensorboards_thread_has_more_to_say(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr == "run/tensorboard cannot be written: File too large; then go on with --resume auto\n"


def test_one_training_at_a_time_writes_in_a_run_folder(tmp_path: Path) -> None:
    with Journal(tmp_path / "run", tensorboard=False) as first:
        first({"event": "start"})
        with (
            Journal(tmp_path / "run", tensorboard=False) as second,
            pytest.raises(UsageError, match=r"another training is running in .*run: wait for it, or choose another"),
        ):
            second({"event": "start"})
    with Journal(tmp_path / "run", tensorboard=False) as after:
        after({"event": "start"})
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 2
