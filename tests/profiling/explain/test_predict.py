"""One path to a number; remedies that can be carried out; and the first is what an expert would say first."""

import math
import shlex
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.profiling.explain.measure.rates import ERRORS_90
from feedline.profiling.explain.measure.situation import measure
from feedline.profiling.explain.predict import NOTED, REMEDIES, all_predictions, predict, prediction_for
from feedline.profiling.explain.remedies.remedy import Change, Effort, Vain
from feedline.profiling.explain.verdict import diagnose, record_keys
from feedline.profiling.record.recording import Compute, Leg, Recording, Script, Series
from tests.profiling.recordings import made, rich
from tests.profiling.remedy_runs import (
    COMPUTING,
    FAULTY,
    PASSES,
    SMALL,
    TRIALS,
    at,
    first,
    found_in,
    helping,
    of_family,
    runs,
    slow_transform,
    trials_of,
    waiting_outside,
    with_loader,
    with_trainer,
    with_workers,
    without_loader,
)

# --- what every remedy says ---------------------------------------------------------------------------


def test_every_remedy_can_be_carried_out() -> None:
    """A family, an effort, a reason, and the command or the line."""
    offered: set[str] = set()
    for seen in (*runs(), crowded(0.0, 0.3, trainer_cpu_s=0.042)):
        for remedy in REMEDIES:
            for change in remedy(at(seen)):
                offered.add(remedy.__name__)
                assert change.effort in Effort and change.family and change.remedy
                assert change.why and change.command
    assert offered == {remedy.__name__ for remedy in REMEDIES}


def test_what_is_vain_never_helps_and_says_so_whatever_its_words() -> None:
    found = [prediction for seen in runs() for prediction in found_in(seen)]
    assert any(one.vain for one in found) and any(one.helps for one in found)
    for one in found:
        assert not (one.vain and one.helps)
        assert one.why.startswith("this will not help, because ") == one.vain


def test_what_helps_gains_something_for_sure() -> None:
    for one in (one for seen in runs() for one in found_in(seen)):
        assert one.gain_low <= one.gain <= one.gain_high
        assert not one.helps or (one.gain_low > 1.0 and one.gain > 1.05)


def test_what_takes_preparing_gains_a_notable_part_for_sure() -> None:
    """Nobody rewrites a script for two in a hundred."""
    found, helping = at(made(workers=2, stages={"decode": 0.004}, wait_s=0.25, compute_s=0.006, cores=2)), 0
    for percent in range(50, 100):
        left, now = percent / 100, found.now
        then = replace(now, worker_s=left * now.worker_s, worker_cpu_s=left * now.worker_cpu_s)
        setting, *prepared = (
            predict(found, Change(family="x", remedy="x", then=then, effort=effort, why="x", command="x"))
            for effort in (Effort.SETTING, Effort.PREPARING, Effort.REWRITE)
        )
        if setting.helps and setting.gain_low < 1.05:
            helping += 1
            assert not any(one.helps for one in prepared)
    assert helping


def test_what_helps_is_told_beside_other_programs_too() -> None:
    """They take three quarters of the cores now, and would then: the rate is unsure by that, the gain is not."""
    times = [float(second) for second in range(30)]
    series = Series(name="cpu_cores", unit="cores", scope="host", source="/proc/stat", t_s=times, values=[2.0] * 30)
    alone = slow_transform()
    alone = replace(alone, costs=replace(alone.costs, worker_cpu_s=0.001))
    beside = replace(alone, series=[series])
    assert measure(beside).machine.others_cores > 1
    one, other = (of_family(seen, "stage")[0] for seen in (alone, beside))
    assert other.helps and other.low / other.samples_per_s < 0.8 * one.low / one.samples_per_s
    assert other.gain_low / other.gain == pytest.approx(one.gain_low / one.gain, rel=0.1)


def test_what_helps_stands_first_family_by_family() -> None:
    for seen in runs():
        found = found_in(seen)
        assert [one.helps for one in found] == sorted((one.helps for one in found), reverse=True)
        families = [one.family for one in found if one.helps]
        assert families == sorted(families, key=families.index)


