"""The verdict is right, or says that it is close, or that it cannot tell: by the intervals of the shares."""

from dataclasses import replace
from typing import Any

import pytest

from feedline.profiling.explain.verdict import Diagnosis, diagnose, record_keys
from feedline.profiling.record.plain import to_plain
from feedline.profiling.record.recording import Costs, EndedBy, Recording, Script, Series
from tests.profiling.recordings import made

SMALL = {"read": 0.0, "decode": 0.0001, "transform": 0.0001, "collate": 0.0, "send": 0.0}
HEAVY = {"decode": 0.01}
STOPPED = Script(argv=["train.py"], ended_by="seconds")


def main_thread(seen: Recording, **fields: Any) -> Recording:
    """With the training thread looked at so."""
    return replace(seen, trainers=[replace(seen.trainers[0], **fields)])


def uneven(wait_s: float, every: int, *, steps: int = 60) -> Recording:
    """It waits in each so-manieth step only."""
    seen = made(wait_s=wait_s, compute_s=0.1, steps=steps)
    waits_s = [wait_s if number % every == 0 else 0.0 for number in range(steps)]
    drawn = zip(seen.steps, waits_s, strict=True)
    seen = replace(seen, steps=[replace(one, wait_s=s, duration_s=0.1 + s) for one, s in drawn])
    return main_thread(seen, stages={"forward": seen.trainers[0].seconds})


@pytest.mark.parametrize(
    ("wait_s", "bound", "close"),
    [
        (0.005, "compute", []),
        (0.009, "compute", ["data"]),
        (0.0125, "data", ["compute"]),
        (0.02, "data", []),
    ],
)
def test_near_a_threshold_it_says_so(wait_s: float, bound: str, close: list[str]) -> None:
    found = diagnose(made(wait_s=wait_s, compute_s=0.1 - wait_s, stages=HEAVY))
    assert (found.bound, found.close, found.certain) == (bound, close, not close)
    assert all(f"{bound.capitalize()}-bound, close to {one}-bound" in found.headline for one in close)
    assert record_keys(found)["verdict"]["close"] == close


def test_the_larger_of_two_is_named_and_the_other_where_it_is_near() -> None:
    assert diagnose(made(wait_s=0.05, python_s=0.03, compute_s=0.02)).close == []
    assert diagnose(made(wait_s=0.04, python_s=0.039, compute_s=0.02)).close == ["trainer"]


def test_a_wide_interval_with_the_threshold_in_it_tells_nothing() -> None:
    """Half a second of waiting in every tenth step: sixteen such were seen, or one."""
    assert diagnose(uneven(0.5, every=10, steps=160)).certain
    found = diagnose(replace(uneven(0.5, every=10, steps=14), seconds=81.0, script=STOPPED))
    assert found.bound is None
    assert found.headline.startswith("Cannot tell: waiting for the next batch is ")
    assert "give or take" in found.headline and found.headline.endswith("let it run longer (--seconds 180).")


@pytest.mark.parametrize("steps", [6, 9])
def test_few_steps_tell_nothing(steps: int) -> None:
    found = diagnose(made(steps=steps, script=STOPPED))
    assert found.bound is None and found.cause.kind is None and found.predictions == []
    assert (
        found.headline == f"Cannot tell: only {steps - 4} steps behind the warm-up: let it run longer (--seconds 60)."
    )


@pytest.mark.parametrize(
    ("costs", "bound"),
    [
        ({"wait_s": 0.004, "compute_s": 4.0, "stages": SMALL}, "compute"),
        ({"wait_s": 0.004, "compute_s": 4.0, "stages": {"decode": 0.2}}, None),  # its queue may still be emptied
        ({"wait_s": 0.4, "compute_s": 3.6, "workers": 0, "stages": SMALL}, "data"),
        ({"wait_s": 3.0, "compute_s": 1.0, "stages": {"decode": 0.2}}, "data"),
        ({"wait_s": 0.0, "compute_s": 1.0, "python_s": 3.0, "stages": {"decode": 0.2}}, "trainer"),
        ({"wait_s": 0.001, "compute_s": 1.0, "stages": SMALL}, None),
    ],
)
def test_a_few_long_steps_tell_where_no_queue_hides_what_follows(costs: dict[str, Any], bound: str | None) -> None:
    found = diagnose(made(steps=8, script=STOPPED, **costs))
    assert found.bound == bound
    assert ("only 4 steps" in found.headline) == (bound is None)
    assert (record_keys(found)["verdict"]["wait_fraction"] is None) == (bound is None)


@pytest.mark.parametrize(
    ("ended_by", "advice"),
    [
        ("itself", "the loop is too short, it needs more epochs or a larger dataset."),
        ("steps", "let it run longer (--steps 100)."),
        ("error", "the script failed before more was seen."),
        ("running", "let it run longer (--seconds 60)."),
    ],
)
def test_what_is_advised_can_be_done(ended_by: EndedBy, advice: str) -> None:
    """A script that ended by itself does not run longer for being told when to stop."""
    found = diagnose(made(steps=7, script=Script(argv=["train.py"], ended_by=ended_by)))
    assert found.headline == f"Cannot tell: only 3 steps behind the warm-up: {advice}"


