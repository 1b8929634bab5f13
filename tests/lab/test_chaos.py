"""A few faults of each kind, and proof that careless work would be noticed. In processes of their own: they fork."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

CARELESS = """
import random, sys, time
from pathlib import Path
from tests.lab import chaos, chaos_files, chaos_live
from tests.lab.chaos_steps import in_child

class Careless(chaos_files.Saved):
    def act(self, folder):
        import json
        (folder / "run.json").write_text(json.dumps(self._new.to_dict()))

work = Path(sys.argv[1])
subject = Careless(work)
found = [problem for _, problems in chaos.strike_steps(subject, work, 0, random.Random(0)) for problem in problems]
print("careless:", sorted({problem.partition(" at ")[0] for problem in found}))
print("crashed:", chaos_live.problems_of(in_child(lambda: 1 // 0)))
print("hung:", chaos_live.problems_of(in_child(lambda: time.sleep(60), stuck_s=0.2)))
"""


ROOT = Path(__file__).resolve().parents[2]


def chaos(out: Path, *arguments: str) -> dict[str, object]:
    command = [sys.executable, "-m", "tests.lab.chaos", *arguments, "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return json.loads(out.read_text())


def test_struck_writers_leave_all_or_nothing_and_do_it_again(tmp_path: Path) -> None:
    subjects = ("Saved", "Cached", "Index", "Prepare")
    record = chaos(tmp_path / "chaos.json", "steps", "--faults", "4", "--subjects", *subjects)
    assert record["injected"] == record["survived"] == 4 * len(subjects)


@pytest.mark.slow
def test_loaders_deliver_what_was_planned_whatever_dies_or_lies(tmp_path: Path) -> None:
    record = chaos(tmp_path / "chaos.json", "loader", "storage", "--faults", "4")
    assert record["injected"] == record["survived"] == 8


def test_careless_writers_crashes_and_hangs_are_noticed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CARELESS, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    careless, crashed, hung = done.stdout.splitlines()
    assert "JSONDecodeError" in careless
    assert "ZeroDivisionError" in crashed and "it hung" in hung
