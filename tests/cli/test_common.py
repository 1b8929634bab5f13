"""What every verb shares."""

from feedline.cli.common import Rate


def test_the_rate_is_of_what_came_since_the_start() -> None:
    rate = Rate()
    assert rate(900, 10.0) is None
    assert rate(1000, 12.0) == 50
    assert rate(1000, 20.0) == 10
