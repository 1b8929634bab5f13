import errno
import io
import os
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from feedline.pipeline.base.errors import UsageError
from feedline.train import checkpoint
from feedline.train.checkpoint import CheckpointError, Checkpoints

CPU = torch.device("cpu")


STATE = {"model": {"w": torch.arange(5000, dtype=torch.float32)}, "progress": {"step": 3}, "random": []}


def save(checkpoints: Checkpoints, step: int, *more: str, keep_last: int = 9) -> None:
    checkpoints.save(STATE | {"progress": {"step": step}}, [*more, checkpoint.step_name(step)], keep_last)


def names(checkpoints: Checkpoints) -> list[str]:
    return sorted(path.name for path in checkpoints.folder.iterdir() if path.name != checkpoint.WENT_BACK)


def some_bytes() -> bytes:
    return checkpoint.to_bytes(STATE)


def test_it_comes_back_as_it_was(tmp_path: Path) -> None:
    written = Checkpoints(tmp_path).save(STATE, ["step-0000003.pt"], 1)
    path = tmp_path / "checkpoints" / "step-0000003.pt"
    assert written == path.stat().st_size
    state = checkpoint.read(path)
    assert torch.equal(state["model"]["w"], torch.arange(5000, dtype=torch.float32))
    assert state["progress"] == {"step": 3}


@pytest.mark.parametrize("at", [0.1, 0.3, 0.5, 0.7, 0.9])
def test_a_changed_byte_is_noticed(at: float) -> None:
    data = bytearray(some_bytes())
    data[int(len(data) * at)] ^= 0x40
    with pytest.raises(CheckpointError, match=r"x\.pt (is damaged|cannot be read)"):
        checkpoint.from_bytes(bytes(data), "x.pt")


def test_a_cut_file_is_noticed() -> None:
    with pytest.raises(CheckpointError, match="cannot be read"):
        checkpoint.from_bytes(some_bytes()[:-100], "x.pt")


def test_what_has_no_end_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.pt")
    with pytest.raises(CheckpointError, match="it is not a regular file"):
        checkpoint.read(tmp_path / "pipe.pt")


def test_what_is_not_ours_is_refused(tmp_path: Path) -> None:
    torch.save({"w": torch.zeros(2)}, tmp_path / "other.pt")
    with pytest.raises(CheckpointError, match="not a feedline checkpoint"):
        checkpoint.read(tmp_path / "other.pt")
    (tmp_path / "text.pt").write_text("hello")
    with pytest.raises(CheckpointError, match=r"text\.pt is not a feedline checkpoint: give a file from a run's"):
        checkpoint.read(tmp_path / "text.pt")
    with pytest.raises(CheckpointError, match="No such file"):
        checkpoint.read(tmp_path / "none.pt")


def test_a_file_that_would_run_code_is_refused(tmp_path: Path) -> None:
    torch.save({"format": checkpoint.FORMAT, "evil": Path("x")}, tmp_path / "evil.pt")
    with pytest.raises(CheckpointError, match="cannot be read"):
        checkpoint.read(tmp_path / "evil.pt")


def test_torchs_advice_to_load_it_unsafely_is_not_repeated() -> None:
    buffer = io.BytesIO()
    torch.save({"format": checkpoint.FORMAT, "evil": Path("x")}, buffer)
    with pytest.raises(CheckpointError) as caught:
        checkpoint.from_bytes(buffer.getvalue(), "x.pt")
    assert str(caught.value) == (
        "checkpoint x.pt cannot be read (it holds more than tensors and plain values, of which nothing was run): use "
        "one that feedline wrote"
    )