def test_of_what_may_help_a_worker_stands_first_where_the_loop_waits() -> None:
    """It is one argument; no layout of the model cures a wait."""
    for wait_s, family in ((0.013, "workers"), (0.0, "layout")):
        stages = {"decode": max(1e-6, wait_s / 32)}
        found = found_in(made(workers=0, wait_s=wait_s, compute_s=0.1 - wait_s, stages=stages, cores=2))
        may = [one.family for one in found if one.in_doubt]
        assert not found[0].helps and found[0].family == may[0] == family and "layout" in may


@pytest.mark.parametrize(("wait_s", "first"), [(0.013, "num_workers=2"), (0.0, None)])
def test_it_is_the_first_thing_to_try_where_the_loop_waits(wait_s: float, first: str | None) -> None:
    """Where it computes nothing is known to be lost."""
    stages = {"decode": max(1e-6, wait_s / 32)}
    seen = diagnose(made(workers=0, wait_s=wait_s, compute_s=0.1 - wait_s, stages=stages, cores=2))
    assert not any(one.helps for one in seen.predictions) and any(one.in_doubt for one in seen.predictions)
    assert record_keys(seen)["verdict"]["first"] == (seen.first and seen.first.remedy) == first
    assert replace(seen, bound=None).first is None


def test_the_record_has_what_a_remedy_says() -> None:
    keys = record_keys(diagnose(slow_transform()))["predictions"]
    assert {"family", "target", "command", "needs", "changes", "gain_low", "gain_high"} <= set(keys[0])
    assert {one["effort"] for one in record_keys(diagnose(rich()))["predictions"]} >= {"setting", "code", "hardware"}


@pytest.mark.parametrize("seen", runs(), ids=range(len(runs())))
def test_the_interval_holds_the_figure(seen: Recording) -> None:
    for one in found_in(seen):
        assert 0 <= one.low <= one.samples_per_s <= one.high


# --- what an expert would say first -------------------------------------------------------------------


def test_a_slow_worker_is_mended_first() -> None:
    seen = made(wait_s=0.1, compute_s=0.01, workers=4, slow=6.0, cores=4, ceiling=3200.0, trials=TRIALS)
    seen = with_workers(seen, functions={"idle worker.py:_worker_loop": 9.0, "transform data.py:only_me": 2.0})
    assert (first(seen).family, first(seen).target) == ("slow-worker", "data.py:only_me")
    assert "--lines-of only_me train.py" in first(seen).command


def test_workers_stay_where_their_starts_take_the_time() -> None:
    passes = [replace(one, start_s=4.0) for one in PASSES]
    seen = with_loader(made(wait_s=0.02, compute_s=0.05, passes=passes, trials=TRIALS), persistent_workers=False)
    assert first(seen).family == "persistent" and "persistent_workers=True" in first(seen).command


def test_a_loader_that_is_made_anew_for_each_epoch_is_to_be_made_once() -> None:
    seen = made(wait_s=0.02, compute_s=0.05, passes=[replace(one, start_s=4.0) for one in PASSES])
    for kept in (False, True):
        found = first(with_loader(seen, persistent_workers=kept, made=len(PASSES)))
        assert (found.remedy, found.effort, found.settings) == ("one DataLoader for all epochs", Effort.CODE, {})
        assert not found.needs
    others = first(with_loader(seen, made=len(PASSES), datasets=len(PASSES)))
    assert others.needs.startswith("one dataset for all epochs") and others.remedy == found.remedy
    assert not of_family(with_loader(seen, persistent_workers=True, made=1), "persistent")


def test_workers_are_to_live_on_where_their_dataset_keeps_samples() -> None:
    """Which is lost with them; whatever their start takes."""
    seen = made(wait_s=0.1, compute_s=0.01, passes=PASSES)
    given = sum(step.samples for step in seen.steps)
    for count, leads in ((0.9, True), (0.1, False)):
        found = with_loader(seen, persistent_workers=False, keeps={"Photos.cache": int(count * given)})
        (kept,) = of_family(found, "persistent")
        assert (kept.at_most, kept.gain > 2, found_in(found)[0] == kept and kept.helps) == (leads, leads, leads)
        assert ("(Photos.cache) is lost as the workers end" in kept.why) == leads
        assert not of_family(with_loader(found, persistent_workers=True), "persistent")


