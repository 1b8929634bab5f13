"""The journal of a run: on a disk that is full, in a folder that is taken."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from feedline.pipeline.base.errors import UsageError
from feedline.train.metrics import Event, Journal, as_trained

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
    assert (
        done.stderr
        == "run/tensorboard cannot be written (File too large): mend that, then go on with --resume auto\n"
    )


@pytest.mark.parametrize(("name", "why"), [("file", "File exists"), ("x" * 300, "File name too long")])
def test_a_run_folder_that_cannot_be_is_wrong_use(tmp_path: Path, name: str, why: str) -> None:
    (tmp_path / "file").write_text("mine")
    with (
        Journal(tmp_path / name, tensorboard=False) as journal,
        pytest.raises(UsageError, match=rf"there can be no folder .*{name} \({why}\): choose another --run"),
    ):
        journal({"event": "start"})


def test_a_number_that_is_none_is_null(tmp_path: Path) -> None:
    with Journal(tmp_path / "run", tensorboard=False) as journal:
        journal({"event": "step", "step": 1, "grad_norm": float("inf"), "loss": float("nan")})
    (line,) = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert "NaN" not in line and json.loads(line)["grad_norm"] is None


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


def test_a_line_that_was_gone_back_behind_is_not_drawn_with_the_new_one(tmp_path: Path) -> None:
    first = [{"event": "start"}, *of_steps(10, 20, 30), *used(1.0, 2.0), {"event": "epoch", "step": 30}]
    again = [{"event": "resume", "own": True, "step": 10}, {"event": "start"}, *used(1.0), *of_steps(15)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(event) + "\n" for event in [*first, *again]))
    told = as_trained(tmp_path)
    assert [event["step"] for event in told["step"]] == [10, 15] and not told["epoch"]
    older = [*first, {"event": "resume", "step": 30}, {"event": "start"}, *of_steps(40)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(event) + "\n" for event in older))
    assert [event["step"] for event in as_trained(tmp_path)["step"]] == [10, 20, 30, 40]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(event) + "\n" for event in [*first, *again]))
    assert [event["at_s"] for event in told["resources"]] == [1.0, 2.0, 3.0]


def test_what_was_begun_anew_is_drawn_alone(tmp_path: Path) -> None:
    """A run that kept no checkpoint, and was killed."""
    first = [{"event": "start"}, *of_steps(10, 20), *({"event": "epoch", "step": step} for step in (10, 20))]
    again = [{"event": "start"}, *of_steps(10), {"event": "epoch", "step": 10}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(event) + "\n" for event in [*first, *again]))
    told = as_trained(tmp_path)
    assert [[event["step"] for event in told[kind]] for kind in ("step", "epoch")] == [[10], [10]]


def of_steps(*steps: int) -> list[Event]:
    return [{"event": "step", "step": step} for step in steps]


def used(*at_s: float) -> list[Event]:
    return [{"event": "resources", "at_s": at} for at in at_s]


@pytest.mark.parametrize(("kind", "purged"), [("start", None), ("resume", 1)])
def test_tensorboard_keeps_the_step_that_a_run_goes_on_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, purged: int | None
) -> None:
    from torch.utils import tensorboard

    asked: list[int | None] = []
    real = tensorboard.SummaryWriter

    def made(*words: Any, purge_step: int | None) -> Any:
        asked.append(purge_step)
        return real(*words, purge_step=purge_step)

    monkeypatch.setattr(tensorboard, "SummaryWriter", made)
    with Journal(tmp_path / "run", tensorboard=True) as journal:
        journal({"event": kind, "step": 0, "own": True})
    assert asked == [purged]
