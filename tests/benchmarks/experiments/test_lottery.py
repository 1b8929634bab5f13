"""The experiment finds every promise of `feedline prune` kept, and names the task in which one is broken."""

import json
import sys
from pathlib import Path

import pytest

from feedline.benchmarks.experiments import lottery
from feedline.pipeline.base.errors import FeedlineError
from feedline.train import masks
from tests.train.conftest import PX, write_dataset

TICKET = "keep0.1-rewind1-seed0"


@pytest.mark.slow
def test_a_broken_promise_is_named_with_its_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset, out = write_dataset(tmp_path / "OUT"), tmp_path / "lottery.json"
    words = ["--keep", "0.1", "--rewind", "1", "--seeds", "1", "--jobs", "1", "--epochs", "2", "--image-size", PX,
             "--work", tmp_path / "work", "--out", out]  # fmt: skip
    monkeypatch.setattr(sys, "argv", ["lottery", str(dataset), *map(str, words)])
    lottery.main()
    told = json.loads(out.read_text())
    assert {cell["control"] for cell in told["cells"]} == {"ticket", "random", "full"}
    assert all(0 <= cell["low"] <= cell["mean"] <= cell["high"] <= 1 for cell in told["cells"])
    looked_at = {name: check["looked_at"] for name, check in told["checks"].items()}
    assert sorted(looked_at.values()) == [1, 1, 1, 3, 3, 3, 3]
    page = out.with_suffix(".html").read_text()
    assert "<svg" in page and str(tmp_path) not in page

    mask = tmp_path / "work/study/runs" / TICKET / "mask.pt"
    mask.write_bytes(masks.to_bytes(masks.at_random(masks.read(mask), seed=1)))
    with pytest.raises(FeedlineError, match=r"what is cut is \+0 at the end, the largest stay"):
        lottery.main()
    told = json.loads(out.read_text())
    assert {tuple(check["broken"]) for check in told["checks"].values()} == {(), (TICKET,)}
