"""A limit stands beside its field, and is checked by the settings themselves."""

from dataclasses import dataclass
from typing import Any

import pytest

from feedline.pipeline.base.errors import UsageError
from feedline.pipeline.base.settings import TINY, check_limits, limited


@dataclass(frozen=True, kw_only=True)
class Settings:
    rounds: int = limited(3, 2)
    window_s: float | None = limited(None, 0.2, 3600)
    widths: tuple[int, int] = limited((6, 16), 1)
    rate: float = limited(1.0, TINY)

    def __post_init__(self) -> None:
        check_limits(self)


def test_what_lies_within_is_taken() -> None:
    assert Settings() == Settings(rounds=3, window_s=None, widths=(6, 16), rate=1.0)
    assert Settings(rounds=2, window_s=3600).window_s == 3600


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"rounds": 1}, "--rounds 1: at least 2"),
        ({"window_s": 0.1}, "--window-s 0.1: at least 0.2 s"),
        ({"window_s": 7200}, "--window-s 7200: at most 3,600 s"),
        ({"window_s": float("nan")}, "--window-s nan: at least 0.2 s"),
        ({"widths": (6, 0)}, "--widths 6,0: at least 1"),
        ({"rate": 0.0}, "--rate 0.0: at least 1e-09"),
        ({"rate": float("inf")}, "--rate inf: at most 1,000,000,000"),
    ],
)
def test_what_does_not_is_one_line_that_names_the_option(options: dict[str, Any], line: str) -> None:
    with pytest.raises(UsageError) as refused:
        Settings(**options)
    assert str(refused.value) == line
