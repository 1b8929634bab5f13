"""`feedline prune` and `feedline inspect RUN`, as users start them."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from feedline.cli.main import app
from feedline.cli.prune import accuracy_table, prune_page
from feedline.pipeline.base.errors import DatasetError, UsageError
from feedline.profiling.render.html import document
from feedline.profiling.render.plain_text import text
from feedline.train.checkpoint import CheckpointError
from feedline.train.config import TrainConfig
from feedline.train.loop import train
from tests.train.conftest import PX, write_dataset


def feedline(*words: str) -> str:
    """What it prints."""
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parent")
    write_dataset(folder / "OUT")
    train(TrainConfig(
        dataset=folder / "OUT", run=folder / "run", model="small_cnn", image_size=PX, batch_size=16, epochs=2,
        lr=0.05, keep_epochs=(0, 1), num_workers=0, flip=False, tensorboard=False, threads=1,
    ))  # fmt: skip
    return folder / "run"


@pytest.mark.slow
def test_a_study_ends_with_its_record_page_and_table_and_is_not_done_twice(run: Path, tmp_path: Path) -> None:
    words = ["prune", str(run), "--keep", "0.5,0.001", "--rewind", "1", "--per-layer", "--study", str(tmp_path / "S")]
    for _ in range(2):
        said = feedline(*words, "--json", str(tmp_path / "record.json"))
        record = json.loads((tmp_path / "record.json").read_text())
        assert [(task["keep"], task["control"]) for task in record["tasks"]] == [
            (1.0, "full"), (0.5, None), (0.5, "random"), (0.001, None), (0.001, "random")
        ]  # fmt: skip
        assert {(task["rewind"], task["seed"]) for task in record["tasks"]} == {(1, 0)}
        assert all(task["zeros"] == task["pruned"] and 0 <= task["top1"] <= 1 for task in record["tasks"])
        assert {task["attempts"] for task in record["tasks"]} == {1}
        assert "ACCURACY OVER SPARSITY" in said and "Of features.0.weight nothing stays" in said
        assert "<svg" in (tmp_path / "S/study.html").read_text()
    assert (tmp_path / "S/runs/keep0.5-rewind1-seed0/metrics.jsonl").exists()
    with pytest.raises(UsageError, match=r"has another --rounds \(1, here 2\)"):
        feedline(*words, "--rounds", "2")


def test_a_run_without_kept_weights_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refused:
        feedline("prune", str(tmp_path), "--keep", "0.5")
    assert str(refused.value) == f"{tmp_path} kept no weights: train it, to the end, with --keep-epochs 0"
    assert not any(tmp_path.iterdir())


def test_inspect_shows_the_weights_of_a_run(run: Path, tmp_path: Path) -> None:
    outputs = ["--json", str(tmp_path / "record.json"), "--html", str(tmp_path / "page.html")]
    said = feedline("inspect", str(run), "--quantiles", "0.25,0.75", *outputs)
    record = json.loads((tmp_path / "record.json").read_text())
    assert list(record["checkpoints"]) == ["epoch-0000", "epoch-0001", "step-0000012"]
    assert [row["quantile"] for row in record["checkpoints"]["epoch-0001"]["thresholds"]] == [0.25, 0.75]
    assert "LAYERS\n  Of step-0000012." in said and "<svg" in (tmp_path / "page.html").read_text()
    assert "THRESHOLDS\n  Of epoch-0000." in feedline("inspect", str(run / "checkpoints/epoch-0000.pt"))
    with pytest.raises(DatasetError, match="nor a checkpoint"):
        feedline("inspect", str(tmp_path / "record.json"))
    (tmp_path / "torn.pt").write_bytes(b"no zip")
    with pytest.raises(CheckpointError, match="not a feedline checkpoint"):
        feedline("inspect", str(tmp_path / "torn.pt"))


def test_the_page_has_means_and_spread_over_seeds_and_what_is_not_known_yet() -> None:
    def task(seed: int, control: str | None, top1: float | None, keep: float = 0.1) -> dict[str, object]:
        return {"keep": keep, "rewind": 4, "seed": seed, "control": control, "top1": top1, "zeros": 90,
                "name": f"{control}-{seed}", "state": "complete", "attempts": 1, "seconds": 1.0,
                "empty_layers": ["head"]}  # fmt: skip

    tasks = [
        task(0, None, 0.5),
        task(1, None, 0.7),
        task(0, "random", 0.4),
        task(0, "full", 0.8, 1.0),
        task(2, None, None),
    ]
    table = accuracy_table(tasks)
    assert table is not None
    assert table.rows == [(4, "10 %", "90", "60 % (50–70)", "40 %", "80 %")]
    page = prune_page({"run": "RUN", "tasks": tasks, "counts": {"complete": 4, "open": 1}})
    assert "Of head nothing stays at 10 % of the weights." in text(page)
    assert "winning tickets, rewound to epoch 4" in document(page)
    assert accuracy_table([task(0, None, None)]) is None
