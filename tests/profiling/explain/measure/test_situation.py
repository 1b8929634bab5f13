"""The model set to a run."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from feedline.profiling.explain.measure.situation import measure, situation
from feedline.profiling.explain.predict import all_predictions, prediction_for
from feedline.profiling.explain.verdict import diagnose
from feedline.profiling.machine import resources
from feedline.profiling.record.recording import Leg, Series
from tests.profiling.recordings import made
from tests.profiling.remedy_runs import begun_anew


def test_preparing_whose_cpu_time_nobody_counted_is_what_the_trainer_needs_less_of_with_free_data() -> None:
    """4 ms a sample with its preparing in it, 1 ms on cached batches."""
    seen = made(workers=0, trainer_cpu_s=0.004)
    cached = Leg(name="cached", samples_per_s=[1000.0] * 3, trainer_cpu_s_per_sample=[0.001] * 3)
    seen = replace(seen, legs=[cached], costs=replace(seen.costs, worker_cpu_s=None))
    at = situation(measure(seen))
    assert at is not None
    assert (at.now.trainer_cpu_s, at.now.worker_cpu_s) == pytest.approx((0.001, 0.003))


def test_what_others_do_while_the_loop_evaluates_is_not_taken_from_its_steps() -> None:
    """Ten seconds of evaluation in the middle, on all four cores."""
    seen = made(trainer_cpu_s=0.0005)
    steps = [replace(step, start_s=step.start_s + 10 * (number >= 30)) for number, step in enumerate(seen.steps)]
    times = [float(second) for second in range(18)]
    busy = [1.0 if t <= 4 or t >= 14 else 4.0 for t in times]
    host = Series(name="cpu_cores", unit="cores", scope="host", source="/proc/stat", t_s=times, values=list(busy))
    assert measure(replace(seen, steps=steps, series=[host])).machine.others_busy == 0


def test_workers_that_live_for_one_batch_are_not_taken_for_other_programs() -> None:
    """Nobody saw them run; their CPU time is known when they have ended."""
    times = [float(second) for second in range(10)]
    host, trainer, ended = (
        Series(name=name, unit="cores", scope=scope, source="/proc", t_s=times, values=[cores] * 10)
        for name, scope, cores in (
            ("cpu_cores", "host", 3.9),
            ("cpu_cores", "trainer", 0.4),
            ("ended_children_cores", "trainer", 3.4),
        )
    )
    seen = replace(begun_anew(), series=[host, trainer, ended])
    assert measure(replace(seen, series=[host, trainer])).machine.others_cores > 2
    assert measure(seen).machine.others_cores == 0


def test_nothing_is_said_of_copies_that_nobody_measured() -> None:
    seen = made(device="xpu")
    unmeasured = replace(seen, steps=[replace(step, copy_s=None) for step in seen.steps])
    assert prediction_for(all_predictions(measure(seen)), pin_memory=True)
    assert prediction_for(all_predictions(measure(unmeasured)), pin_memory=True) is None


def test_steal_and_throttling_are_read_as_the_sampler_calls_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that gives three of four cores to others, and a quota; both counters go on as the clock does."""
    clock = [0.0]

    def counters() -> SimpleNamespace:
        return SimpleNamespace(user=clock[0], nice=0, system=0, steal=3 * clock[0])

    def cgroup(path: str) -> str:
        return f"throttled_usec {1.6e6 * clock[0]:.0f}" if path.endswith("cpu.stat") else ""

    monkeypatch.setattr("psutil.cpu_times", counters)
    monkeypatch.setattr(resources, "read_text", cgroup)
    sampler = resources.ResourceSampler(0, origin=0.0)
    seen = made(cores=4, trainer_cpu_s=0.0005)
    for second in range(int(seen.seconds) + 2):
        clock[0] = float(second)
        sampler._look(clock[0])
    found = diagnose(replace(seen, series=sampler.recorded))
    assert found.measured.machine.others_cores > 2
    assert found.measured.machine.throttled == pytest.approx(0.4)
    assert any("A quota kept the script from running 40 % of the time" in sentence for sentence in found.evidence)


@pytest.mark.parametrize(("own", "taken"), [(4.0, 0.0), (2.5, 1.5)])
def test_others_have_no_more_than_the_script_lacks_of_its_own_cores(own: float, taken: float) -> None:
    """Four cores of 64, and the neighbours fill the rest."""
    times = [float(second) for second in range(10)]
    host, trainer = (
        Series(name="cpu_cores", unit="cores", scope=scope, source="/proc", t_s=times, values=[cores] * 10)
        for scope, cores in (("host", 62.0), ("trainer", own))
    )
    seen = made(series=[host, trainer], cores=4)
    machine = measure(replace(seen, host={**seen.host, "cores": 64})).machine
    assert machine.others_cores == taken


def test_a_batch_whose_size_the_loader_does_not_tell_is_as_large_as_those_that_came() -> None:
    seen = made(batch=48)
    untold = replace(seen, loaders=[replace(seen.loaders[0], batch_size=None)])
    for one in (seen, untold):
        at = situation(measure(one))
        assert at is not None and at.batch_samples == 48
