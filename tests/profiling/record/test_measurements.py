"""Reads of a storage: between counts that were measured, and nothing that nobody measured."""

from dataclasses import replace
from typing import Any

import pytest

from feedline.pipeline.base.errors import RecordingError
from feedline.profiling.record.measurements import Reads
from feedline.profiling.record.recording import Recording, Script

NETWORK = Reads(piece_bytes=30e3, at_once=[1, 4, 16, 64], random_bytes_per_s=[3e6, 12e6, 48e6, 50e6],
                latency_s=0.01, cold=1.0)  # fmt: skip


def test_as_long_as_more_reads_give_as_much_more_each_takes_as_long() -> None:
    assert [NETWORK.read_s(count) for count in (1, 2, 3.3, 4, 9, 16)] == pytest.approx([0.01] * 6)
    assert NETWORK.read_s(64) == pytest.approx(64 * 30e3 / 50e6)
    assert NETWORK.random_at(0.2) == pytest.approx(3e6) and NETWORK.random_at(1e6) == pytest.approx(50e6)
    assert NETWORK.best_random_bytes_per_s == 50e6 and NETWORK.enough_at_once == 16


def test_one_count_is_enough() -> None:
    alone = replace(NETWORK, at_once=[1], random_bytes_per_s=[3e6])
    assert alone.random_at(7) == pytest.approx(3e6) and alone.enough_at_once == 1


@pytest.mark.parametrize(("cold", "of_storage"), [(1.0, True), (0.5, False), (None, False)])
def test_what_came_from_memory_says_nothing_of_storage(cold: float | None, of_storage: bool) -> None:
    assert replace(NETWORK, cold=cold).of_storage == of_storage


@pytest.mark.parametrize(
    "change",
    [
        {"at_once": []},
        {"at_once": [1, 4]},
        {"at_once": [0, 4, 16, 64]},
        {"at_once": [4, 1, 16, 64]},
        {"random_bytes_per_s": [3e6, 12e6, 48e6, 0.0]},
        {"piece_bytes": 0.0},
        {"latency_s": 0.0},
        {"sequential_bytes_per_s": 0.0},
    ],
)
def test_a_recording_with_reads_that_cannot_be_is_refused(change: dict[str, Any]) -> None:
    whole = Recording(script=Script(argv=["train.py"]), reads=NETWORK).to_dict()
    assert Recording.from_dict(whole).reads == NETWORK
    with pytest.raises(RecordingError, match="not a whole recording"):
        Recording.from_dict({**whole, "reads": {**whole["reads"], **change}})
