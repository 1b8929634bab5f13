"""Synthetic runs with known answers get the right verdict, evidence and top remedy; fractions sum to one."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from feedline.profiling.explain.measure.situation import Situation, measure, situation
from feedline.profiling.explain.verdict import diagnose, record_keys
from feedline.profiling.record.recording import Compute, Leg, LoaderPass, Recording, Script, Trial
from feedline.profiling.record.stages import STAGES
from tests.profiling.recordings import crowded, made, rich
from tests.profiling.remedy_runs import SMALL


@pytest.mark.parametrize(
    ("costs", "bound"),
    [
        ({"wait_s": 0.06, "compute_s": 0.03}, "data"),
        ({"wait_s": 0.06, "compute_s": 0.03, "workers": 0}, "data"),
        ({"wait_s": 0.001, "compute_s": 0.1, "stages": SMALL}, "compute"),
        ({"wait_s": 0.001, "compute_s": 0.02, "python_s": 0.08, "stages": SMALL}, "trainer"),
        ({"wait_s": 0.001, "compute_s": 0.04, "copy_s": 0.04, "device": "cuda:0", "starved_s": 0.0}, "copy"),
        ({"wait_s": 0.09, "unpickle_s": 0.085, "compute_s": 0.02, "stages": SMALL}, "data"),
        ({"wait_s": 0.08, "compute_s": 0.02, "device": "cuda:0", "starved_s": 0.001, "stages": SMALL}, "compute"),
        ({"wait_s": 0.001, "compute_s": 0.1, "ceiling": 1000.0}, "data"),
    ],
)
def test_the_verdict(costs: dict[str, Any], bound: str) -> None:
    assert diagnose(made(**costs)).bound == bound


def test_waiting_for_batches_that_are_ready_is_their_handing_over_or_other_programs() -> None:
    found = diagnose(made(wait_s=0.02, compute_s=0.08, stages=SMALL))
    assert (found.bound, found.cause.kind) == ("data", "handover")
    assert any("Batches are ready" in sentence for sentence in found.evidence)
    assert diagnose(crowded(4.0, wait_s=0.02, compute_s=0.08, stages=SMALL)).bound != "data"
    passes = [LoaderPass(epoch=epoch, samples=320, start_s=0.3, end_s=0.0) for epoch in range(4)]
    starting = diagnose(crowded(4.0, wait_s=0.0, compute_s=0.05, stages=SMALL, passes=passes))
    assert (starting.bound, starting.cause.kind) == ("data", "start")  # workers that start hand nothing over
    assert diagnose(made(wait_s=0.02, compute_s=0.08, stages=SMALL, slow=20.0)).bound == "data"
    assert diagnose(made(wait_s=0.06, compute_s=0.02, stages=SMALL)).bound == "data"


def test_serialising_is_the_data_side_when_workers_send() -> None:
    heavy = {"read": 0.0, "decode": 0.0001, "transform": 0.0, "collate": 0.0, "send": 0.0015}
    found = diagnose(made(wait_s=0.09, unpickle_s=0.06, compute_s=0.02, workers=1, stages=heavy))
    assert found.bound == "data"
    assert found.measured.workers.top == "send"
    assert found.predictions[0].remedy.startswith("cheaper send")


def test_unpickling_is_named_and_lighter_batches_lead() -> None:
    """The workers idle, the main thread unpickles: what a batch of thousands of small objects looks like."""
    found = diagnose(made(wait_s=0.09, unpickle_s=0.08, compute_s=0.02, stages=SMALL))
    assert found.bound == "data"
    assert any("Unpickling batches" in sentence for sentence in found.evidence)
    assert found.predictions[0].remedy == "cheaper send: lighter batches"
    assert found.measured.workers.slow is None


def test_waiting_for_a_busy_worker_is_not_unpickling() -> None:
    """Three quarters of the wait inside `rebuild_storage`, hardly any CPU in it: a worker answers late."""
    seen = made(wait_s=0.08, unpickle_s=0.06, compute_s=0.02)
    slow = replace(seen.trainers[0], stages_cpu_s={"unpickle": 0.1, "forward": 1.2})
    found = diagnose(replace(seen, trainers=[slow]))
    assert not found.measured.unpickling_limits and not any("Unpickling" in one for one in found.evidence)
    busy = replace(seen.trainers[0], stages_cpu_s={"unpickle": 3.5, "forward": 1.2})
    assert diagnose(replace(seen, trainers=[busy])).measured.unpickling_limits
    at_work = made(wait_s=0.08, unpickle_s=0.06, compute_s=0.02, stages={"decode": 0.006})
    assert not diagnose(at_work).measured.unpickling_limits  # no worker is ever idle: they set the pace
    idle = made(wait_s=0.08, unpickle_s=0.06, compute_s=0.02, stages=SMALL, trainers=[slow])
    assert diagnose(idle).measured.unpickling_limits  # what is waited for is on its way from one to the other


def test_shares_of_time_are_those_of_one_rank() -> None:
    seen = made(wait_s=0.06, compute_s=0.02, batch=32)
    both = [*seen.steps, *(replace(step, rank=1) for step in seen.steps)]
    found = diagnose(replace(seen, steps=both, compute=Compute(world_size=2))).measured
    assert found.trainer.wait_fraction == found.trainer.shares.data == pytest.approx(0.75)
    assert found.rates.now is not None and found.rates.now.value == pytest.approx(800)
    assert found.trainer.step_s == pytest.approx(0.02 / 32)


def test_rate_wait_and_ceiling() -> None:
    found = diagnose(made(wait_s=0.06, compute_s=0.02, batch=32, ceiling=1600.0))
    assert found.samples_per_s == pytest.approx(400.0)
    assert found.measured.trainer.wait_fraction == pytest.approx(0.75)
    assert found.ceiling_samples_per_s == pytest.approx(1600.0)
    assert diagnose(made()).ceiling_samples_per_s is None
    assert any("1,600 samples/s" in sentence for sentence in found.evidence)


@pytest.mark.parametrize("stage", ["read", "decode", "transform", "collate", "send"])
def test_the_top_stage_is_found_and_its_remedy_leads(stage: str) -> None:
    stages = {"read": 0.0002, "decode": 0.0003, "transform": 0.0002, "collate": 0.0001, "send": 0.0001}
    cpu = {name: value for name, value in stages.items() if name != "read"}
    stages[stage] = 0.004
    cpu[stage] = 0.0 if stage == "read" else 0.004
    seen = made(wait_s=0.13, compute_s=0.01, workers=1, cores=2, stages=stages, stages_cpu=cpu, ceiling=3200.0)
    found = diagnose(seen)
    assert found.bound == "data"
    assert found.measured.workers.top == stage
    leading = {
        "read": ("cache in RAM", "faster storage", "num_workers"),
        "transform": ("cheaper transform RandomResizedCrop", "num_workers"),
        "collate": ("cheaper collate", "uint8", "num_workers"),
        "send": ("cheaper send", "uint8", "num_workers"),
    }
    assert found.predictions[0].remedy.startswith(leading.get(stage, ("num_workers",)))


def test_one_slow_worker_is_named_and_mending_it_leads() -> None:
    found = diagnose(made(wait_s=0.1, compute_s=0.01, workers=4, slow=6.0, cores=4, ceiling=3200.0))
    assert found.measured.workers.slow is not None and found.measured.workers.slow[0].worker == 0
    assert any("Worker 0 takes 6× as long" in sentence for sentence in found.evidence)
    assert found.predictions[0].remedy == "mend worker 0"


def test_epochs_of_one_worker_are_one_worker() -> None:
    """Without persistent_workers each epoch starts new processes; the first reads from a cold disk. None is slow."""
    seen = made(workers=2)
    again = [
        replace(w, pid=(w.pid or 0) + 10, stages={**w.stages, "read": 5 * w.stages["read"]}) for w in seen.workers
    ]
    found = diagnose(replace(seen, workers=[*seen.workers, *again]))
    assert [worker.worker for worker, _ in found.measured.workers.each] == [0, 1]
    assert found.measured.workers.slow is None
    assert found.measured.workers.each[0][0].samples == 2 * seen.workers[0].samples


def test_main_thread_bound_names_the_place() -> None:
    found = diagnose(made(wait_s=0.001, compute_s=0.02, python_s=0.08, stages=SMALL))
    assert found.predictions[0].remedy == "less Python in the training loop"
    assert "train.py:log:12" in found.predictions[0].why
    seen = made(wait_s=0.001, compute_s=0.02, python_s=0.08, stages=SMALL)
    named = {"forward train.py:main:8": 9.0, "python train.py:log:12": 4.0}
    found = diagnose(replace(seen, trainers=[replace(seen.trainers[0], functions=named)]))
    assert found.evidence[-1] == "Most of the main thread's own time is in train.py:log:12."
    assert found.predictions[0].samples_per_s == pytest.approx(32 / 0.021, rel=0.12)


def test_a_place_may_have_spaces_in_its_files_name() -> None:
    seen = made(wait_s=0.001, compute_s=0.02, python_s=0.08, stages=SMALL)
    named = {"forward my train.py:main:8": 9.0, "python my train.py:log:12": 4.0}
    found = diagnose(replace(seen, trainers=[replace(seen.trainers[0], functions=named)]))
    assert found.evidence[-1] == "Most of the main thread's own time is in my train.py:log:12."


def test_data_remedies_do_not_help_a_compute_bound_script_and_say_why() -> None:
    found = diagnose(made(wait_s=0.001, compute_s=0.1, stages=SMALL, ceiling=322.0))
    data = [
        p for p in found.predictions if p.remedy.startswith(("num_workers", "prefetch", "cache", "faster", "pin"))
    ]
    assert data and not any(prediction.helps for prediction in data)
    assert all("will not help, because" in prediction.why for prediction in data)


def test_ten_of_ten_under_noise() -> None:
    """The waits of a busy machine scatter; the verdict does not."""
    for seed in range(10):
        wait = 0.05 * (1 + 0.4 * ((seed * 7) % 10 - 5) / 5)
        assert diagnose(made(wait_s=wait, compute_s=0.03)).bound == "data"


def test_pauses_longer_than_their_steps_leave_no_rate() -> None:
    """As in a recording that somebody has edited."""
    seen = rich()
    found = diagnose(replace(seen, steps=[replace(step, pause_s=2 * step.duration_s) for step in seen.steps]))
    assert found.samples_per_s is None and found.predictions == []


def test_nothing_seen() -> None:
    found = diagnose(Recording(script=Script(argv=["x.py"])))
    assert found.bound is None and found.predictions == []
    assert found.headline == "Cannot tell: no training step was seen."
    failed = diagnose(Recording(script=Script(argv=["x.py"], ended_by="error")))
    assert failed.headline == "Cannot tell: no training step was seen before the script failed."
    verdict = record_keys(found)["verdict"]
    assert verdict["samples_per_s"] is None and verdict["wait_fraction"] is None
    assert set(verdict["shares"].values()) == {None}


def test_the_trainers_own_cpu_is_told_apart_from_its_preparing() -> None:
    """With num_workers=0 the recording has taken the preparing out already: it must not be taken out again."""
    seen = made(workers=0, cores=2, trainer_cpu_s=0.004)
    assert situation_of(seen).now.trainer_cpu_s == pytest.approx(0.004)
    one_more = next(one for one in diagnose(seen).predictions if one.remedy == "num_workers=2")
    assert one_more.why.startswith("the training process prepares every batch itself")


def test_only_a_model_that_fills_the_cores_stalls() -> None:
    """Step seconds per sample are 0.03 / 32: with 1.9 ms of CPU in them both cores are busy, with 0.9 ms one is."""
    filling, single = ({"workers": 1, "cores": 2, "trainer_cpu_s": cpu_s} for cpu_s in (0.0019, 0.0009))
    assert situation_of(made(**filling)).now.stall == {1: 1.0, 2: 0.5}
    assert not situation_of(made(**single)).now.stall
    assert not situation_of(made(**filling, device="cuda:0")).now.stall


def situation_of(seen: Recording) -> Situation:
    at = situation(measure(seen))
    assert at is not None
    return at


def test_other_programs_on_the_cores_are_named() -> None:
    """356 samples/s at 3.6 ms of CPU are 1.3 of the 4 cores; the machine has no free one."""
    found = diagnose(crowded(4.0))
    assert found.bound == "data"
    assert found.measured.machine.others_cores == pytest.approx(2.65, abs=0.02)
    assert any("Other programs took 2.6 of the 4 cores" in sentence for sentence in found.evidence)
    free = diagnose(crowded(3.0))
    assert not free.measured.machine.others_cores and not any("Other programs" in one for one in free.evidence)


def test_intervals_are_wider_beside_other_programs() -> None:
    """By their share of the cores."""
    costs: dict[str, Any] = {"cores": 8, "stages": SMALL, "ceiling": 3000.0}  # the model itself is not short of cores
    alone, beside = diagnose(crowded(6.0, **costs)), diagnose(crowded(8.0, **costs))
    assert alone.measured.now is not None and beside.measured.now is not None
    others = beside.measured.machine.others_cores
    assert beside.measured.now.value == alone.measured.now.value
    assert beside.measured.now.low == pytest.approx(alone.measured.now.low * (1 - others / 8))
    assert any("intervals are wider" in sentence for sentence in beside.evidence)
    lows = {one.remedy: one.low / one.samples_per_s for one in alone.predictions}
    assert all(one.low / one.samples_per_s < lows[one.remedy] for one in beside.predictions)


def test_workers_are_not_blamed_for_cores_that_others_take() -> None:
    """It hardly waits, and cached batches are three times as fast: that was the workers, or it was somebody else."""
    costs: dict[str, Any] = {"wait_s": 0.001, "compute_s": 0.1, "ceiling": 1000.0, "stages": SMALL}
    assert diagnose(made(**costs)).headline == "Data-bound: the workers take the cores that the model needs."
    assert diagnose(crowded(4.0, **costs)).bound == "compute"


def test_what_an_epoch_begins_with_is_said_and_workers_that_stay_save_it() -> None:
    """Fifty steps of 90 ms to an epoch, half a second to start it; a first batch takes one worker 0.1 s."""
    passes = [LoaderPass(epoch=epoch, samples=1600, start_s=0.5, end_s=0.06) for epoch in range(3)]
    seen = made(wait_s=0.06, compute_s=0.03, passes=passes, ceiling=1000.0)
    seen = replace(seen, loaders=[replace(seen.loaders[0], persistent_workers=False)])
    found = diagnose(seen)
    assert found.measured.rates.epoch_start_s == pytest.approx(0.5)
    assert any("Each epoch takes 500 ms to begin and end" in sentence for sentence in found.evidence)
    kept = next(one for one in found.predictions if one.remedy == "persistent_workers=True")
    first_batch_s = 32 * found.measured.workers.alone_s
    assert kept.gain == pytest.approx((50 * 0.09 + 0.5) / (50 * 0.09 + first_batch_s), rel=0.01)
    assert kept.samples_per_s < (found.samples_per_s or 0.0)  # over whole epochs, not between two batches


def test_a_loop_without_training_is_measured_and_said() -> None:
    seen = made()
    seen = replace(seen, steps=[replace(step, phase="other") for step in seen.steps])
    found = diagnose(seen)
    assert found.bound == "data"
    assert any("No training step" in note for note in found.notes)
    ranks = diagnose(replace(seen, compute=Compute(device="cpu", world_size=2)))
    assert any("are ended by no --steps" in note for note in ranks.notes) and len(found.notes) < len(ranks.notes)


def test_ranks_add_up() -> None:
    one = made(compute=Compute(device="cpu", world_size=2))
    twice = replace(one, steps=[replace(step, rank=rank) for step in one.steps for rank in (0, 1)])
    assert diagnose(twice).samples_per_s == pytest.approx(2 * (diagnose(made()).samples_per_s or 0))


@given(
    st.dictionaries(st.sampled_from(sorted(STAGES)), st.floats(0, 1), min_size=1),
    st.floats(0, 1),
    st.floats(1e-4, 1),
    st.floats(0, 1),
    st.integers(0, 8),
)
@example({"read": 5e-324}, 0.0, 1.0, 0.0, 0)  # a tenth of it is 0
def test_fractions_sum_to_one(
    stages: dict[str, float], wait: float, compute: float, copy: float, workers: int
) -> None:
    seen = made(wait_s=wait, compute_s=compute, copy_s=copy, workers=workers, stages=stages or None, steps=12)
    found = diagnose(seen)
    shares, workers = found.measured.trainer.shares, found.measured.workers
    assert sum(vars(shares).values()) == pytest.approx(1.0)
    assert min(vars(shares).values()) >= 0
    assert not workers.stages or sum(workers.stages.values()) == pytest.approx(1.0)
    for _, fractions in workers.each:
        assert not fractions or sum(fractions.values()) == pytest.approx(1.0)


def test_the_record_has_the_promised_keys() -> None:
    seen = rich()
    keys = record_keys(diagnose(seen))
    promised = {"bound", "wait_fraction", "samples_per_s", "ceiling_samples_per_s", "overhead_fraction", "close",
                "shares", "errors", "cause"}  # fmt: skip
    assert promised <= set(keys["verdict"])
    assert set(keys["stages"]) == set(keys["stage_errors"]) == set(STAGES)
    assert set(keys["verdict"]["cause"]) == {"kind", "where", "share", "error", "words", "also"}
    assert sum(keys["stages"].values()) == pytest.approx(1.0)
    assert all(set(STAGES) <= set(worker) for worker in keys["workers"])
    for prediction in keys["predictions"]:
        assert {"remedy", "samples_per_s", "low", "high", "cost", "why"} <= set(prediction)
        assert prediction["low"] <= prediction["samples_per_s"] <= prediction["high"]
    assert keys["lines"][0]["seconds"] == 3.6


def test_break_even_and_disk_of_a_prepared_set() -> None:
    trial = Trial(
        codec="jpeg", size_px=256, samples=200, bytes_per_sample=27_000.0, load_cpu_s_per_sample=0.0003,
        prepare_cpu_s_per_sample=0.004,
    )  # fmt: skip
    found = diagnose(made(cores=4, ceiling=3000.0, trials=[trial], dataset_samples=100_000))
    best = next(p for p in found.predictions if "256 px jpeg" in p.remedy)
    assert best.prepare_s == pytest.approx(100.0)
    assert best.disk_bytes == pytest.approx(2.7e9)
    now, then = 100_000 / (found.samples_per_s or 1), 100_000 / best.samples_per_s
    assert best.break_even_epochs == pytest.approx(100.0 / (now - then))


def test_what_feedlines_layout_gives_the_model_is_in_what_its_loader_gives() -> None:
    """A script that waits a little, and whose model is 1.6 times as fast on batches laid out as feedline's."""
    trial = Trial(codec="jpeg", size_px=160, samples=200, bytes_per_sample=11_000.0, load_cpu_s_per_sample=0.0003)
    seen = made(wait_s=0.01, compute_s=0.1, stages=SMALL, ceiling=322.0, trials=[trial], cores=8)
    cached = next(leg for leg in seen.legs if leg.name == "cached")
    ours = Leg(name="laid_out", samples_per_s=[1.6 * rate for rate in cached.samples_per_s])
    kept = replace(cached, name="kept")
    name = "prepared 160 px jpeg shards, feedline's loader"
    plain = {one.remedy: one for one in diagnose(seen).predictions}[name]
    better = {one.remedy: one for one in diagnose(replace(seen, legs=[*seen.legs, kept, ours])).predictions}[name]
    assert not plain.helps and better.helps
    assert better.gain / plain.gain == pytest.approx(1.6, rel=0.07)


