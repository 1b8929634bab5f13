"""Comparisons on a machine of our own making: rates are known, noise is drawn, nothing is run."""

import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from feedline.benchmarks.commands import check_work
from feedline.benchmarks.compare import compare
from feedline.benchmarks.comparison import CompareConfig, Results, read_lines, run
from feedline.benchmarks.grid import Grid
from feedline.benchmarks.measure.rounds import MeasureError, check_devices
from feedline.benchmarks.measure.window import Subject, Window
from feedline.benchmarks.pages import compare_page
from feedline.benchmarks.statement import record_of
from feedline.benchmarks.tune import tune
from feedline.pipeline.base.errors import DatasetError, UsageError
from feedline.profiling.render.plain_text import text

RATES = {0: 500.0, 1: 800.0, 2: 1500.0, 4: 1510.0}
Rate = Callable[[dict[str, Any]], float]


def config(tmp_path: Path, rounds: int = 9, **axes: list[Any]) -> CompareConfig:
    grid = Grid(axes=axes)
    return CompareConfig(grid=grid, splits={cell.key: tmp_path for cell in grid.cells()}, rounds=rounds)


def machine(rate: Rate, noise: float, seed: int) -> Callable[[Subject], Window]:
    """Measures `rate(settings)` with noise, on a machine that drifts."""
    rng = random.Random(seed)
    calls = [0]

    def measure(subject: Subject) -> Window:
        calls[0] += 1
        drift = 0.8 + 0.2 * math.sin(calls[0] / 12)
        samples = round(10 * rate(subject.settings) * drift * rng.lognormvariate(0, noise))
        return Window(samples=samples, seconds=10.0, batches=100, wait_s=1.0, trainer_cpu_s=9.0, worker_cpu_s=10.5)

    return measure


def by_workers(settings: dict[str, Any]) -> float:
    return RATES[settings["num_workers"]] * (1.5 if settings.get("codec") == "raw" else 1.0)


def compared(config: CompareConfig, path: Path, rate: Rate = by_workers, noise: float = 0.04, seed: int = 0) -> Any:
    return record_of(run(config, path / "results.jsonl", machine(rate, noise, seed), lambda done, total: None))


def test_which_shards_were_measured_is_said(tmp_path: Path) -> None:
    record = compared(config(tmp_path, rounds=3, num_workers=[0, 1]), tmp_path / "rows.jsonl")
    (split,) = {cell["split"] for cell in record["cells"]}
    assert f"split {split}" in " ".join(text(compare_page(record)).split())


def test_the_same_setting_twice_is_no_difference(tmp_path: Path) -> None:
    for seed in range(8):
        folder = tmp_path / str(seed)
        said = compared(config(folder, num_workers=[2, 2]), folder, seed=seed)
        assert said["statement"].startswith("No difference"), said["statement"]
        assert {cell["outcome"] for cell in said["cells"]} <= {"best", "same", "open"}


def test_what_was_compared_with_the_best_alone_is_said_of_it(tmp_path: Path) -> None:
    for number, (noise, words) in enumerate(((0.001, "% of the best."), (0.3, "between the best and the others:"))):
        folder = tmp_path / str(number)
        said = compared(config(folder, num_workers=[2, 2, 2]), folder, noise=noise)["statement"]
        assert said.startswith("No difference") and words in said, said
    pair = compared(config(tmp_path / "pair", num_workers=[2, 2]), tmp_path / "pair", noise=0.004)["statement"]
    assert pair.endswith("of each other."), pair


def test_three_runs_do_not_contradict_each_other(tmp_path: Path) -> None:
    claims: set[tuple[str, str]] = set()
    for seed in range(3):
        folder = tmp_path / str(seed)
        said = compared(
            config(folder, num_workers=[0, 1, 2, 4], codec=["jpeg", "raw"]), folder, seed=seed, noise=0.08
        )
        best = next(cell["name"] for cell in said["cells"] if cell["best"])
        claims |= {(best, cell["name"]) for cell in said["cells"] if cell["outcome"] == "slower"}
        assert "raw" in best
    assert not {(a, b) for a, b in claims if (b, a) in claims}