def test_steps_of_the_warm_up_alone_are_not_behind_it() -> None:
    assert "only 3 steps of the warm-up" in diagnose(made(steps=3)).headline


def test_batches_that_nobody_can_count_are_no_missing_loader() -> None:
    seen = made(optimizer_steps=60)
    found = diagnose(replace(seen, steps=[replace(step, samples=0) for step in seen.steps]))
    assert found.headline == "Cannot tell: how many samples a batch has could not be seen."
    assert "no kind whose samples can be counted" in found.evidence[0]


def test_few_looks_tell_compute_from_nothing_but_clocks_tell_waiting() -> None:
    computing, waiting = made(wait_s=0.001, compute_s=0.1, stages=SMALL), made()
    found = diagnose(main_thread(computing, ticks=11))
    assert found.bound is None and "only 11 looks at the training thread" in found.headline
    shares = record_keys(found)["verdict"]["shares"]
    assert shares["compute"] is shares["trainer"] is None and shares["data"] is not None
    assert diagnose(main_thread(waiting, ticks=0, stages={}, seconds=0.0)).bound == "data"


@pytest.mark.parametrize(("other", "bound"), [(0.05, "compute"), (0.5, None)])
def test_what_nothing_decides_is_no_computing(other: float, bound: str | None) -> None:
    parts = {"forward": 1.0 - other, "other": other}
    found = diagnose(main_thread(made(wait_s=0.0, compute_s=0.1), seconds=1.0, stages=parts))
    assert found.bound == bound
    assert found.measured.trainer.shares.compute == pytest.approx(1.0 - other)
    assert bound or "nothing decides what the training thread does 50 % of the time" in found.headline


def test_little_that_nothing_decides_may_still_be_what_bounds() -> None:
    parts = {"forward": 0.65, "python": 0.15, "other": 0.2}
    found = diagnose(main_thread(made(wait_s=0.0, compute_s=0.1), seconds=1.0, stages=parts))
    assert (found.bound, found.close) == ("compute", ["trainer"])


def test_batches_made_where_the_loaders_clock_does_not_run_are_no_computing() -> None:
    """A generator around the loader: looks see three quarters of the time in it, the clock sees none."""
    parts = {"forward": 0.25, "load": 0.75}
    assert diagnose(main_thread(made(wait_s=0.0, compute_s=0.1), seconds=1.0, stages=parts)).bound is None


def unwatched(parts: dict[str, float], **fields: Any) -> Recording:
    """A loop of ten steps a second whose batches come from something of its own."""
    seen = made(wait_s=0.0, compute_s=0.1, batch=1, workers=0)
    loader = replace(seen.loaders[0], kind="unwatched", num_workers=None, batch_size=None)
    seen = replace(seen, loaders=[loader], workers=[])
    return main_thread(seen, seconds=1.0, stages=parts, **fields)


@pytest.mark.parametrize(
    ("parts", "bound", "cause"),
    [
        ({"load": 0.5, "wait": 0.1, "forward": 0.4}, "data", "main"),
        ({"load": 0.05, "wait": 0.55, "forward": 0.4}, "data", None),
        ({"load": 0.01, "forward": 0.99}, "compute", None),
        ({"python": 0.6, "forward": 0.4}, "trainer", None),
        ({"load": 0.02, "forward": 0.48, "other": 0.5}, None, None),
    ],
)
def test_a_loop_that_asks_no_watched_loader_goes_by_its_looks(
    parts: dict[str, float], bound: str | None, cause: str | None
) -> None:
    found = diagnose(unwatched(parts))
    assert (found.bound, found.cause.kind) == (bound, cause)
    assert found.measured.trainer.wait_fraction == pytest.approx(parts.get("load", 0.0) + parts.get("wait", 0.0))
    assert "at 10 steps/s" in found.evidence[0]
    assert found.measured.trainer.errors.data >= 0.01 * (bound == "data")


def test_a_loop_that_was_hardly_looked_at_has_no_wait() -> None:
    found = diagnose(unwatched({"load": 0.5, "forward": 0.5}, ticks=12))
    assert found.bound is None and "only 12 looks" in found.headline
    verdict = record_keys(found)["verdict"]
    assert verdict["wait_fraction"] is verdict["shares"]["data"] is None


def test_errors_over_blocks_widen_what_looks_tell() -> None:
    parts = {"load": 0.3, "forward": 0.7}
    assert diagnose(unwatched(parts)).certain
    found = diagnose(unwatched(parts, stages_error_s={"load": 0.15}))
    assert found.bound is None and "give or take 30 points" in found.headline


def test_what_a_background_thread_waits_is_not_what_the_loop_waits() -> None:
    """The thread that draws is blocked all the time; the loop waits a quarter of its own."""
    seen = made(wait_s=0.0, compute_s=0.1)
    seen = replace(seen, loaders=[replace(seen.loaders[0], background=True)])
    found = diagnose(main_thread(seen, seconds=1.0, stages={"wait": 0.25, "forward": 0.75}))
    assert found.bound == "data"
    assert found.measured.trainer.wait_fraction == found.measured.trainer.shares.data == pytest.approx(0.25)
    assert found.cause.kind == "decode"  # its workers are seen as ever


