"""What limits the data: named with its place, its share and its error, and only where the numbers bear it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from feedline.profiling.explain.cause import KINDS, Cause
from feedline.profiling.explain.measure.throughput import SHARED_S
from feedline.profiling.explain.verdict import diagnose
from feedline.profiling.record.recording import Leg, LoaderPass, Recording, Series
from feedline.profiling.record.stages import STAGES
from tests.profiling.recordings import made
from tests.profiling.remedy_runs import drawing, without_loader

SMALL = {"decode": 0.0001, "transform": 0.0001}


def cause_of(seen: Recording, **of_workers: Any) -> Cause:
    """Every worker changed so."""
    return diagnose(replace(seen, workers=[replace(one, **of_workers) for one in seen.workers])).cause


@pytest.mark.parametrize("stage", sorted({*STAGES} - {"idle", "other"}))
def test_the_stage_that_takes_the_workers_longest(stage: str) -> None:
    seen = made(stages={"decode": 0.0005, "collate": 0.0004, stage: 0.003}, wait_s=0.09, compute_s=0.006)
    places = {f"{stage} store.py:fetch": 9.0, f"{stage} data.py:make": 2.0, "idle queues.py:get": 50.0}
    found = cause_of(seen, functions=places)
    assert (found.kind, found.where) == (stage, "store.py:fetch")
    rest = sum({"decode": 0.0005, "collate": 0.0004, stage: 0.0}.values())
    assert found.share == pytest.approx(0.003 / (0.003 + rest))
    assert found.error is not None and 0.005 < found.error < 0.05
    assert "store.py:fetch" in found.words


@pytest.mark.parametrize("background", [True, False])
def test_a_thread_of_the_script_that_makes_the_batches_is_named(background: bool) -> None:
    seen = made(wait_s=0.06, compute_s=0.04)
    (loader,), (trainer,) = seen.loaders, seen.trainers
    working = replace(trainer, beside_cpu_s={"data.py:Noisy.__getitem__": 0.5 * trainer.seconds})
    loaders = [replace(loader, background=background, num_workers=0 if background else 2)]
    words = diagnose(replace(seen, loaders=loaders, trainers=[working], workers=[])).cause.words
    assert words.endswith("mostly in data.py:Noisy.__getitem__" if background else "what the workers do was not seen")


def test_more_workers_help_those_that_are_blocked_and_not_those_that_wait_for_a_lock() -> None:
    blocked, locked = (made(stages={stage: 0.01}, wait_s=0.16, compute_s=0.01) for stage in ("blocked", "lock"))
    assert "more workers wait side by side" in cause_of(blocked).words
    assert "more workers do not help" in cause_of(locked).words
    busy = [replace(one, cpu_s=1.3 * one.seconds) for one in locked.workers]  # threads of its own compute meanwhile
    told = cause_of(replace(locked, workers=busy))
    assert told.kind is None and "in what no rule knows" in told.words and "lock" not in told.words


def test_who_waits_for_another_loader_s_batches_does_not_prepare_them() -> None:
    seen = made(workers=0, wait_s=0.16, compute_s=0.01)
    thread = seen.trainers[0]
    waits = replace(thread, stages={"wait": 0.9 * thread.seconds, "forward": 0.1 * thread.seconds})
    assert cause_of(seen).kind == "main"
    told = cause_of(replace(seen, trainers=[waits]))
    assert told.kind is None and "waits for batches that others make" in told.words


@pytest.mark.parametrize(
    ("stages", "ticks", "words"),
    [
        ({"decode": 0.004, "transform": 0.0002}, 7, "14 looks at the workers are too few"),
        ({"decode": 0.002, "transform": 0.0021}, 1000, "no stage of the workers leads"),
        ({"decode": 0.003, "transform": 0.002}, 30, "no stage of the workers leads"),
    ],
)
def test_no_cause_without_ground(stages: dict[str, float], ticks: int, words: str) -> None:
    found = cause_of(made(stages=stages, wait_s=0.09, compute_s=0.006), ticks=ticks)
    assert (found.kind, found.share) == (None, None)
    assert words in found.words


def test_a_slow_worker_comes_before_its_stages() -> None:
    found = diagnose(made(wait_s=0.1, compute_s=0.01, workers=4, slow=6.0, cores=8)).cause
    assert (found.kind, found.where) == ("slow-worker", "worker 0")
    assert found.words == "worker 0 takes 6× as long per sample as the others: all wait for it"


def test_batches_that_are_made_in_the_training_thread() -> None:
    seen = made(workers=0, wait_s=0.12, compute_s=0.01)
    found = cause_of(seen, functions={"decode Image.py:load": 5.0, "transform data.py:crop": 1.0})
    assert (found.kind, found.where) == ("main", "Image.py:load")
    assert found.share == pytest.approx(0.12 / 0.13)
    assert "most of it in decoding (Image.py:load)" in found.words


def test_unpickling_batches() -> None:
    found = diagnose(made(wait_s=0.09, unpickle_s=0.08, compute_s=0.02, stages=SMALL)).cause
    assert found.kind == "unpickle"
    assert found.share == pytest.approx(0.08 / 0.11)


def test_a_sampler_that_keeps_the_workers_waiting() -> None:
    found = diagnose(drawing(0.8))
    assert (found.bound, found.cause.kind, found.cause.where) == ("data", "draw", "train.py:Balanced.draw")
    assert (found.predictions[0].remedy, found.predictions[0].at_most) == ("a cheaper sampler", True)
    assert found.predictions[0].gain == pytest.approx(5.0, rel=0.1)
    assert diagnose(drawing(0.2)).cause.kind == "handover"


def test_batches_that_are_changed_where_they_are_used() -> None:
    found = diagnose(drawing(0.8, "change"))
    assert (found.bound, found.cause.kind, found.cause.where) == ("data", "main", "train.py:Balanced.change")
    assert found.cause.words.startswith("the training thread changes batches that are ready 80 % of its time")
    assert (found.predictions[0].remedy, found.predictions[0].at_most) == ("cheaper work on whole batches", True)
    packages = drawing(0.8, "change", "fastai.vision.augment")
    assert "--lines-of fastai.vision.augment:Balanced.change " in diagnose(packages).predictions[0].command


def test_batches_that_come_out_of_a_queue_of_the_scripts_own() -> None:
    found = diagnose(without_loader(unpickle=0.7, wait=0.1, forward=0.2))
    assert (found.bound, found.cause.kind) == ("data", "unpickle")
    assert found.predictions[0].family == "send"


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_that_a_generator_prepares_behind_the_loader(workers: int) -> None:
    """Its time is no step of the model, and neither does the loader's clock run."""
    seen = made(wait_s=0.002, python_s=0.078, compute_s=0.02, workers=workers, stages={"decode": 0.00003})
    parts = {name.replace("python", "prepare"): s for name, s in seen.trainers[0].stages.items()}
    places = {f"prepare train.py:opened:{line}": parts["prepare"] / 2 for line in (3, 4)}
    seen = replace(seen, trainers=[replace(seen.trainers[0], stages=parts, functions=places)])
    kept = Leg(name="cached", samples_per_s=[32 / 0.098 * off for off in (0.99, 1.0, 1.01)])  # prepared as well
    found = diagnose(seen)
    assert (found.bound, found.cause.kind, found.cause.where) == ("data", "main", "train.py:opened")
    assert found.measured.trainer.shares.data == pytest.approx(0.8)
    for one in (found, diagnose(replace(seen, legs=[kept]))):
        assert (one.bound, one.measured.rates.contradicted) == ("data", False)
        first, least = one.predictions[0], next(p for p in one.predictions if p.family == "stage")
        assert (first.family, first.target, first.at_most) == ("dataloader", "train.py:opened", False)
        taken_s = 0.02 + (0.0 if workers else SHARED_S * 32 * 150_528 * 4)  # from workers, where none sent them yet
        assert first.gain == pytest.approx(0.1 / max(0.08 / max(2, workers or 4), taken_s), rel=0.15)  # four cores
        assert (least.at_most, least.gain) == (True, pytest.approx(0.1 / 0.022, rel=0.1))