def test_an_iterator_that_begins_each_epoch_anew_is_not_cured_by_workers_that_stay() -> None:
    passes = [replace(one, start_s=4.0) for one in PASSES]
    seen = made(wait_s=0.02, compute_s=0.05, passes=passes)
    for kept in (False, True):
        found = with_loader(seen, persistent_workers=kept, refused="WebDataset.__iter__ is code of its own")
        assert not of_family(found, "persistent")
        assert (first(found).family, first(found).target, first(found).at_most) == ("stage", "start", True)
        assert ("persistent_workers=True" in first(found).command) == (not kept)
        assert first(found).command.splitlines()[-1].startswith(".shuffle(100)  # webdataset")
    own = with_loader(seen, persistent_workers=True, refused="Photos.__iter__ is code of its own")
    for place, lines in (("data.py:Photos.__iter__", "--lines-of Photos.__iter__"), ("data.py:read", "--lines")):
        found = with_workers(own, functions={f"read {place}:7": 1.0})
        assert first(found).command == f"feedline profile {lines} train.py", "else it may be a library's"


def test_batches_made_in_the_main_thread_want_workers_first() -> None:
    """However much more shards would give."""
    seen = made(
        workers=0, cores=4, wait_s=0.25, compute_s=0.01, ceiling=3200.0, trials=TRIALS, stages={"decode": 0.008}
    )
    seen = with_loader(seen, refused="")
    assert first(seen).family == "workers" and of_family(seen, "shards")[0].gain > 2 * first(seen).gain
    assert "persistent_workers=True" in first(seen).command and "num_workers=" in first(seen).command


def test_workers_that_wait_for_a_server_want_more_of_them_than_there_are_cores() -> None:
    found = found_in(waiting_outside("blocked"))
    assert found[0].family == "workers" and found[0].settings["num_workers"] > 2
    assert helping(waiting_outside("blocked"))[:2] == ["workers", "stage"]
    assert next(one for one in found if one.family == "stage").target == "store.py:read_record (sleep)"
    assert "cache" not in helping(waiting_outside("blocked"))


def test_more_workers_only_wait_longer_for_a_lock() -> None:
    found = found_in(waiting_outside("lock", cores=8))
    assert (found[0].family, found[0].target) == ("stage", "store.py:read_record (sleep)")
    assert all(one.vain and "lock" in one.why for one in found if one.family == "workers")


def test_cores_that_are_all_busy_decoding_are_not_helped_by_more_workers() -> None:
    stages = {"decode": 0.004, "transform": 0.0005}
    seen = made(wait_s=0.08, compute_s=0.01, workers=2, cores=2, stages=stages, trials=TRIALS, ceiling=3200.0)
    seen = with_loader(seen, refused="")
    assert "workers" not in helping(seen)
    assert first(seen).family in ("shards", "loader", "stage")
    assert "shards" in helping(seen)


def test_the_trainers_own_python_is_named_by_its_function() -> None:
    seen = made(wait_s=0.001, compute_s=0.02, python_s=0.08, stages=SMALL, trials=TRIALS)
    assert (first(seen).family, first(seen).target) == ("python", "train.py:log")
    assert first(seen).command == "feedline profile --lines-of log train.py" and not first(seen).of_data


def test_copies_are_pinned_first() -> None:
    gpu = Compute(device="cuda:0", channels_last=True, autocast=True)
    seen = made(wait_s=0.001, compute_s=0.02, copy_s=0.03, compute=gpu, starved_s=0.0, stages=SMALL)
    assert first(seen).family == "pin" and "non_blocking=True" in first(seen).command and not first(seen).of_data


def test_what_is_dear_to_unpickle_is_sent_lighter() -> None:
    assert first(made(wait_s=0.09, unpickle_s=0.085, compute_s=0.02, stages=SMALL)).family == "send"


def test_sending_and_unpickling_are_cured_as_one() -> None:
    """Workers that idle, and else wait for the trainer to take what they send: the cost is at its end."""
    gpu = Compute(device="cuda:0", channels_last=True, autocast=True)
    seen = made(wait_s=0.08, unpickle_s=0.03, compute_s=0.01, copy_s=0.001, compute=gpu, starved_s=0.08,
                stages={"send": 0.0005})  # fmt: skip
    measured = measure(seen)
    assert not measured.unpickling_limits and measured.workers.top == "send"
    (lighter,) = of_family(seen, "send")
    assert lighter.helps and lighter.at_most and lighter.gain > 1.3
    assert all(one.gain < 1.05 for one in of_family(seen, "pin"))  # the thread that pins has the same lock