def test_the_statement_names_the_step_the_tie_and_the_reason(tmp_path: Path) -> None:
    said = compared(config(tmp_path, rounds=20, num_workers=[0, 1, 2, 4]), tmp_path, noise=0.005)
    words = said["statement"]
    assert words.startswith("Best: 2 workers, ")
    assert "2 workers beat 1 worker by" in words and "the 2 cores are full" in words
    assert "Between 4 workers and 2 workers there is no difference" in words


def test_the_best_is_not_said_to_beat_what_it_was_not_told_apart_from(tmp_path: Path) -> None:
    for seed in range(6):
        folder = tmp_path / str(seed)
        said = compared(config(folder, rounds=3, num_workers=[0, 1, 2, 4]), folder, noise=0.2, seed=seed)
        others = [cell["name"] for cell in said["cells"] if cell["outcome"] in ("open", "same")]
        first = said["statement"].partition(". ")[0]
        assert first.startswith("No difference") or all(name in first for name in others), said


def test_what_is_clear_is_measured_no_more(tmp_path: Path) -> None:
    said = compared(config(tmp_path, rounds=14, num_workers=[0, 2]), tmp_path, noise=0.02)
    assert all(cell["n"] <= 4 for cell in said["cells"])
    assert [cell["samples_per_s"] for cell in said["cells"]] == pytest.approx([500, 1500], rel=0.5)


def test_a_rerun_after_a_kill_goes_on(tmp_path: Path) -> None:
    settings, path = config(tmp_path, num_workers=[0, 2, 4]), tmp_path / "r.jsonl"
    measure, left = machine(by_workers, 0.02, 0), [5]

    def until_killed(subject: Subject) -> Window:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return measure(subject)

    with pytest.raises(KeyboardInterrupt):
        run(settings, path, until_killed, lambda done, total: None)
    with path.open("a") as file:
        file.write('{"cell": "torn')
    kept = [line for line in read_lines(path) if "window" in line]
    assert len(kept) == 5
    left[0] = 1000
    run(settings, path, until_killed, lambda done, total: None)
    lines = read_lines(path)
    assert [line for line in lines if "window" in line][:5] == kept
    assert lines[-1] == {"done": True}
    cells = [(line["cell"], line["round"]) for line in lines if "window" in line]
    assert len(cells) == len(set(cells))


def test_a_setting_that_cannot_be_measured_does_not_take_the_others_with_it(tmp_path: Path) -> None:
    good = machine(by_workers, 0.02, 0)

    def measure(subject: Subject) -> Window:
        if subject.settings["num_workers"] == 4:
            raise MeasureError("out of memory")
        return good(subject)

    found = record_of(run(config(tmp_path, num_workers=[0, 2, 4]), tmp_path / "r.jsonl", measure, lambda d, t: None))
    assert [cell["name"] for cell in found["cells"]] == ["0 workers", "2 workers"]
    assert found["failed"] == {"4 workers": "out of memory"}
    assert (
        found["statement"].startswith("Best: 2 workers") and "4 workers could not be measured" in found["statement"]
    )
    found = record_of(run(config(tmp_path, num_workers=[2, 4]), tmp_path / "s.jsonl", measure, lambda d, t: None))
    assert found["statement"].startswith("Only 2 workers could be measured")
    with pytest.raises(MeasureError, match="out of memory"):
        run(config(tmp_path, num_workers=[4, 4]), tmp_path / "t.jsonl", measure, lambda d, t: None)


def test_a_window_beside_a_noisy_neighbour_is_measured_again_but_a_steady_load_is_not(tmp_path: Path) -> None:
    for burst, most in ((1.5, 3), (0.0, 1)):
        calls: list[float] = []

        def measure(subject: Subject, burst: float = burst, calls: list[float] = calls) -> Window:
            calls.append(0.5 + burst * (len(calls) % 7 == 5))  # every seventh window meets the burst
            slow = 1.0 if calls[-1] < 1 else 0.4
            return Window(samples=round(1000 * slow), seconds=1.0, batches=9, wait_s=0.1, trainer_cpu_s=0.5,
                          worker_cpu_s=0.5, others_cores=calls[-1])  # fmt: skip

        path = tmp_path / f"{burst}.jsonl"
        results = run(config(tmp_path, num_workers=[0, 2, 4], rounds=4), path, measure, lambda done, total: None)
        kept = [window for windows in results.windows.values() for window in windows.values()]
        assert max(window.others_cores or 0.0 for window in kept) == 0.5
        assert len(calls) - len(kept) == sum(one > 1 for one in calls) <= most * 2