def test_workers_that_are_busy_are_the_limit_whatever_the_training_thread_changes() -> None:
    seen = made(wait_s=0.07, compute_s=0.03, workers=2, cores=8, stages={"decode": 0.0061})
    parts = {"change": 0.4 * seen.trainers[0].seconds, "wait": 0.3 * seen.trainers[0].seconds}
    places = {"change train.py:warp:3": parts["change"]}
    found = diagnose(replace(seen, trainers=[replace(seen.trainers[0], stages=parts, functions=places)]))
    assert found.cause.kind == "decode"
    gains = {one.remedy: one.gain for one in found.predictions}
    assert (
        gains["num_workers=4"] == pytest.approx(0.1 / 0.07, rel=0.1) == pytest.approx(gains["num_workers=8"], rel=0.1)
    )


@pytest.mark.parametrize(("own", "also"), [(3.9, "cores"), (2.0, None)])
def test_that_a_script_uses_all_cores_is_said_beside_the_stage(own: float, also: str | None) -> None:
    """More workers would get no more of them; what a sample costs is the cause all the same."""
    times = [float(second) for second in range(10)]
    used = Series(name="cpu_cores", unit="cores", scope="workers", source="/proc", t_s=times, values=[own] * 10)
    found = diagnose(made(wait_s=0.06, compute_s=0.03, stages={"decode": 0.004}, series=[used]))
    assert (found.cause.kind, found.cause.also) == ("decode", also)
    assert any("uses all of its 4 cores" in words for words in found.evidence) == bool(also)


