"""The study's arithmetic and page; one real cell of it is a training like any other (tests/train)."""

from pathlib import Path
from typing import Any

import pytest

from feedline.benchmarks.study import Cell, StudyConfig, markdown, study_page, summary
from feedline.pipeline.errors import UsageError


def config(**options: Any) -> StudyConfig:
    return StudyConfig(dataset=Path("d"), procs=(1, 2), batch_sizes=(100,), **options)


def found(*rates: float) -> list[dict[str, float]]:
    return [{"samples_per_s": rate, "epoch_s": 1000 / rate, "top1": 0.5, "wait_fraction": 0.01} for rate in rates]


RUNS = {"1x100": found(100.0, 200.0), "2x100": found(150.0, 320.0)}


def test_speed_ups_are_within_rounds() -> None:
    cell = summary(config(), Cell(procs=2, batch_size=100), RUNS["2x100"], RUNS)
    assert cell["speed_up"] == pytest.approx((1.5 + 1.6) / 2)
    assert (cell["batch_global"], cell["batch_per_rank"]) == (100, 50)


def test_batches_of_each_rank() -> None:
    cell = summary(config(per_rank=True), Cell(procs=2, batch_size=100), RUNS["2x100"], RUNS)
    assert (cell["batch_global"], cell["batch_per_rank"]) == (200, 100)


def test_the_page_and_the_table_hold_every_cell() -> None:
    cells = [summary(config(), Cell(procs=procs, batch_size=100), RUNS[f"{procs}x100"], RUNS) for procs in (1, 2)]
    record: dict[str, Any] = {"model": "small_cnn", "image_size_px": 64, "usable_cores": 2, "host": {"cpu": "x"},
                              "device": "cpu", "epochs": 2, "n": 2, "cells": cells}  # fmt: skip
    assert markdown(record).count("\n|") == 4
    assert "2 processes, global batch 100" in str(study_page(record))


@pytest.mark.parametrize("options", [{"repeats": 1}, {"procs": (3,), "batch_sizes": (100,)}])
def test_bad_studies_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        StudyConfig(dataset=Path("d"), **options)
