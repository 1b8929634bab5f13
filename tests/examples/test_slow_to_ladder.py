"""The example notebook runs from top to bottom, and shows its reports."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torchvision")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")
import nbformat  # noqa: E402

NOTEBOOK = Path(__file__).parents[2] / "examples/slow_to_ladder.ipynb"
SMALLER = {
    "images=400,": "images=200, long_side_px=160,",
    "steps=20,": "steps=10,",
    "window_s=0.5": "window_s=0.2",
    "budget_s=10": "budget_s=5",
    "window_s=1.0": "window_s=0.2",
}
"""Its settings where only its way is asked for, not its figures."""
HASTE = """
from feedline.benchmarks.measure import rounds
from feedline.profiling.record.journal import StudyConfig
rounds.TRIES = 1  # what else runs here would have every window measured again
StudyConfig.__init__.__kwdefaults__ |= {"rounds": 2, "window_s": 0.2}
"""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the kernel's client is others' code
def test_the_notebook_runs_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # it works in a folder of its own there
    text = NOTEBOOK.read_text()
    for usual, small in SMALLER.items():
        assert text.count(usual) == 1, usual
        text = text.replace(usual, small)
    notebook = nbformat.reads(text, as_version=4)
    notebook.cells.insert(0, nbformat.v4.new_code_cell(HASTE))
    nbclient.NotebookClient(notebook, timeout=600).execute()
    outputs: list[Any] = [one for cell in notebook.cells for one in cell.get("outputs", [])]
    pages = [page for one in outputs if (page := one.get("data", {}).get("text/html", "")).startswith("<iframe ")]
    assert len(pages) == 3
    texts = "".join(one.get("text", "") for one in outputs)
    assert "200 samples True" in texts
    assert texts.count("predicted") >= 3 and texts.rstrip().endswith("data is free")