def test_a_collate_function_of_ones_own_is_named_and_torchs_is_not_done_without() -> None:
    stages = {"decode": 0.0003, "collate": 0.004}
    seen = made(wait_s=0.06, compute_s=0.01, workers=2, cores=2, stages=stages, ceiling=3200.0)
    own = with_workers(seen, functions={"collate train.py:pad": 2.0})
    assert (first(own).family, first(own).target) == ("stage", "collate") and "--lines-of pad" in first(own).command
    unnamed = first(with_workers(seen, functions={"collate fetch.py:fetch": 2.0}))
    assert unnamed.gain == first(own).gain and "--lines-of collate_fn" in unnamed.command
    torchs = of_family(with_workers(seen, functions={"collate collate.py:collate": 2.0}), "stage")[0]
    assert torchs.gain < 0.8 * first(own).gain and "not measured here" in torchs.why


def test_batches_that_lie_ready_want_less_handing_over() -> None:
    seen = made(wait_s=0.06, compute_s=0.02, stages=SMALL, cores=4)
    assert {"batch", "fewer-workers"} >= set(helping(seen)) and "batch" in helping(seen)
    assert "learning rate" in of_family(seen, "batch")[0].changes
    assert all(one.vain for one in of_family(seen, "workers"))


def test_a_generator_of_ones_own_is_put_into_a_dataloader() -> None:
    seen = without_loader(load=0.6, forward=0.4)
    assert (first(seen).family, first(seen).target) == ("dataloader", "data.py:batches")
    assert "data.py:batches" in first(seen).needs and not of_family(seen, "workers")


def crowded(
    others: float, delay: float = 0.7, workers: int = 2, wait_s: float = 0.2, trainer_cpu_s: float = 0.008
) -> Recording:
    """Busy workers on two cores, with a transform that takes nearly all of a sample; the loop waits `wait_s` of
    a second for a batch, and of the rest as large a share as `delay` for a core."""
    stages, cpu = {"decode": 0.001, "transform": 0.058}, {"decode": 0.001, "transform": 0.015}
    seen = made(
        wait_s=wait_s,
        compute_s=1.0 - wait_s,
        workers=workers,
        cores=2,
        stages=stages,
        stages_cpu=cpu,
        trainer_cpu_s=trainer_cpu_s,
    )
    lacking = [replace(one, stages_delay_s={"transform": 0.043 * one.samples}) for one in seen.workers]
    waits = {"forward": delay * seen.trainers[0].stages["forward"]}
    times = [float(second) for second in range(int(seen.seconds) + 2)]
    busy = Series(name="cpu_cores", unit="cores", scope="host", source="/proc/stat", t_s=times,
                  values=[32 * 0.024 + others] * len(times))  # fmt: skip
    seen = replace(seen, series=[busy], workers=lacking, trainers=[replace(seen.trainers[0], stages_delay_s=waits)])
    return with_workers(seen, transforms={"Slow": 1.0}, functions={"transform data.py:Slow.__call__": 1.0})


def test_beside_other_programs_it_has_the_cores_that_the_run_had() -> None:
    """Three processes had 0.8 of two cores; a fourth takes a fair part of them from the others."""
    found = at(crowded(1.2))
    of_cores = found.now.limits()["cores"] * (found.now.worker_cpu_s + found.now.trainer_cpu_s)
    assert of_cores == pytest.approx(2 - 1.2)
    more = replace(found.now, workers=3)
    assert more.limits()["cores"] == pytest.approx(found.now.limits()["cores"] * (4 / 8.5) / (3 / 7.5))


def test_beside_other_programs_a_setting_that_may_gain_as_much_comes_before_code() -> None:
    """A second worker is one argument, and nobody's transform costs nothing."""
    workers, stage, *_ = (one for one in found_in(crowded(1.05, 0.95, workers=1)) if one.helps)
    assert (workers.family, stage.family) == ("workers", "stage") and stage.at_most
    assert workers.gain < NOTED < workers.gain_high and workers.gain < stage.gain
    passes = [replace(one, start_s=10.0) for one in PASSES]
    for wait_s, families in ((0.2, ["persistent", "stage"]), (0.5, ["stage", "persistent"])):
        seen = with_loader(replace(crowded(1.2, 0.3, wait_s=wait_s), passes=passes), persistent_workers=False)
        assert helping(seen)[:2] == families, "the transform gives far more in the second one, whatever it costs"


