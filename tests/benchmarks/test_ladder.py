"""The ladder without running it: what is said before, what is shown after."""

from pathlib import Path
from typing import Any

import pytest

from feedline.benchmarks.forecast import Ceilings, Forecast, crowd, crowding_of, with_ceiling
from feedline.benchmarks.ladder import Climbed, Ladder, LadderConfig, differences, free_data, rungs_of
from feedline.benchmarks.ladder_page import ladder_section, rows, story
from feedline.benchmarks.ladder_run import AscentConfig, check
from feedline.benchmarks.measure.window import Window
from feedline.pipeline.base.errors import UsageError
from feedline.profiling.explain.throughput import Throughput


def window(rate: float, cpu: float = 1.0, **facts: Any) -> Window:
    return Window(
        samples=round(10 * rate), seconds=10.0, batches=10, wait_s=1.0, trainer_cpu_s=10.0 * cpu, worker_cpu_s=5.0,
        facts=facts or {"dtype": "float32", "shape": [64, 3, 64, 64]},
    )  # fmt: skip


def ladder() -> Ladder:
    rungs = rungs_of(LadderConfig(argv=["train.py"], shards=Path("s"), raw=Path("r")))
    rates = (400, 600, 700, 1500, 2800)
    forecast = Forecast(samples_per_s=660.0, low=600.0, high=720.0, why="bound by the cores")
    climbed = [
        Climbed(rung=rung, windows=[window(rate * k) for k in (0.98, 1.0, 1.03)], forecast=forecast)
        for rung, rate in zip(rungs, rates, strict=True)
    ]
    free = Climbed(rung=free_data(), windows=[window(2900), window(3000), window(3100)], forecast=None)
    return Ladder(rungs=climbed, ceiling=free)


def test_the_record_has_the_keys_others_rely_on() -> None:
    record = ladder().record()
    assert [rung["samples_per_s"] for rung in record["rungs"]] == pytest.approx([400, 600, 700, 1500, 2800])
    for rung in record["rungs"]:
        assert {"name", "samples_per_s", "low", "high", "predicted"} <= rung.keys()
        assert rung["low"] < rung["samples_per_s"] < rung["high"]
    assert record["ceiling_samples_per_s"] == pytest.approx(3000) and record["gain"] == pytest.approx(7.0)


def test_table_and_sentence_say_what_was_measured() -> None:
    record = ladder().record()
    table = rows(record)
    assert len(table) == 6 and table[1][1] == "600" and table[1][4] == "+10 %" and table[1][5] == "1.5×"
    assert "from 400 samples/s to 2,800 samples/s, 7× as fast, 93 %" in story(record)
    assert "data is free" in ladder_section(record)


def test_no_raw_shards_no_raw_rung() -> None:
    assert [one.key for one in rungs_of(LadderConfig(argv=["x"], shards=Path("s")))] == [
        "as-is", "workers", "shards", "loader",
    ]  # fmt: skip


def test_batches_of_another_kind_are_pointed_out() -> None:
    rungs = rungs_of(LadderConfig(argv=["x"], shards=Path("s")))[:2]
    seen = [window(1.0), window(1.0, dtype="uint8", shape=[64, 64, 64, 3])]
    climbed = [Climbed(rung=r, windows=[w], forecast=None) for r, w in zip(rungs, seen, strict=True)]
    assert differences(climbed[:1]) == [] and "uint8" in differences(climbed)[0]


def test_full_cores_cost_the_trainer_what_they_were_seen_to() -> None:
    free = [window(2000, cpu=2.0)]
    ceilings = Ceilings(own=free, channels_last=[window(3000, cpu=2.0)], crowded=[window(600, cpu=1.2)])
    assert crowding_of(ceilings) == pytest.approx(2.0)
    model = Throughput(workers=2, step_s=1.0, worker_s=2e-3, worker_cpu_s=2e-3, trainer_cpu_s=9.0, cores=2.0)
    model = with_ceiling(model, ceilings.own)
    assert (model.step_s, model.trainer_cpu_s) == pytest.approx((0.5e-3, 1e-3))
    assert crowd(model, 2.0).trainer_cpu_s == pytest.approx(2e-3)
    light = Throughput(workers=2, step_s=0.5e-3, worker_s=2e-5, worker_cpu_s=2e-5, trainer_cpu_s=1e-3, cores=2.0)
    assert crowd(light, 2.0).trainer_cpu_s < 1.05e-3
    assert crowd(model, 1.0) == model


def test_options_behind_the_source_are_pointed_out(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--prepared stands behind SOURCE"):
        check(AscentConfig(source=tmp_path, argv=["--prepared", "x"], work=tmp_path))


def test_nonsense_is_refused() -> None:
    with pytest.raises(UsageError, match="at least 2"):
        LadderConfig(argv=["x"], shards=Path("s"), rounds=1)
    with pytest.raises(UsageError, match="no script"):
        LadderConfig(argv=[], shards=Path("s"))