def beside(delay: float, others: float = 0.0, *, steal: float = 0.0, **costs: Any) -> Diagnosis:
    """Two workers that lack a core for that share of their time; the training thread has one."""
    seen = made(cores=2, stages={"decode": 0.002}, trainer_cpu_s=0.0, **costs)
    workers = [replace(one, stages_delay_s={"decode": delay * one.stages["decode"]}) for one in seen.workers]
    times = [float(second) for second in range(int(seen.seconds) + 2)]
    own = 32 * 0.002 / seen.steps[0].duration_s
    busy = [
        Series(name=name, unit="cores", scope="host", source="/proc/stat", t_s=times, values=[cores] * len(times))
        for name, cores in (("cpu_cores", own + others), ("steal_cores", steal))
    ]
    return diagnose(main_thread(replace(seen, workers=workers, series=busy), stages_delay_s={}))


def test_waiting_that_other_programs_may_have_caused_is_not_blamed_on_the_data() -> None:
    """Half of the workers' time is for want of a core: with theirs they would keep up."""
    costs = {"wait_s": 0.012, "compute_s": 0.028}
    assert beside(0.5, **costs).certain and beside(0.5, **costs).bound == "data"
    for found in (beside(0.5, 0.9, **costs), beside(0.5, steal=0.9, **costs)):
        assert found.bound is None
        assert found.headline.startswith("Cannot tell: waiting for the next batch is 30 % of the time, give or take")
        assert "other programs took 0.9 of the 2 cores: run it alone" in found.headline


def test_waiting_that_other_programs_only_add_to_is_still_data() -> None:
    found = beside(0.3, 1.0, wait_s=0.03, compute_s=0.002)
    assert (found.bound, found.certain) == ("data", True)
    assert any(
        "without a core 30 % of their busy time: other programs took the cores" in one for one in found.evidence
    )
    assert found.cause.also == "cores"
    assert not any("Cores are short" in one for one in found.evidence)


def test_without_workers_it_is_the_training_thread_that_lacks_a_core() -> None:
    said = [one for one in beside(0.3, 1.0, wait_s=0.03, compute_s=0.002, workers=0).evidence if "a core" in one]
    assert len(said) == 1
    assert said[0].startswith("The training thread was without a core 30 % of the time in which it prepares")


def test_waiting_for_workers_that_do_nothing_is_still_waiting() -> None:
    """Epochs that begin by starting workers: nearly all of the time, which more cores would shorten, not end."""
    found = beside(0.0, 1.7, wait_s=0.95, compute_s=0.05)
    assert found.measured.workers.busy < 0.1
    assert (found.bound, found.certain) == ("data", True)


def test_cores_are_short_by_delay_alone() -> None:
    """5 s of wall to a second of CPU are no want of cores, where the kernel says that nobody waited for one."""
    short = beside(0.4, wait_s=0.03, compute_s=0.002)
    assert (short.cause.kind, short.cause.also) == ("decode", "cores")
    words = "Cores are short: 2 are there"
    assert any(one.startswith(words) and "40 % of their busy time" in one for one in short.evidence)
    idle_cpu = {"decode": 0.0001}
    for found in (
        beside(0.0, wait_s=0.03, compute_s=0.002, stages_cpu=idle_cpu),
        diagnose(made(stages_cpu=idle_cpu)),
    ):
        assert found.cause.also is None
        assert not any("Cores are short" in one for one in found.evidence)


def test_recordings_of_before_these_fields_are_read() -> None:
    plain = to_plain(main_thread(made(), ticks=1000))
    for one in (*plain["workers"], *plain["trainers"], *plain["loaders"]):
        for name in [key for key in one if key.endswith(("delay_s", "error_s")) or key == "background"]:
            del one[name]
    found = diagnose(Recording.from_dict(plain))
    assert (found.bound, found.cause.kind) == ("data", "decode")
    assert 0 < found.measured.trainer.errors.trainer < 0.05


def test_much_waiting_that_other_programs_may_explain_is_no_certain_computing() -> None:
    """Idle workers, no core free: a quarter of waiting is no sure sign of data, nor of none."""
    found = beside(0.2, 1.65, wait_s=0.25, compute_s=0.75)
    assert found.measured.batches_ready and found.measured.machine.others_cores
    assert (found.bound, found.close) == ("compute", ["data"])


def test_other_programs_are_not_blamed_for_few_steps() -> None:
    """Half a second of waiting was seen once, beside others."""
    seen = replace(uneven(0.5, every=10, steps=14), script=STOPPED, costs=Costs())
    times = [float(second) for second in range(12)]
    busy = Series(name="cpu_cores", unit="cores", scope="host", source="/proc/stat", t_s=times, values=[4.0] * 12)
    found = diagnose(replace(seen, series=[busy]))
    assert found.measured.machine.others_cores
    assert found.headline.startswith("Cannot tell: ") and "other programs" not in found.headline
    assert "let it run longer" in found.headline