def test_a_grid_of_values_has_the_usual_ones_for_what_is_not_named() -> None:
    grid = Grid.of({"num_workers": range(3), "image_size": 64, "codec": ["jpeg", "raw"]})
    assert grid.axes == {"num_workers": [0, 1, 2], "image_size": [64], "codec": ["jpeg", "raw"], "batch_size": [64]}
    for axes, words in (
        ({"num_workers": ["1", "2"]}, "'1' of num_workers is not a whole number"),
        ({"pin_memory": [0, 1]}, "0 of pin_memory is not true or false"),
        ({"workers": [1, 2]}, "cannot compare 'workers'"),
        ({"num_workers": 2}, "nothing to compare"),
    ):
        with pytest.raises(UsageError, match=words):
            Grid.of(axes)


def test_the_doors_refuse_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        compare(tmp_path / "none", {"num_workers": [0, 1]}, device="cpu", work=tmp_path / "work")
    with pytest.raises(DatasetError, match="no prepared train split"):
        tune(tmp_path)


def test_devices_are_refused_where_they_change_nothing() -> None:
    check_devices([1, 2], "cpu", ["small_cnn"])
    for counts, device, models in (
        ([1, 2], "cpu", []),
        ([1], "tpu", ["small_cnn"]),
        ([1], "cpu", ["small_cnn", "nosuch"]),
    ):
        with pytest.raises(UsageError):
            check_devices(counts, device, models)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU to pin memory for")
def test_pinning_is_refused_where_no_gpu_copies_from_it() -> None:
    assert check_devices([1], "auto", [], [False]) == "cpu"
    with pytest.raises(UsageError, match="pin-memory"):
        check_devices([1], "cpu", [], [False, True])


def test_a_file_is_no_place_for_results(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UsageError, match=r"--work .*file.*: no folder can be made there"):
            check_work(place)
    check_work(tmp_path / "new" / "one")


def test_other_settings_start_anew(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    Results.open(path, config(tmp_path, num_workers=[0, 2]))
    Results.open(path, config(tmp_path, num_workers=[0, 4]))
    assert json.loads(path.read_text().splitlines()[0])["axes"] == {"num_workers": [0, 4]}


@pytest.mark.parametrize("line", [{"window": {"samples": 1, "per_s": 2}}, {"samples": 1}, ["samples", 1]])
def test_windows_of_another_version_start_anew(tmp_path: Path, line: Any) -> None:
    settings, path = config(tmp_path, num_workers=[0, 2]), tmp_path / "r.jsonl"
    window = machine(by_workers, 0, 0)(Subject(kind="loader", settings={"num_workers": 0}))
    Results.open(path, settings).add(settings.grid.cells()[0], 0, window)
    assert Results.open(path, settings).windows
    with path.open("a") as file:
        file.write(json.dumps({"cell": "x", "round": 1} | line if isinstance(line, dict) else line) + "\n")
    assert not Results.open(path, settings).windows
    assert len(path.read_text().splitlines()) == 1


@pytest.mark.parametrize(
    ("axes", "said"),
    [
        ({"num_workers": [2]}, "nothing to compare"),
        ({"speed": [1, 2]}, "cannot compare 'speed'"),
        ({"codec": []}, "no values"),
        ({"num_workers": [0, -1]}, "--num-workers -1: at least 0"),
        ({"codec": ["jpeg", "gif"]}, "--codec gif: known are jpeg"),
    ],
)
def test_wrong_grids(axes: dict[str, list[Any]], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Grid(axes=axes)
