"""What neighbours have of the cores, by the kernel's own counts; and what becomes of windows that they disturb."""

import os
from pathlib import Path

import pytest

from feedline.profiling.record.diagnostic import legs
from feedline.profiling.record.journal import Journal, LegRow
from feedline.profiling.watch.legs import neighbours
from feedline.profiling.watch.legs.neighbours import Neighbours

CORE = "cpu{number} {busy} 0 0 {idle} 0 0 0 {stolen} 0 0\n"


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(neighbours, "PROC", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    return tmp_path


def machine(proc: Path, busy: int, idle: int, ours: int, stolen: int = 0) -> None:
    """In hundredths of a second, on two cores of ours and one that others have; ours: half by a child of a child."""
    cores = [CORE.format(number=number, busy=busy // 2, idle=idle // 2, stolen=stolen // 2) for number in (0, 1)]
    (proc / "stat").write_text("cpu  9 9 9 9 9\n" + "".join(cores) + "cpu2 5000 0 0 0 0 0 0 0 0 0\nintr 1\n")
    for pid, parent, ticks in ((10, 1, ours // 2), (11, 10, 0), (12, 11, ours - ours // 2), (99, 1, busy - ours)):
        (proc / str(pid)).mkdir(exist_ok=True)
        middle = " ".join("0" for _ in range(9))
        (proc / str(pid) / "stat").write_text(f"{pid} (a (b) c) S {parent} {middle} {ticks} 0 0 0 0 0")


@pytest.mark.parametrize(
    ("busy", "idle", "ours", "stolen", "others", "disturbed"),
    [
        (100, 100, 100, 0, 0.0, False),
        (200, 0, 100, 0, 0.5, True),
        (100, 100, 20, 0, 0.4, False),  # there is a core to spare
        (150, 0, 150, 50, 0.25, True),
    ],
)
def test_the_share_of_others(
    proc: Path, busy: int, idle: int, ours: int, stolen: int, others: float, disturbed: bool
) -> None:
    machine(proc, 1000, 1000, 500)
    seen = Neighbours(10)
    seen.begin()
    machine(proc, 1000 + busy, 1000 + idle, 500 + ours, stolen)
    seen.end()
    assert seen.others == pytest.approx(others)
    row = LegRow("cached", None, 8, 1.0, None, 1.0, "", None, seen.others, seen.idle)
    assert row.disturbed is disturbed


def test_ranks_may_have_cores_of_their_own(proc: Path) -> None:
    machine(proc, 1000, 1000, 500)
    seen = Neighbours(10, ranks=2)
    seen.begin()
    machine(proc, 1200, 1000, 700)
    text = (proc / "stat").read_text()
    (proc / "stat").write_text(text.replace("cpu2 5000", "cpu2 5200"))
    seen.end()
    assert seen.others == pytest.approx(0.5)


def test_where_the_kernel_does_not_tell_nothing_is_disturbed(proc: Path) -> None:
    seen = Neighbours(10)
    seen.begin()
    seen.end()
    assert seen.others is None
    assert not LegRow("cached", None, 8, 1.0, None, 1.0, "", None, None, None).disturbed


def test_the_real_machine_tells_something() -> None:
    seen = Neighbours(os.getpid())
    seen.begin()
    seen.end()
    assert neighbours.run_ticks(os.getpid()) > 0


def test_disturbed_windows_do_not_count_and_are_counted(tmp_path: Path) -> None:
    rates = [(100, 0.0), (30, 0.6), (110, 0.1)]
    rows = [LegRow("cached", None, samples, 1.0, None, 1.0, "", None, others, 0.0) for samples, others in rates]
    quiet = [row._replace(others=0.0) for row in rows]
    for rank, windows in enumerate((quiet, rows)):  # a neighbour of one rank disturbs the window of both
        said = {"rank": rank, "windows": windows, "why": "", "window": None, "ended_by": "steps"}
        Journal(tmp_path).write(f"legs-{rank}", said)
    (leg,) = legs(Journal(tmp_path))
    assert (leg.samples_per_s, leg.disturbed) == ([200, 220], 1)
