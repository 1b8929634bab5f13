"""What `--fail-if` understands, what it then says, and that the unmeasured never passes."""

from typing import Any

import pytest

from feedline.pipeline.base.errors import UsageError
from feedline.profiling.explain.fail_if import ConditionMet, check, parse
from feedline.profiling.explain.verdict import diagnose
from tests.profiling.recordings import made

RECORD: dict[str, Any] = {
    "verdict": {
        "bound": "data", "wait_fraction": 0.25, "samples_per_s": 400.0, "ceiling_samples_per_s": None,
        "shares": {"trainer": 0.4},
    },
    "stages": {"decode": 0.6},
    "gpu": [{"sm_active": 0.2, "utilization": 1.0}, {"utilization": 0.4}],
}  # fmt: skip


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
        ("rate<500", True),
        (" rate<300 ", False),
        ("samples_per_s<=400", True),
        ("decode>50%", True),
        ("decode>70%", False),
        ("trainer>=40%", True),
        ("gpu<35%", True),
    ],
)
def test_what_holds(text: str, holds: bool) -> None:
    assert parse(text).holds(RECORD)[0] is holds


def test_what_was_not_measured_does_not_pass() -> None:
    assert parse("ceiling<100").holds(RECORD) == (True, "ceiling could not be measured")
    assert parse("gpu<35%").holds({**RECORD, "gpu": []})[0]


def test_says_what_was_found() -> None:
    assert parse("wait>10%").holds(RECORD)[1] == "wait = 0.25"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "wait",
        "wait>ten",
        "speed>10",
        "bound>data",
        "bound==fast",
        "a>1",
        "wait>1% and rate<2",
        "wait>1%, rate<2",
        "wait>10",
        "rate<10%",
    ],
)
def test_what_is_not_understood_is_wrong_use(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(text)
    assert caught.value.exit_status == 2
    assert "\n" not in str(caught.value)


def test_a_condition_that_holds_ends_with_status_one() -> None:
    seen = made(wait_s=0.06, compute_s=0.03)
    never, met = parse("wait>90%"), parse("wait>10%")
    check([never], diagnose(seen))
    with pytest.raises(ConditionMet, match=r"'wait>10%': wait = 0\.667") as caught:
        check([never, met], diagnose(seen))
    assert caught.value.exit_status == 1
