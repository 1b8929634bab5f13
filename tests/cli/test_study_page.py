"""A study's page, from the record that `--json` has: as text, and as one file for a browser."""

from typing import Any

import pytest

from feedline.cli.board import line, table
from feedline.cli.study_page import place, sparsity_chart, sweep_page, ticks
from feedline.profiling.render.html import document
from feedline.profiling.render.plain_text import text
from feedline.profiling.render.sections import Page, section

LR = {"low": 1e-3, "high": 1.0, "log": True, "whole": False}
MODELS = {"values": ["small_cnn", "resnet18"]}


def trial(number: int, state: str, value: float | None, **more: Any) -> dict[str, Any]:
    ended: dict[str, Any] = {"name": f"trial-{number:04d}", "curve": [], "epochs": 2, "train_s": 60.0, "core_s": 90.0,
                             "host": "node1"}  # fmt: skip
    if value is not None:
        ended["curve"] = [[1, value / 2], [2, value]]
    return {"number": number, "params": {"lr": 0.1, "model": "small_cnn"}, "value": value, "state": state,
            "run": f"runs/{number}", "seconds": 61.0, "attempts": 1, **ended, **more}  # fmt: skip


def record() -> dict[str, Any]:
    trials = [
        trial(0, "complete", 0.5),
        trial(1, "pruned", 0.125, params={"lr": 0.9, "model": "resnet18"}),
        trial(2, "complete", 0.75, attempts=2),
        trial(3, "failed", None, error="no memory </script>", attempts=2),
        {"number": 4, "params": {}, "value": None, "run": None, "seconds": 0.0, "attempts": 0, "state": "open"},
    ]
    return {"study": "runs/sweep", "trials": trials, "best": trials[2], "importance": {"lr": 0.75, "model": 0.25},
            "counts": {"complete": 2, "pruned": 1, "failed": 1, "open": 1}, "epochs": 8, "full_epochs": 20,
            "train_s": 240.0, "core_s": 360.0, "space": {"lr": LR, "model": MODELS}}  # fmt: skip


def test_the_best_what_mattered_and_what_it_took_are_told() -> None:
    said = text(sweep_page(record()))
    assert said.startswith("Top-1 75 % with lr 0.1, model small_cnn")
    for words in ("2 to the end, 1 ended early, 1 failed, 1 to do", "40 %",
                  "trial-0003 (failed, 2 attempts): no memory",
                  "Begun again after a failure or a kill: trial-0002", "4 min", "node1"):  # fmt: skip
        assert words in said
    ranked = [word for word in said.split() if word.startswith("trial-000")]
    assert ranked[:3] == ["trial-0002", "trial-0000", "trial-0001"]


def test_the_page_draws_every_trial_and_escapes_what_others_wrote() -> None:
    drawn = document(sweep_page(record()))
    assert drawn.count('class="curve faint"') == 2 and drawn.count('class="curve thread"') == 2
    assert drawn.count('class="curve chosen"') == 1
    assert "no memory &lt;/script&gt;" in drawn and "no memory </script>" not in drawn


def test_a_study_that_has_just_begun_has_a_page_too() -> None:
    begun = record() | {"best": None, "importance": {}, "trials": record()["trials"][4:], "counts": {"open": 1}}
    assert text(sweep_page(begun)).startswith("No trial is complete yet")
    document(sweep_page(begun))


def test_places_on_an_axis() -> None:
    assert [place(LR, value) for value in (1e-3, 1.0)] == [0.0, 1.0]
    assert place(LR, 10**-1.5) == pytest.approx(0.5)
    assert place({**LR, "log": False, "low": 0.0}, 0.25) == 0.25
    assert [place(MODELS, value) for value in ("small_cnn", "resnet18", None, "other")] == [0.0, 1.0, None, None]
    assert place({"values": [(6, 16), (8, 32)]}, [8, 32]) == 1.0  # as JSON has it
    assert ticks(LR) == [(0.0, "0.001"), (0.5, "0.032"), (1.0, "1")]
    assert ticks(MODELS) == [(0.0, "small_cnn"), (1.0, "resnet18")]


def test_accuracy_over_sparsity_has_a_curve_for_each_rewind_and_control_with_the_spread_over_seeds() -> None:
    tasks = [
        {"keep": keep, "rewind": rewind, "seed": seed, "control": control, "top1": 0.5 + seed / 10, "zeros": 1}
        for keep in (0.5, 0.1) for rewind in (0, 4) for seed in (0, 1) for control in (None, "random")
    ]  # fmt: skip
    chart = sparsity_chart([*tasks, {**tasks[0], "top1": None}])
    assert chart is not None and len(chart.curves) == 4
    first = chart.curves[0]
    assert first.name == "winning tickets, rewound to epoch 0"
    assert [x for x, _ in first.points] == pytest.approx([50, 90])
    assert [y for _, y in first.points] == pytest.approx([55, 55])
    assert first.intervals[0] == pytest.approx((50, 60))
    full = {**tasks[0], "control": "full", "keep": 1.0, "top1": 0.8}
    level = sparsity_chart([full, *tasks])
    assert level is not None and level.curves[0].name == "full network, rewound to epoch 0"
    assert [x for x, _ in level.curves[0].points] == pytest.approx([50, 90])
    assert {y for _, y in level.curves[0].points} == {80}
    alone = sparsity_chart([full])
    assert alone is not None and alone.curves[0].points == [(0, 80)]
    page = document(Page(title="", sections=[section("", level)]))
    assert ">90</text>" in page and ">% of the weights cut</text>" in page, "the unit stands apart from the numbers"
    assert sparsity_chart([]) is None


def test_what_has_ended_is_one_line_and_what_runs_a_row() -> None:
    assert line(record()["trials"][2]) == ("trial-0002: to the end at top-1 75 %, lr 0.1, model small_cnn, 1 min 1 s")
    ticket = {"params": {"keep": 0.4, "seed": 0, "control": None}}
    assert line(record()["trials"][3] | ticket).startswith("trial-0003: failed, keep 0.4, seed 0, no memory ")
    assert line(record()["trials"][3] | {"params": {}}) == "trial-0003: failed, no memory </script>, 1 min 1 s"
    lease = {"host": "node1", "progress": {"epoch": 3, "epochs": 9, "top1": 0.5, "params": {"lr": 0.1}}}
    shown = table({5: lease, 6: {"host": "node2"}}, 4, 30)
    assert shown.row_count == 2 and shown.title == "4 of 30 done, 2 at work"
    assert [next(iter(column.cells)) for column in shown.columns] == ["5", "node1", "3 of 9", "50 %", "lr 0.1"]
