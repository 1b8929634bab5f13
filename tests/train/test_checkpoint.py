import io
import os
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from feedline.train import checkpoint
from feedline.train.checkpoint import CheckpointError

CPU = torch.device("cpu")


def some_bytes() -> bytes:
    weights = torch.arange(5000, dtype=torch.float32)
    return checkpoint.to_bytes({"model": {"w": weights}, "progress": {"step": 3}, "random": []})


def test_it_comes_back_as_it_was(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, some_bytes(), ["step-0000003.pt"])
    state = checkpoint.read(tmp_path / "step-0000003.pt")
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
    with pytest.raises(CheckpointError, match="cannot be read"):
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
    for step in range(1, 6):
        checkpoint.save(tmp_path, some_bytes(), [checkpoint.step_name(step)])
    checkpoint.save(tmp_path, some_bytes(), [checkpoint.BEST, checkpoint.epoch_name(0)])
    checkpoint.forget_old(tmp_path, 2)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["best.pt", "epoch-0000.pt", "step-0000004.pt", "step-0000005.pt"]


def test_the_newest_good_one_is_found_and_the_damaged_one_named(tmp_path: Path) -> None:
    assert checkpoint.newest_good(tmp_path) is None
    checkpoint.save(tmp_path, some_bytes(), [checkpoint.step_name(7)])
    (tmp_path / checkpoint.step_name(9)).write_bytes(some_bytes()[:-50])
    found = checkpoint.newest_good(tmp_path)
    assert found is not None
    assert found[1].name == checkpoint.step_name(7)
    assert len(found[2]) == 1 and checkpoint.step_name(9) in found[2][0]


def test_only_damaged_ones_is_an_error_and_not_a_fresh_start(tmp_path: Path) -> None:
    (tmp_path / checkpoint.step_name(9)).write_bytes(b"PK")
    with pytest.raises(CheckpointError, match=r"step-0000009\.pt cannot be read"):
        checkpoint.newest_good(tmp_path)


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="cannot write a checkpoint"):
        checkpoint.save(tmp_path / "file", b"x", ["a.pt"])


def test_all_generators_go_on_where_they_were() -> None:
    state = checkpoint.random_state(CPU)
    first = (torch.rand(3), np.random.rand(3), random.random())
    data = checkpoint.to_bytes({"random": state})
    checkpoint.restore_random_state(checkpoint.from_bytes(data, "x")["random"], CPU)
    again = (torch.rand(3), np.random.rand(3), random.random())
    assert torch.equal(first[0], again[0])
    assert np.array_equal(first[1], again[1])
    assert first[2] == again[2]
