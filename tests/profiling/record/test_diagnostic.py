"""Legs and lines, from what the processes of a diagnostic run wrote down."""

from pathlib import Path

import pytest

from feedline.profiling.record.diagnostic import MOST_FUNCTIONS, Progress, legs, lines, progress
from feedline.profiling.record.journal import Journal, LegRow, LineRow


def test_functions_that_were_named_are_kept_however_little_they_took(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    dear = [LineRow("a.py", 10 * n, f"f{n}", [[10 * n + 1, 5, 1.0 + n]]) for n in range(20)]
    named = [LineRow("a.py", 990, "mine", [[991, 3, 0.001]])]
    journal.write("lines-trainer-1", {"where": "trainer", "functions": [*dear, *named], "named": [["a.py", 990]]})
    kept = [line.function for line in lines(journal)]
    assert kept[-1] == "mine"
    assert len(kept) == MOST_FUNCTIONS + 1


def window(leg: str, samples: int, seconds: float, processes: int | None = None) -> LegRow:
    return LegRow(leg, processes, samples, seconds, 0.5, 2.0, "", None)


def test_rates_of_ranks_add_up_and_only_windows_count_that_all_had(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    mine, other = [window("normal", 100, 1.0), window("normal", 120, 1.0)], [window("normal", 50, 2.0)]
    journal.write("legs-1", {"rank": 0, "windows": mine, "why": "", "window": None, "ended_by": "steps"})
    journal.write("legs-2", {"rank": 1, "windows": other, "why": "", "window": "cached", "ended_by": "steps"})
    (leg,) = legs(journal)
    assert (leg.name, leg.samples_per_s, leg.window_s) == ("normal", [125.0], [2.0])
    assert leg.trainer_cpu_s_per_sample == [pytest.approx(4.0 / 150)]
    assert progress(journal) == Progress(ended_by="steps", window="cached")
    assert progress(Journal(tmp_path / "none")) == Progress()
