"""The rank, from where it is known."""

import pytest

from feedline.pipeline.base.errors import UsageError
from feedline.pipeline.rank import place


def test_given_or_from_the_environment_or_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert place(None, None) == (0, 1) and place(2, 3) == (2, 3)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert place(None, None) == (1, 4) and place(2, 3) == (2, 3)


@pytest.mark.parametrize("text", ["one", "1.0", "%h"])
def test_an_environment_that_is_no_number_is_one_line(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", text)
    with pytest.raises(UsageError, match=f"WORLD_SIZE={text} in the environment is no number"):
        place(None, None)


@pytest.mark.parametrize(("rank", "world_size"), [(3, 3), (-1, 2), (0, 0), (1, None), (None, 1)])
def test_a_rank_that_cannot_be_is_refused(rank: int | None, world_size: int | None) -> None:
    with pytest.raises(UsageError):
        place(rank, world_size)
