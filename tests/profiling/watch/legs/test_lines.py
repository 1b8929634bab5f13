"""Lines are timed in the trainer and in every worker, in a window of their own."""

from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.profiling.diagnostic_runs import SCRIPTS, hits, script, seen

BATCH = 8


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_lines_of_workers_and_trainer_are_complete(method: str, tmp_path: Path) -> None:
    argv = [str(SCRIPTS / "toy.py"), "1", method, "96", str(tmp_path / "run")]
    found = seen(argv, legs=(), lines=True, steps=6)
    in_trainer, in_workers = hits(found.lines, "trainer"), hits(found.lines, "workers")
    assert in_trainer["loss.backward()"] == in_trainer["optimizer.step()"] == 30
    made = in_workers["values = torch.stack([value for value, _ in samples])"]
    assert made >= 30
    assert in_workers["value = self.make(index)"] >= BATCH * made
    assert in_workers["return torch.full((4,), float(index))"] == in_workers["value = self.make(index)"]
    assert not (tmp_path / "run" / "model.pt").exists()
    assert not found.legs and not found.notes


def test_a_loop_in_a_module_of_the_scripts_own_is_timed(work: Path) -> None:
    (work / "engine.py").write_text("def train(loader, step):\n    for batch in loader:\n        step(batch)\n")
    argv = script(work, "import engine\nengine.train(DataLoader(data, batch_size=8), step)\n")
    found = seen(argv, legs=(), lines=True)
    assert hits(found.lines, "trainer")["step(batch)"] == 30


MANY = """
def rarely():
    return 1

""" + "".join(f"def often{n}():\n    return sum(range(2000))\n\n" for n in range(15)) + """
OFTEN = [value for name, value in list(globals().items()) if name.startswith("often")]

def train():
    for batch in DataLoader(torch.rand(64, 2), batch_size=8):
        rarely()
        for one in OFTEN:
            one()

train()
"""  # fmt: skip


def test_a_named_function_is_told_as_such_and_a_name_that_nothing_has_too(work: Path) -> None:
    names = ("rarely", "Nobody.reads", "data:rarly")
    found = seen(script(work, MANY), legs=(), lines=True, functions=names, steps=5)
    assert {line.function.rpartition(".")[2] for line in found.lines} >= {"train", "rarely"}
    missing = [note for note in found.notes if note.startswith("no lines of")]
    assert len(missing) == 1 and "of Nobody.reads or data:rarly:" in missing[0], found.notes


def test_a_loop_outside_any_function_is_told_so(work: Path) -> None:
    found = seen(
        script(work, "for batch in DataLoader(data, batch_size=8):\n    pass\n"), legs=(), lines=True, steps=5
    )
    assert any("put it into one" in note or "none of the chosen functions ran" in note for note in found.notes)


HAND_MADE = """
import torch
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)

def train():
    for _ in range(200):
        model(torch.rand(8, 4)).sum().backward()
        optimizer.step()

train()
"""


def test_a_loop_that_asks_no_loader_is_told_what_times_its_lines(work: Path) -> None:
    path = script(work, HAND_MADE)
    found = seen(path, legs=(), lines=True, steps=20)
    assert any("no lines: its batches come from no loader" in one and "kernprof -l -v" in one for one in found.notes)