def test_threads_that_wait_for_each_other_lose_what_each_of_them_lacks() -> None:
    """Two on two cores beside two workers: the model alone is 1 / (1 - 2 x 0.3) times as fast, and less slowed with
    one thread."""
    filling, one = (crowded(others, 0.3, trainer_cpu_s=cpu_s) for others, cpu_s in ((0.0, 0.042), (1.2, 0.02)))
    assert (measure(filling).threads, measure(one).threads) == (2, 1)
    assert measure(filling).crowded == pytest.approx(0.6, rel=0.05)
    assert measure(one).crowded == measure(one).lacks_cores > 0.1
    for seen in (filling, one):
        assert at(seen).now.step_s == pytest.approx(0.025 * (1 - measure(seen).crowded), rel=0.05)
    beside = crowded(1.6, 0.3, trainer_cpu_s=0.042)
    assert measure(beside).threads == 2 and measure(beside).crowded > 0.1 and measure(beside).machine.others_cores
    for delay, told in ((0.3, True), (0.05, False)):  # with so little it fills one core
        computing = diagnose(crowded(1.6, delay, trainer_cpu_s=0.045, wait_s=0.0))
        assert computing.bound == "compute"
        assert any("2 threads wait for each other" in one for one in computing.evidence) is told
        told_by_torch = replace(computing.measured.recording, compute=replace(Compute(), threads=2))
        assert any("2 threads" in one and "wait for each other" in one for one in diagnose(told_by_torch).evidence)
    assert not of_family(beside, "threads"), "what fewer give beside other programs cannot be told"
    (fewer,) = of_family(filling, "threads")
    assert (fewer.settings, fewer.command.split()[0]) == ({"threads": 1}, "torch.set_num_threads(1)")
    assert 1.1 < fewer.gain < 2 and not of_family(one, "threads")
    alone = Leg(name="cached", samples_per_s=[100.0] * 3, trainer_cpu_s_per_sample=[0.02])
    with_legs = replace(filling, legs=[alone])
    assert measure(with_legs).rates.ceiling and measure(with_legs).threads == 2 and of_family(with_legs, "threads")
    change = next(one for remedy in REMEDIES for one in remedy(at(filling)) if one.at_most)
    bound, guess = (predict(at(filling), replace(change, at_most=most)) for most in (True, False))
    assert (bound.gain, bound.gain_low) == (guess.gain, guess.gain_low)
    assert bound.gain_high > 1.1 * guess.gain_high, "threads that wait want no core: a bound leaves them out"
    on_gpu = replace(filling, compute=replace(filling.compute, device="cuda:0"))
    assert not of_family(on_gpu, "threads") and measure(on_gpu).crowded == 0


def test_the_model_gets_the_cores_that_cheaper_samples_leave() -> None:
    """Of n threads that want a core, 1.9 are workers: they compute on 0.51, and lack one 0.73 of their busy time."""
    stage = of_family(crowded(1.2), "stage")[0]
    assert stage.helps and stage.target == "Slow"
    shrunk = 1.0 - (0.512 + 43 / 59 * 0.944 * 2) / (2 / 0.3)
    assert stage.gain == pytest.approx(1 / (0.8 * shrunk), rel=0.1)
    free = of_family(crowded(1.2, delay=0.0), "stage")[0]
    assert free.gain == pytest.approx(1 / 0.8, rel=0.1)  # the model had its cores: no more than the wait is gained


def test_what_the_steps_wait_tells_a_gain_however_the_steps_differ() -> None:
    seen = made(wait_s=0.03, compute_s=0.09, workers=0, steps=12, stages={"decode": 0.0009})
    steps = [replace(one, wait_s=one.wait_s * times, duration_s=one.duration_s * times)
             for one, times in zip(seen.steps, 4 * (0.3, 1.0, 1.7), strict=True)]  # fmt: skip
    one = of_family(replace(seen, steps=steps), "workers")[0]
    assert measure(replace(seen, steps=steps)).rates.now.error > 0.1
    assert one.helps and one.gain == pytest.approx(4 / 3, rel=0.1)