@pytest.mark.parametrize(
    ("starts_s", "kind"), [([0.9, 0.9, 0.9], "start"), ([0.6, 1.0], None), ([0.05, 0.06], "handover")]
)
def test_beginning_passes_or_handing_over_is_told_where_one_surely_leads(starts_s: list[float], kind: str) -> None:
    """Ten steps of 90 ms a pass, of which the loop waits 60 for workers that idle."""
    passes = [LoaderPass(epoch=epoch, samples=320, start_s=start_s, end_s=0.0)
              for epoch, start_s in enumerate([0.9, *starts_s])]  # fmt: skip
    found = diagnose(made(wait_s=0.06, compute_s=0.03, stages=SMALL, passes=passes))
    assert (found.bound, found.cause.kind) == ("data", kind)
    assert ("which of the two costs more cannot be told" in found.cause.words) == (kind is None)


def test_a_sampler_that_draws_an_epoch_as_it_begins_is_no_start_of_workers() -> None:
    """An epoch takes 0.9 s to begin, most of it in the sampler, and 0.5 of steps; looks see both."""
    passes = [LoaderPass(epoch=epoch, samples=320, start_s=0.9, end_s=None) for epoch in range(4)]
    seen = made(wait_s=0.0, compute_s=0.05, stages=SMALL, passes=passes)
    for target, share in (("torch.utils.data.sampler:RandomSampler.__iter__", 0.55), ("train.py:Mine.each", 0.2)):
        parts = {"draw": share * seen.seconds, "wait": (0.64 - share) * seen.seconds, "forward": 0.36 * seen.seconds}
        places = {f"draw {target}:12": parts["draw"]}
        trainer = replace(seen.trainers[0], seconds=seen.seconds, stages=parts, functions=places)
        found = diagnose(replace(seen, trainers=[trainer]))
        assert found.measured.trainer.shares.other == 0.0, "what the looks see of the starts is known"
        if share < 0.3:
            assert found.cause.kind == "start"
            continue
        assert (found.bound, found.cause.kind, found.cause.where) == ("data", "draw", target)
        first = found.predictions[0]
        assert (first.remedy, first.at_most) == ("a cheaper sampler", True)
        assert first.gain == pytest.approx(1.4 / (1.4 - 0.55 * 1.4), rel=0.1)
        assert "num_samples" in (first.command or "")
        ended = [replace(one, end_s=0.0) for one in passes]  # all that it draws is taken
        whole = diagnose(replace(seen, trainers=[trainer], passes=ended)).predictions[0]
        assert whole.remedy == first.remedy and "num_samples" not in (whole.command or "")


