"""The study's arithmetic and page; one real cell of it is a training like any other (tests/train)."""

from pathlib import Path
from typing import Any

import pytest

from feedline.benchmarks.experiments.scaling_report import markdown, study_page
from feedline.benchmarks.experiments.scaling_study import (
    Cell,
    StudyConfig,
    command_lines,
    keep_run,
    read_runs,
    summary,
)
from feedline.pipeline.base.errors import UsageError
from feedline.profiling.render.html import document


def config(**options: Any) -> StudyConfig:
    options = {"procs": (1, 2), "batch_sizes": (100,)} | options
    return StudyConfig(dataset=Path(__file__).parent, **options)


def found(*rates: float) -> list[dict[str, float]]:
    return [{"samples_per_s": rate, "epoch_s": 1000 / rate, "top1": 0.5, "wait_fraction": 0.01} for rate in rates]


RUNS = {"cpu-1x1x100": found(100.0, 200.0), "cpu-1x2x100": found(150.0, 320.0)}


def test_speed_ups_are_within_rounds() -> None:
    cell = summary(config(), Cell(procs=2, batch_size=100), RUNS)
    assert cell["speed_up"] == pytest.approx((1.5 + 1.6) / 2)
    assert (cell["batch_global"], cell["batch_per_rank"]) == (100, 50)


def test_batches_of_each_rank() -> None:
    cell = summary(config(per_rank=True), Cell(procs=2, batch_size=100), RUNS)
    assert (cell["batch_global"], cell["batch_per_rank"]) == (200, 100)


def test_a_batch_that_does_not_divide_is_rounded_and_stated() -> None:
    cell = Cell(nodes=3, procs=1, batch_size=50)
    runs = {"cpu-1x1x50": found(100.0, 200.0), cell.key: found(150.0, 320.0)}
    uneven = config(procs=(1,), nodes=(1, 3), batch_sizes=(50,))
    said = summary(uneven, cell, runs)
    assert (said["batch_per_rank"], said["batch_global"]) == (17, 51)
    assert "--batch-size 17" in " ".join(command_lines(uneven, cell, 0, Path("run"))[0])


def test_the_page_and_the_table_hold_every_cell() -> None:
    cells = [summary(config(), Cell(procs=procs, batch_size=100), RUNS) for procs in (1, 2)]
    record: dict[str, Any] = {"model": "small_cnn", "image_size_px": 64, "usable_cores": 2, "host": {"cpu": "x"},
                              "device": "cpu", "epochs": 2, "num_workers": None, "n": 2,
                              "cells": cells}  # fmt: skip
    assert markdown(record).count("\n|") == 4
    drawn = document(study_page(record))
    assert (
        "2 processes" in drawn
        and "Throughput over the global batch" in drawn
        and drawn.count('class="interval"') == 8
    )


def test_nodes_are_agents_that_meet_at_the_first() -> None:
    cell = Cell(nodes=3, procs=2, batch_size=120)
    commands = command_lines(config(nodes=(1, 3), batch_sizes=(120,)), cell, 0, Path("run"))
    assert [f"--node-rank={n}" in words for n, words in enumerate(commands)] == [True] * 3
    assert all({"--nnodes=3", "--nproc-per-node=2", "--master-addr=127.0.0.1"} <= set(words) for words in commands)
    assert cell.ranks == 6


def test_finished_runs_are_kept_but_not_for_another_study(tmp_path: Path) -> None:
    one, other = config(), config(image_size=32)
    keep_run(tmp_path / "runs.jsonl", one, "a", {"top1": 0.5})
    assert read_runs(tmp_path / "runs.jsonl", one) == {"a": {"top1": 0.5}}
    assert read_runs(tmp_path / "runs.jsonl", other) == {}
    with (tmp_path / "runs.jsonl").open("a") as file:
        file.write('{"study": "torn by a ki')
    assert read_runs(tmp_path / "runs.jsonl", one) == {"a": {"top1": 0.5}}
    keep_run(tmp_path / "runs.jsonl", one, "b", {"top1": 0.6})
    assert set(read_runs(tmp_path / "runs.jsonl", one)) == {"a", "b"}


@pytest.mark.parametrize(
    "options", [{"repeats": 1}, {"procs": (0,)}, {"num_workers": -1}, {"nodes": (0,)}, {"devices": ("x",)}]
)
def test_bad_studies_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        config(**options)