def test_a_queue_that_another_thread_fills_is_left_to_its_source() -> None:
    seen = without_loader(wait=0.6, forward=0.4)
    assert (first(seen).family, first(seen).target) == ("stage", "fill.py:fills")
    assert first(seen).command == "kernprof -l -v -p train.py train.py"
    assert any("nother thread of the script makes" in one for one in diagnose(seen).evidence)
    processes = with_trainer(seen, functions={"wait fill.py:fills:17": 0.1 * seen.trainers[0].stages["wait"]})
    assert (first(processes).family, first(processes).target) == ("stage", "")
    assert "num_workers=2" in first(processes).command and "kernprof" not in first(processes).command
    assert any("what makes them cannot be seen" in one for one in diagnose(processes).evidence)
    assert not {one.family for one in found_in(seen)} & {"workers", "dataloader", "shards", "loader", "cache"}


def legs_of(seen: Recording, kept: float, laid_out: float) -> Recording:
    """The ceiling's windows with memory kept, and in channels_last too, so many times as fast."""
    cached = seen.leg("cached").samples_per_s
    both = Leg(name="laid_out", samples_per_s=[kept * laid_out * rate for rate in cached])
    return replace(seen, legs=[*seen.legs, Leg(name="kept", samples_per_s=[kept * rate for rate in cached]), both])


def test_beside_no_other_programs_a_rate_is_as_sure_as_its_gain() -> None:
    """But for a measured factor of the model's own speed, which holds at whatever rate."""
    seen = made(**COMPUTING, ceiling=322.0, trials=TRIALS, compute=FAULTY)
    steps = [replace(step, duration_s=step.duration_s * (1 + n * n % 7 / 10)) for n, step in enumerate(seen.steps)]
    for one in found_in(replace(seen, steps=steps)):
        rate, gain = one.low / one.samples_per_s, one.gain_low / one.gain
        assert rate < gain if one.family == "memory" else rate == pytest.approx(gain)


def test_of_what_is_not_sure_what_may_make_the_model_faster_comes_first() -> None:
    """Prepared shards gain the same by the layout and the memory alone."""
    seen = legs_of(made(**COMPUTING, ceiling=322.0, trials=TRIALS, compute=replace(FAULTY, page_faults=0)), 1.0, 1.12)
    once = [replace(leg, samples_per_s=leg.samples_per_s[:1]) for leg in seen.legs]
    found = found_in(replace(seen, legs=once))
    assert not any(one.helps for one in found)
    assert found[0].family == "layout" and "shards" in {one.family for one in found[1:] if one.gain > 1.05}


def test_a_compute_bound_run_is_offered_the_layout_and_the_memory_and_no_data() -> None:
    seen = legs_of(made(**COMPUTING, ceiling=322.0, trials=TRIALS, compute=FAULTY), kept=1.2, laid_out=1.4)
    assert helping(seen) == ["layout", "memory"]
    layout, memory = (of_family(seen, family)[0] for family in ("layout", "memory"))
    assert layout.gain == pytest.approx(1.4, rel=0.02) and "measured" in layout.why
    assert 1.2 < memory.gain < 1.25 and "measured" in memory.why  # page faults let expect more, but are less sure
    assert memory.command.startswith("export MALLOC_TRIM_") and memory.command.endswith("\npython train.py")
    for glibc, most in (("2.31", 32 << 20), ("2.36", 1 << 30)):  # the older refuses more, and keeps nothing then
        there = replace(seen, host={**seen.host, "system": f"Linux-6.1.0-x86_64-with-glibc{glibc}"})
        assert f"MMAP_THRESHOLD_={most}\n" in of_family(there, "memory")[0].command
    assert "channels_last" in layout.command
    for family in ("shards", "loader", "workers"):
        assert all(one.vain and "hardly waits" in one.why for one in of_family(seen, family)) and of_family(
            seen, family
        )


def test_nothing_helps_a_compute_bound_run_of_which_nothing_is_measured() -> None:
    assert helping(made(**COMPUTING, ceiling=322.0, trials=TRIALS)) == []


def test_a_few_looks_blame_no_stage_and_no_place() -> None:
    for seen in (slow_transform(), waiting_outside("lock"), waiting_outside("blocked")):
        found = found_in(with_workers(seen, ticks=5))
        assert "stage" not in {one.family for one in found}
        assert not any("lock" in one.why for one in found)


# --- a free cure before a dear one --------------------------------------------------------------------


