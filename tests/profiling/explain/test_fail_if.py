"""What `--fail-if` understands, what it then says, and that the unmeasured never passes."""

from dataclasses import replace
from typing import Any

import pytest

from feedline.pipeline.base.errors import UsageError
from feedline.profiling.explain.fail_if import ConditionMet, check, parse
from feedline.profiling.explain.verdict import diagnose
from feedline.profiling.record.recording import Recording, Script
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


def unseen() -> dict[str, Recording]:
    """Runs in which next to nothing was measured."""
    computing = made(wait_s=0.0, compute_s=0.1, batch=1, workers=0)
    loader = replace(computing.loaders[0], kind="unwatched", num_workers=None)
    unwatched = replace(computing, loaders=[loader], workers=[])
    return {
        "nothing at all": Recording(script=Script(argv=["x.py"])),
        "optimiser steps, but no loader": Recording(script=Script(argv=["x.py"]), optimizer_steps=100),
        "a loop nobody looked at": replace(unwatched, trainers=[]),
        "a loop hardly looked at": replace(unwatched, trainers=[replace(computing.trainers[0], ticks=5)]),
        "a background thread": replace(
            made(wait_s=0.0), loaders=[replace(computing.loaders[0], background=True)], trainers=[]
        ),
    }


@pytest.mark.parametrize("text", ["wait>10%", "data>10%", "trainer>25%", "compute<50%", "decode>50%", "bound==data"])
@pytest.mark.parametrize("seen", unseen().values(), ids=unseen())
def test_a_run_in_which_it_was_not_seen_never_passes(text: str, seen: Recording) -> None:
    if text == "decode>50%" and seen.workers:
        return
    with pytest.raises(ConditionMet, match="could not be measured"):
        check([parse(text)], diagnose(seen))


@pytest.mark.parametrize("text", ["rate<1", "ceiling<1", "overhead>1%", "gpu<1%", "copy>15%"])
def test_of_a_run_in_which_nothing_was_seen_nothing_passes(text: str) -> None:
    with pytest.raises(ConditionMet, match="could not be measured"):
        check([parse(text)], diagnose(unseen()["nothing at all"]))


def test_copies_that_nobody_measured_do_not_pass() -> None:
    seen = made(device="mps")
    unmeasured = replace(seen, steps=[replace(step, copy_s=None) for step in seen.steps])
    assert check([parse("copy>15%")], diagnose(seen)) == []
    with pytest.raises(ConditionMet, match="could not be measured"):
        check([parse("copy>15%")], diagnose(unmeasured))


@pytest.mark.parametrize("text", ["wait>10%", "data>10%", "compute<50%", "trainer>25%"])
def test_shares_of_a_few_steps_do_not_pass(text: str) -> None:
    """No wait in three steps: the same run's verdict cannot tell."""
    with pytest.raises(ConditionMet, match="could not be measured"):
        check([parse(text)], diagnose(made(wait_s=0.0, compute_s=0.1, steps=7)))


def test_stages_that_were_hardly_looked_at_do_not_pass() -> None:
    seen = made()
    hardly = replace(seen, workers=[replace(worker, ticks=5) for worker in seen.workers])
    assert check([parse("decode>90%")], diagnose(seen)) == []
    with pytest.raises(ConditionMet, match="could not be measured"):
        check([parse("decode>90%")], diagnose(hardly))


def test_a_value_whose_interval_holds_the_limit_is_close() -> None:
    record = {**RECORD, "verdict": {**RECORD["verdict"], "errors": {"data": 0.02, "trainer": 0.001}}}
    assert parse("wait>24%").holds(record) == (True, "wait = 0.25, close")
    assert parse("wait>27%").holds(record) == (False, "wait = 0.25, close")
    assert parse("wait>30%").holds(record) == (False, "wait = 0.25")
    assert parse("trainer>39%").holds(record) == (True, "trainer = 0.4")
    stages = {**record, "stage_errors": {"decode": 0.05}}
    assert parse("decode>55%").holds(stages) == (True, "decode = 0.6, close")
    rates = {**record, "verdict": {**record["verdict"], "low": 380.0, "high": 420.0}}
    assert parse("rate<390").holds(rates) == (False, "rate = 400, close")
    either = {**record, "verdict": {**record["verdict"], "close": ["compute"]}}
    assert parse("bound==compute").holds(either) == (False, "bound = data, close")
    assert parse("bound==data").holds(either) == (True, "bound = data, close")
    assert parse("bound==copy").holds(either) == (False, "bound = data")


def test_what_passes_closely_is_told() -> None:
    seen = diagnose(made(wait_s=0.0099, compute_s=0.0901))
    assert check([parse("wait>10%"), parse("wait>40%")], seen) == ["--fail-if 'wait>10%' passed: wait = 0.099, close"]


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


def test_only_the_script_s_own_gpus_count() -> None:
    others = [{"sm_active": 1.0, "process_memory_bytes": {}}] * 7
    own = {"sm_active": 0.1, "process_memory_bytes": {"12": 1e9}}
    assert parse("gpu<50%").holds({**RECORD, "gpu": [own, *others]})[0]
    assert not parse("gpu<50%").holds({**RECORD, "gpu": others})[0]
