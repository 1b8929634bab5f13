"""In a real kernel: the magic, what it shows, and what a cell may do to it."""

from html import unescape
from typing import Any

import pytest

pytest.importorskip("torch")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")
from nbformat.v4 import new_code_cell, new_notebook  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # the kernel's client is others' code

SETUP = """
%load_ext feedline.profiling.notebook
import os, signal, time
from dataclasses import replace
import torch
from torch.utils.data import DataLoader, Dataset
from feedline.pipeline.base.status_line import status_line
from feedline.profiling.profile import Profile

class Mine(Dataset):
    def __len__(self):
        return 160
    def __getitem__(self, index):
        time.sleep(0.002)
        return torch.zeros(4), 1

model = torch.nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def train(workers=0, method=None):
    for x, y in DataLoader(Mine(), batch_size=8, num_workers=workers, multiprocessing_context=method):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
"""
CELLS = {
    "seen": "%%feedline\ntrain(workers=1)\n'trained'",
    "verdict": "print(bool(profile.verdict.headline), len(profile.recording.steps))\nprofile",
    "error": "%%feedline second\ntrain()\nraise ValueError('in the cell')",
    "syntax": "%%feedline\ntrain(",
    "interrupt": "%%feedline\ntrain()\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(9)",
    "after": "print(second.recording.script.error, profile.recording.script.ended_by, len(profile.recording.steps))",
    "spawn": "%%feedline\ntrain(workers=1, method='spawn')",
    "name": "%%feedline not a name\ntrain()",
    "nested": "%%feedline\nwith Profile():\n    train()",
    "legs": """
weights, trial = model.weight.clone(), Profile(legs=True, steps=8)
trial._config = replace(trial._config, window_s=0.05, rounds=1)
trial.run(train, 1)
print(torch.equal(model.weight, weights), sorted({leg.name for leg in trial.recording.legs}), trial.recording.notes)
""",
    "again": "%%feedline\ntrain()",
    "places": "print(profile.verdict.cause.where, [*profile.recording.trainers[0].functions])",
    "progress": """
advance = status_line("work", "windows")
for done in range(1, 4):
    advance(done, 3)
    time.sleep(0.3)
""",
}


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """Of each cell, all run in one kernel."""
    notebook = new_notebook(cells=[new_code_cell(text) for text in (SETUP, *CELLS.values())])
    folder = str(tmp_path_factory.mktemp("notebook"))
    client = nbclient.NotebookClient(
        notebook, timeout=300, allow_errors=True, resources={"metadata": {"path": folder}}
    )
    client.execute()
    first, *others = [cell.outputs for cell in notebook.cells]
    assert not first
    return dict(zip(CELLS, others, strict=True))


def said(outputs: list[Any]) -> str:
    return "".join(one.text for one in outputs if one.output_type == "stream" and one.name == "stdout")


def reports(outputs: list[Any]) -> list[str]:
    return [one.data["text/html"] for one in outputs if "text/html" in one.get("data", {})]


def errors(outputs: list[Any]) -> list[Any]:
    return [one for one in outputs if one.output_type == "error"]


def test_a_cell_runs_as_it_would_and_its_report_is_beneath(outputs: dict[str, list[Any]]) -> None:
    (page,) = reports(outputs["seen"])
    assert page.startswith("<iframe ") and "a notebook" in unescape(page)
    assert [one.data["text/plain"] for one in outputs["seen"] if one.output_type == "execute_result"] == ["'trained'"]
    assert said(outputs["verdict"]) == "True 20\n" and len(reports(outputs["verdict"])) == 1


def test_a_cell_that_fails_is_told_once_and_its_report_is_shown(outputs: dict[str, list[Any]]) -> None:
    for name, kind in {"error": "ValueError", "syntax": "SyntaxError", "interrupt": "KeyboardInterrupt"}.items():
        assert len(reports(outputs[name])) == (name != "syntax")
        assert {error.ename for error in errors(outputs[name])} == {kind}
        assert sum(bool("".join(error.traceback).strip()) for error in errors(outputs[name])) == 1
    assert said(outputs["after"]) == "ValueError: in the cell signal 20\n"


def test_a_dataset_of_the_notebooks_own_in_fresh_workers_is_named(outputs: dict[str, list[Any]]) -> None:
    (page,) = reports(outputs["spawn"])
    assert errors(outputs["spawn"]) and "cannot import what a notebook defines" in unescape(unescape(page))


@pytest.mark.parametrize(("cell", "words"), [("name", "not a name: a name"), ("nested", "already being profiled")])
def test_wrong_use_is_one_line(outputs: dict[str, list[Any]], cell: str, words: str) -> None:
    (line,) = [line for error in errors(outputs[cell]) for line in error.traceback]
    assert line.startswith("UsageError: ") and words in line and "\n" not in line


def test_legs_in_a_kernel(outputs: dict[str, list[Any]]) -> None:
    assert said(outputs["legs"]) == "True ['cached', 'loader_only', 'normal'] []\n"


def test_the_kernels_own_threads_are_not_the_loop(outputs: dict[str, list[Any]]) -> None:
    assert not errors(outputs["again"]) and not errors(outputs["places"])
    assert "ipykernel/" not in said(outputs["places"]) and "zmq" not in said(outputs["places"])


def test_progress_is_one_line_that_is_written_over(outputs: dict[str, list[Any]]) -> None:
    (line,) = outputs["progress"]
    assert line.data["text/plain"].startswith("work: 3 of 3 windows")