def test_a_setting_comes_before_preparing_that_gains_hardly_more() -> None:
    """Eight cores and one worker: seven more reach the ceiling, as shards would."""
    seen = made(wait_s=0.12, compute_s=0.03, workers=1, cores=8, ceiling=1060.0, trials=TRIALS)
    assert helping(with_loader(seen, refused=""))[0] == "workers"
    assert {"shards", "loader"} <= set(helping(with_loader(seen, refused="")))


@pytest.mark.parametrize(("cost_s", "family"), [(0.00175, "workers"), (0.0013, "loader")])
def test_what_is_asked_for_is_held_against_the_gain(cost_s: float, family: str) -> None:
    """Twice the workers, or files that load in a half, or in a third, of the time."""
    trials = trials_of(("as-is", None, cost_s))
    seen = made(wait_s=0.11, compute_s=0.002, workers=1, cores=2, trials=trials, ceiling=16_000.0)
    assert helping(with_loader(seen, refused=""))[0] == family


def test_preparing_comes_first_where_it_gains_far_more() -> None:
    stages = {"decode": 0.02}
    seen = made(wait_s=0.6, compute_s=0.01, workers=1, cores=2, stages=stages, trials=TRIALS, ceiling=3200.0)
    assert helping(with_loader(seen, refused=""))[0] == "shards"


def test_the_scripts_own_command_line_is_in_the_commands() -> None:
    script = Script(argv=["tools/train it.py", "--data", "a b"])
    seen = made(wait_s=0.001, compute_s=0.02, python_s=0.08, stages=SMALL, script=script)
    assert shlex.split(first(seen).command)[-3:] == ["tools/train it.py", "--data", "a b"]
    module = made(**COMPUTING, compute=FAULTY, script=Script(argv=["pkg.train", "--fast"], module=True))
    assert of_family(module, "memory")[0].command.endswith("\npython -m pkg.train --fast")


# --- the figures --------------------------------------------------------------------------------------


def test_other_numbers_of_workers_may_be_asked_for_and_change_no_figure() -> None:
    seen = made(workers=1, cores=2, ceiling=3000.0, trials=trials_of(("jpeg", 160, 3e-4)))
    report, asked = found_in(seen), all_predictions(measure(seen), workers=[1, 3])
    assert all(one in asked for one in report)
    assert prediction_for(report, num_workers=3) is None and prediction_for(asked, num_workers=3)
    shards = {"codec": "jpeg", "size": 160, "loader": "feedline"}
    assert prediction_for(asked, **shards, num_workers=1) == prediction_for(report, **shards, num_workers=1)
    assert prediction_for(asked, **shards, num_workers=3)


def ceiling_high(seen: Recording) -> float:
    """Where the measured ceiling may be at most, as a window of the same script measures it later."""
    found = at(seen)
    ceiling = found.measured.rates.ceiling
    assert ceiling is not None
    return found.ceiling * (1 + ERRORS_90 * math.hypot(ceiling.error, found.rate.error))


@given(st.floats(0.001, 0.2), st.floats(0.001, 0.2), st.integers(0, 4), st.floats(1.0, 20.0))
def test_predictions_keep_their_promises(wait: float, compute: float, workers: int, above: float) -> None:
    """Intervals hold their rate; no data remedy beats the ceiling; less preparing is never slower."""
    rate = 32 / compute
    trials = trials_of(("jpeg", 256, 0.0006), ("jpeg", 160, 0.0003), ("jpeg", 64, 0.00002))
    seen = made(wait_s=wait, compute_s=compute, workers=workers, ceiling=rate * above, trials=trials, steps=20)
    found = found_in(seen)
    assert found
    for one in found:
        assert 0 <= one.low <= one.samples_per_s <= one.high
        if one.family in ("workers", "fewer-workers", "shards", "cache", "storage", "stage", "batch"):
            assert one.samples_per_s <= max(rate * above, rate) * 1.001
            assert one.high <= ceiling_high(seen) * 1.001
    by_size = {size: next(p for p in found if f"{size} px" in p.remedy).samples_per_s for size in (256, 160, 64)}
    assert by_size[256] <= by_size[160] * 1.001 <= by_size[64] * 1.002


