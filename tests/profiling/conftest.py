"""Scripts run in a folder of their own."""

import threading
from collections.abc import Generator
from pathlib import Path

import pytest

from feedline.profiling.watch.sampler import StackSampler


@pytest.fixture(autouse=True)
def no_sampler_looks_on() -> Generator[None]:
    """At the tests that follow: where both parse source, CPython up to 3.11.8 may raise a SystemError (gh-106905)."""
    yield
    for thread in threading.enumerate():
        if isinstance(thread, StackSampler):
            thread.stop()


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path