def test_channels_last_is_measured_where_legs_were() -> None:
    seen = made(wait_s=0.001, compute_s=0.1, stages=SMALL, ceiling=322.0)
    ours = Leg(name="laid_out", samples_per_s=[1.3 * rate for rate in seen.legs[0].samples_per_s])
    legs = [*seen.legs, replace(seen.legs[0], name="kept"), ours]
    found = {one.remedy: one for one in diagnose(replace(seen, legs=legs)).predictions}
    assert "1.3× the compute rate, measured" in found["channels_last"].why
    assert "not measured here" in {one.remedy: one for one in diagnose(seen).predictions}["channels_last"].why


@pytest.mark.parametrize(
    ("samples", "rate", "dropped", "told", "limited"),
    [
        (200_000, 100.0, 1.0, "as in a first epoch and all others, the loop runs at 100 samples/s", True),
        (20_000, 100.0, 1.0, "as in a first epoch, the loop runs at 100 samples/s", False),  # memory holds them all
        (200_000, 100.0, 0.3, "", False),  # most files were still in memory
        (200_000, 100.0, None, "", False),
        (200_000, 350.0, 1.0, "", False),  # as fast as ever
    ],
)
def test_the_cold_leg_says_what_storage_gives(
    samples: int, rate: float, dropped: float | None, told: str, limited: bool
) -> None:
    """110 kB a sample at 100 samples/s are 11 MB/s: what memory cannot hold comes no faster, prepared or not."""
    trials = [
        Trial(codec="as-is", loader="feedline", samples=200, load_cpu_s_per_sample=0.0021),
        Trial(codec="raw", size_px=160, samples=200, bytes_per_sample=77_000.0, load_cpu_s_per_sample=0.00002),
        Trial(codec="jpeg", size_px=160, samples=200, bytes_per_sample=11_000.0, load_cpu_s_per_sample=0.0003),
    ]
    seen = made(ceiling=3200.0, dataset_samples=samples, trials=trials)  # 356 samples/s
    cold = Leg(name="cold", samples_per_s=[rate], dropped=dropped)
    found = {one.remedy: one for one in diagnose(replace(seen, legs=[*seen.legs, cold])).predictions}
    assert (told in found["faster storage"].why) if told else ("first epoch" not in found["faster storage"].why)
    raw = found["prepared 160 px raw shards, feedline's loader"]
    assert ("the storage, at the bytes/s" in raw.why) == limited
    assert (raw.samples_per_s < 200) == limited
    assert "the storage" not in found["prepared 160 px jpeg shards, feedline's loader"].why  # 2.2 GB: memory holds it