def test_the_ceiling_is_passed_only_by_what_moves_it_and_it_says_how() -> None:
    seen = made(wait_s=0.026, compute_s=0.03, ceiling=1066.0, trials=TRIALS, workers=2, cores=8)
    moved = legs_of(seen, kept=1.0, laid_out=1.5)
    for one in of_family(seen, "shards"):
        assert one.samples_per_s <= 1067 and "on its batches" not in one.why
    best = max(of_family(moved, "shards"), key=lambda one: one.samples_per_s)
    assert best.samples_per_s > 1200 and "1.5× as fast on its batches" in best.why


def test_the_calibration_carries_over() -> None:
    """A run 20 % slower than its model: the prediction is as much slower, where the limit stays the same."""
    stages = {"decode": 0.004}
    found = at(made(workers=1, stages=stages, batch=32, wait_s=32 * 0.005 - 0.001, compute_s=0.001, cores=16))
    assert found.factor == pytest.approx(0.8, rel=0.01)
    then = replace(found.now, workers=2)
    change = Change(family="workers", remedy="x", then=then, effort=Effort.SETTING, why="x", command="x")
    assert predict(found, change).samples_per_s == pytest.approx(400, rel=0.02)


def test_a_prediction_says_what_its_change_says() -> None:
    found = at(made(workers=1, stages={"decode": 0.004}, batch=32, wait_s=0.1, compute_s=0.001, cores=16))
    said: dict[str, Any] = {
        "family": "workers", "remedy": "x", "effort": Effort.CODE, "why": "a reason", "command": "a line",
        "target": "decode", "needs": "room", "changes": "the batches", "at_most": True,
        "settings": {"num_workers": 2},
    }  # fmt: skip
    change = Change(then=replace(found.now, workers=2), cost="two lines", **said)
    one = predict(found, change)
    assert {name: getattr(one, name) for name in said} == said
    assert one.cost == "a change of code: two lines" and not one.vain
    vain = predict(found, replace(change, why=Vain("a reason")))
    assert vain.why == "this will not help, because a reason" and vain.vain and not vain.helps


def test_a_little_less_to_do_is_a_little_faster_whatever_limit_takes_over() -> None:
    """A run at a quarter of its model, of which two limits tie: neither change of the limit makes up for that."""
    stages = {"decode": 0.004}
    found = at(made(workers=2, stages=stages, wait_s=0.25, compute_s=0.006, cores=2))
    assert found.factor < 0.5
    for left in (0.99, 0.95):
        then = replace(found.now, worker_s=left * found.now.worker_s, worker_cpu_s=left * found.now.worker_cpu_s)
        for one in (then, replace(found.now, worker_s=then.worker_s)):
            change = Change(family="stage", remedy="x", then=one, effort=Effort.CODE, why="x", command="x")
            assert predict(found, change).gain < 1.15


def test_what_an_idle_worker_takes_is_no_doubt_where_that_is_not_the_limit() -> None:
    """The training thread prepares the batches; what it takes its worker to make them is hardly known."""
    seen = made(wait_s=0.002, python_s=0.078, compute_s=0.02, workers=1, cores=2, trainer_cpu_s=0.006,
                stages={"decode": 0.00003})  # fmt: skip
    parts = {name.replace("python", "prepare"): s for name, s in seen.trainers[0].stages.items()}
    places = {"prepare train.py:opened:3": parts["prepare"]}
    known = at(replace(seen, trainers=[replace(seen.trainers[0], stages=parts, functions=places)]))
    workers = replace(known.measured.workers, alone_error=1.0)
    unknown = replace(known, measured=replace(known.measured, workers=workers))
    lows = [[predict(here, change).gain_low for remedy in REMEDIES for change in remedy(here)
             if change.target == "train.py:opened"] for here in (known, unknown)]  # fmt: skip
    assert len(lows[0]) == 2 and lows[0] == pytest.approx(lows[1], rel=0.05)


def test_a_trial_replaces_the_workers_cost() -> None:
    trials = trials_of(("raw", 64, 0.0001))
    seen = made(
        workers=1, cores=8, stages={"decode": 0.01}, wait_s=0.31, compute_s=0.001, ceiling=9000.0, trials=trials
    )
    found = next(p for p in found_in(seen) if "64 px raw" in p.remedy)
    assert 0.85 * 9000 < found.samples_per_s <= 9000
    assert found.settings == {"codec": "raw", "size": 64, "loader": "feedline", "num_workers": 1}