def mostly_without_a_core(busy_cores: float) -> Cause:
    """Of the two that the machine has; the script itself uses 1.6."""
    seen = made(stages={"decode": 0.0016}, workers=4, cores=2, wait_s=0.03, compute_s=0.002, trainer_cpu_s=0.0)
    times = [float(second) for second in range(int(seen.seconds) + 2)]
    busy = Series(name="cpu_cores", unit="cores", scope="host", source="/proc/stat", t_s=times,
                  values=[busy_cores] * len(times))  # fmt: skip
    waits = {"decode": 0.6 * seen.workers[0].stages["decode"]}
    return cause_of(replace(seen, series=[busy]), stages_delay_s=waits)


def test_more_workers_than_cores() -> None:
    found = mostly_without_a_core(1.7)
    assert (found.kind, found.share) == ("cores", pytest.approx(0.6))
    assert found.words == "the workers wait 60 % of their busy time for one of the 2 cores"


def test_cores_that_other_programs_take_are_not_the_scripts_fault() -> None:
    assert mostly_without_a_core(2.9).kind != "cores"


def test_workers_that_take_the_models_cores() -> None:
    found = diagnose(made(wait_s=0.001, compute_s=0.1, ceiling=1000.0))
    assert (found.bound, found.cause.kind) == ("data", "cores")


def test_where_the_loop_does_not_wait_there_is_none() -> None:
    assert diagnose(made(wait_s=0.001, compute_s=0.1)).cause == Cause()


def test_of_the_loops_own_python_the_place_is_told() -> None:
    found = diagnose(made(wait_s=0.001, compute_s=0.02, python_s=0.08, stages=SMALL)).cause
    assert (found.kind, found.where) == (None, "train.py:log:12")


def test_two_places_that_take_as_much_are_both_told() -> None:
    seen = made(wait_s=0.001, compute_s=0.02, python_s=0.08, stages=SMALL)
    places = {"python train.py:log:12": 2.4, "python train.py:draw:30": 2.3}
    found = diagnose(replace(seen, trainers=[replace(seen.trainers[0], functions=places)]))
    assert (found.bound, found.cause.where) == ("trainer", "train.py:log and train.py:draw")
    assert "Most of the main thread's own time is in train.py:log and train.py:draw." in found.evidence


def test_of_two_methods_that_take_as_much_their_class_is_told() -> None:
    seen = made(wait_s=0.001, compute_s=0.02, python_s=0.08, stages=SMALL)
    places = {"python train.py:Log.write:12": 2.4, "python train.py:Log.rows:30": 2.3, "python train.py:draw:2": 0.1}
    found = diagnose(replace(seen, trainers=[replace(seen.trainers[0], functions=places)]))
    assert found.cause.where == "train.py:Log"


def test_workers_are_not_said_to_take_cores_where_free_data_hardly_helps() -> None:
    found = diagnose(made(wait_s=0.009, compute_s=0.091, ceiling=345.0, cores=64))
    assert (found.bound, found.close) == ("compute", ["data"])
    assert found.cause.kind == "decode"


def test_work_that_no_rule_knows_is_said_to_lead_where_it_does() -> None:
    """Four fifths of their time; the stages among themselves lead nobody."""
    seen = made(stages={"decode": 0.0002, "transform": 0.0002}, workers=1, wait_s=0.2, compute_s=0.01)
    (worker,) = seen.workers
    stages = {**worker.stages, "idle": 0.0, "other": 4 * sum(worker.stages[name] for name in ("decode", "transform"))}
    found = cause_of(seen, stages=stages, seconds=sum(stages.values()), functions={"other data.py:mystery": 3.0})
    assert (found.kind, found.where) == (None, "data.py:mystery")
    assert found.words == "80 % of the workers' busy time is in what no rule knows (data.py:mystery)"


def test_the_documents_say_what_to_do_for_every_cause() -> None:
    page = (Path(__file__).parents[3] / "docs" / "verdicts.md").read_text()
    headings = [line for line in page.splitlines() if line.startswith("### ")]
    for kind in {*KINDS} - {"idle", "other"}:
        assert f"\n| `{kind}` |" in page, "in the table"
        assert any(f"`{kind}`" in heading for heading in headings), kind