def test_only_the_newest_are_kept_and_the_named_ones(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    for step in range(1, 5):
        save(checkpoints, step, keep_last=3)
    (checkpoints.folder / ".step-0000006.pt.0badcafe.999999999.tmp").touch()  # a killed run's
    save(checkpoints, 5, checkpoint.BEST, checkpoint.epoch_name(0), keep_last=2)
    assert names(checkpoints) == ["best.pt", "epoch-0000.pt", "step-0000004.pt", "step-0000005.pt"]


def test_what_lies_beyond_the_newest_is_left_behind_with_its_best_one(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    for step in (2, 4, 6, 8):
        save(checkpoints, step, *([checkpoint.BEST] if step == 4 else []))

    def go_back(step: int) -> list[str]:
        return checkpoints.go_on_from(one(checkpoints.folder / checkpoint.step_name(step)), None)

    assert go_back(4) == ["went back to step 4: removed step-0000006.pt, step-0000008.pt"] and not go_back(4)
    assert names(checkpoints) == ["best.pt", "step-0000002.pt", "step-0000004.pt"]
    save(checkpoints, 5, checkpoint.epoch_name(1))
    go_back(2)  # the best one came after it
    assert names(checkpoints) == ["epoch-0001.pt", "step-0000002.pt"]
    save(checkpoints, 4, checkpoint.BEST)
    (checkpoints.folder / checkpoint.BEST).write_bytes(b"PK")
    go_back(2)
    assert names(checkpoints)[-1] == "step-0000002.pt"
    line = Checkpoints(tmp_path / "line")
    for step, epoch in ((2, 1), (4, 2), (5, 2), (6, 3)):  # step 5 is amid an epoch
        name = [checkpoint.epoch_name(epoch)] if step != 5 else []
        line.save(STATE | {"progress": {"step": step, "epoch": epoch}}, [*name, checkpoint.step_name(step)], 9)
    (said,) = line.go_on_from(one(line.folder / checkpoint.step_name(5)), None)
    assert said == "went back to step 5: removed step-0000006.pt, epoch-0003.pt"
    assert {"epoch-0001.pt", "epoch-0002.pt"} < set(names(line))
    other = Checkpoints(tmp_path / "other")
    save(other, 1)
    assert checkpoints.go_on_from(one(other.steps()[0]), None) == [] and names(checkpoints)[-1] == "step-0000002.pt"


def one(where: Path) -> checkpoint.Resume:
    return checkpoint.Resume(checkpoint.read(where), where, [])


def test_the_newest_is_that_of_the_highest_number(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 9_999_999)
    save(checkpoints, 10_000_000)
    assert [path.name for path in checkpoints.steps()] == ["step-9999999.pt", "step-10000000.pt"]


def test_a_restart_by_torchrun_goes_on_where_the_run_was_and_not_back_to_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, run = Checkpoints(tmp_path / "other"), Checkpoints(tmp_path / "run")
    save(other, 3)
    (file,) = other.steps()
    for restarts, step in (("0", 3), ("1", 3), ("1", 5)):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", restarts)
        if step == 5:
            save(run, 5)
        found = run.to_resume(str(file))
        assert found is not None and found.state["progress"]["step"] == step


def test_a_restart_goes_on_only_where_going_back_was_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that was requeued once says so for the rest of its life."""
    run = Checkpoints(tmp_path / "run")
    for step in (2, 4, 6):
        save(run, step)
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    file = str(run.folder / checkpoint.step_name(2))
    for _ in range(2):
        found = run.to_resume(file)
        assert found is not None and found.state["progress"]["step"] == 2
    run.go_on_from(found, file)
    for step in (3, 4, 5):  # however often it is restarted
        save(run, step)
        again = run.to_resume(file)
        assert again is not None and again.state["progress"]["step"] == step
        assert run.go_on_from(again, file) == []
    monkeypatch.delenv("SLURM_RESTART_COUNT")  # the same words, a new start that is ended before it has gone back
    run.to_resume(file)
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    found = run.to_resume(file)
    assert found is not None and found.state["progress"]["step"] == 2
    run.go_on_from(found, file)
    save(run, 3)
    monkeypatch.setenv("SLURM_JOB_ID", "7")  # another job, which asks for the same and was ended before it got there
    found = run.to_resume(file)
    assert found is not None and found.state["progress"]["step"] == 2


@pytest.mark.parametrize("name, value", [("TORCHELASTIC_MAX_RESTARTS", "3"), ("SLURM_RESTART_COUNT", "1")])
def test_a_restart_that_torchrun_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    other, run = Checkpoints(tmp_path / "other"), Checkpoints(tmp_path / "run")
    save(other, 3)
    save(run, 5)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    monkeypatch.setenv(name, value)
    found = run.to_resume(str(other.steps()[0]))
    assert found is not None and found.state["progress"]["step"] == 5


def test_another_run_is_not_gone_on_with_over_this_one(tmp_path: Path) -> None:
    """Its checkpoints would be taken for a line that was left."""
    other, run = Checkpoints(tmp_path / "other"), Checkpoints(tmp_path / "run")
    for checkpoints in (other, run):
        save(checkpoints, 3)
    with pytest.raises(UsageError, match=r"run already holds another run: .* name another --run"):
        run.to_resume(str(other.steps()[0]))
    own = run.to_resume(f"{tmp_path}/other/../run/checkpoints/step-0000003.pt")
    assert own is not None and own.state["progress"]["step"] == 3


def test_the_newest_good_one_is_found_and_the_damaged_one_named(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.newest_good() is None
    save(checkpoints, 7)
    (checkpoints.folder / checkpoint.step_name(9)).write_bytes(some_bytes()[:-50])
    found = checkpoints.newest_good()
    assert found is not None
    assert found.where.name == checkpoint.step_name(7)
    (problem,) = found.problems
    assert checkpoint.step_name(9) in problem and problem.endswith("): going on from step-0000007.pt")


def test_only_damaged_ones_is_an_error_and_not_a_fresh_start(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.folder.mkdir()
    (checkpoints.folder / checkpoint.step_name(9)).write_bytes(b"PK")
    with pytest.raises(CheckpointError, match=r"step-0000009\.pt cannot be read"):
        checkpoints.newest_good()


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("")
    with pytest.raises(CheckpointError, match=r"cannot write a checkpoint .*: make it a folder .* --resume auto"):
        Checkpoints(tmp_path).save(STATE, ["a.pt"], 1)


def test_a_full_disk_is_one_line_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(where: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint, "write_atomically", full)
    with pytest.raises(CheckpointError, match="No space left on device: free some, then go on with --resume auto"):
        Checkpoints(tmp_path).save(STATE, ["a.pt"], 1)


def test_all_generators_go_on_where_they_were() -> None:
    state = checkpoint.random_state(CPU)
    first = (torch.rand(3), np.random.rand(3), random.random())
    data = checkpoint.to_bytes({"random": state})
    checkpoint.restore_random_state(checkpoint.from_bytes(data, "x")["random"], CPU)
    again = (torch.rand(3), np.random.rand(3), random.random())
    assert torch.equal(first[0], again[0])
    assert np.array_equal(first[1], again[1])
    assert first[2] == again[2]


def test_what_the_storage_does_not_give_is_not_gone_back_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be whole; to go on from an older one would remove it."""
    checkpoints, real = Checkpoints(tmp_path), checkpoint.read_bounded
    for step in (7, 9):
        save(checkpoints, step)

    def stale(where: Path, most_bytes: int) -> bytes:
        if where.name == checkpoint.step_name(9):
            raise OSError(errno.ESTALE, "Stale file handle")
        return real(where, most_bytes)

    monkeypatch.setattr(checkpoint, "read_bounded", stale)
    with pytest.raises(CheckpointError, match=r"step-0000009\.pt cannot be read: Stale file handle"):
        checkpoints.newest_good()
