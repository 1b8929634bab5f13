"""What counts as a contradiction between runs of one comparison."""

import pytest

from feedline.benchmarks.experiments.consistency import contradictions


def claim(a: str, outcome: str, b: str) -> dict[str, str]:
    return {"a": a, "b": b, "outcome": outcome}


@pytest.mark.parametrize(
    ("runs", "count"),
    [
        ([[claim("2", "faster", "1")], [claim("1", "slower", "2")], [claim("1", "open", "2")]], 0),
        ([[claim("2", "faster", "1")], [claim("2", "slower", "1")]], 2),
        ([[claim("2", "faster", "1")], [claim("1", "same", "2")]], 1),
        ([[claim("a", "faster", "b")], [claim("b", "faster", "c")], [claim("c", "faster", "a")]], 3),
        ([[claim("a", "faster", "b"), claim("b", "faster", "c")], [claim("a", "faster", "c")]], 0),
        ([[claim("a", "same", "b"), claim("b", "same", "c")], [claim("a", "open", "c")]], 0),
    ],
)
def test_contradictions(runs: list[list[dict[str, str]]], count: int) -> None:
    assert len(contradictions(runs)) == count
