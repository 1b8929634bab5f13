import pytest

from feedline.profiling.condition import parse
from feedline.profiling.errors import ProfilingUsageError

VERDICT = {"bound": "data", "wait_fraction": 0.25, "samples_per_s": 400.0, "ceiling_samples_per_s": None}


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("wait>10%", True),
        ("wait > 30%", False),
        ("wait>=0.25", True),
        ("wait<25%", False),
        ("bound==data", True),
        ("bound=data", True),
        ("bound!=data", False),
        ("rate<500 and wait>20%", True),
        ("rate<300 and wait>20%", False),
        ("rate<300 or wait>20%", True),
        ("samples_per_s<=400", True),
    ],
)
def test_what_holds(text: str, holds: bool) -> None:
    assert parse(text).check(VERDICT)[0] is holds


def test_what_was_not_measured_does_not_pass() -> None:
    assert parse("ceiling<100").check(VERDICT) == (True, "ceiling could not be measured")


def test_says_what_was_found() -> None:
    assert parse("wait>10%").check(VERDICT)[1] == "wait = 0.25"


@pytest.mark.parametrize(
    "text", ["", "wait", "wait>ten", "speed>10", "bound>data", "bound==fast", "a>1 and b<2 or c>3"]
)
def test_what_is_not_understood_is_wrong_use(text: str) -> None:
    with pytest.raises(ProfilingUsageError) as caught:
        parse(text)
    assert caught.value.exit_status == 2
    assert "\n" not in str(caught.value)