def test_page_faults_of_a_model_on_the_cpu_have_their_remedy() -> None:
    faulty = made(wait_s=0.001, compute_s=0.1, stages=SMALL)
    compute = replace(faulty.compute, user_cpu_s=6.0, kernel_cpu_s=4.0, page_faults=400_000, faulty_steps=100)
    found = {one.remedy: one for one in diagnose(replace(faulty, compute=compute)).predictions}
    now = diagnose(faulty)
    assert found["freed memory kept"].samples_per_s > 1.2 * (now.samples_per_s or 0.0)
    assert "MALLOC_TRIM_THRESHOLD_" in found["freed memory kept"].command
    assert "freed memory kept" not in {one.remedy for one in now.predictions}


def test_a_model_whose_workers_take_its_cores_is_not_called_the_limit_unless_the_ceiling_says_so() -> None:
    """Two workers that compute beside a model on two cores: the loop hardly waits, and may be far faster without."""
    seen = made(wait_s=0.005, compute_s=0.1, workers=2, cores=2, stages={"decode": 0.005}, trainer_cpu_s=0.003)
    workers = [replace(one, stages_delay_s={name: 0.4 * s for name, s in one.stages.items()}) for one in seen.workers]
    short = replace(seen, workers=workers)
    found = diagnose(short)
    assert found.measured.workers.lack_cores and found.bound is None
    assert "--legs tells how fast it is with data for free" in found.headline
    apart = [Leg(name="cached", samples_per_s=[310.0, 20.0]), Leg(name="normal", samples_per_s=[300.0, 301.0])]
    assert "--legs on a quiet machine tells" in diagnose(replace(short, legs=apart)).headline
    inline = made(wait_s=0.005, compute_s=0.1, workers=0, cores=2, stages={"decode": 0.00015}, trainer_cpu_s=0.003)
    workers = [
        replace(one, stages_delay_s={name: 0.4 * s for name, s in one.stages.items()}) for one in inline.workers
    ]
    assert diagnose(replace(inline, workers=workers)).bound == "compute"
    free = [Leg(name="cached", samples_per_s=[310.0, 312.0, 311.0])]
    assert diagnose(replace(short, legs=free)).bound == "compute"
    assert diagnose(seen).bound == "compute"
