"""Silence where nobody writes over a line. What a notebook shows: tests/profiling/test_notebook.py."""

import sys
from types import SimpleNamespace

import pytest

from feedline.pipeline.base.status_line import status_line


@pytest.mark.parametrize("shell", [None, SimpleNamespace()], ids=["no shell", "a terminal's"])
def test_outside_a_notebook_there_is_silence(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], shell: object
) -> None:
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))  # type: ignore[misc]
    advance = status_line("work")
    advance(1, 2)
    advance(2)
    assert capfd.readouterr() == ("", "")
