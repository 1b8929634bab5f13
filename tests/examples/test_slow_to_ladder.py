"""The example notebook runs from top to bottom, and shows its reports."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torchvision")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")
import nbformat  # noqa: E402

NOTEBOOK = Path(__file__).parents[2] / "examples/slow_to_ladder.ipynb"


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.filterwarnings("ignore")  # the kernel's client is others' code
def test_the_notebook_runs_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # it works in a folder of its own there
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(notebook, timeout=600).execute()
    outputs: list[Any] = [one for cell in notebook.cells for one in cell.get("outputs", [])]
    pages = [page for one in outputs if (page := one.get("data", {}).get("text/html", "")).startswith("<iframe ")]
    assert len(pages) == 3
    texts = "".join(one.get("text", "") for one in outputs)
    assert "400 samples True" in texts
    assert texts.count("predicted") >= 3 and texts.rstrip().endswith("data is free")
