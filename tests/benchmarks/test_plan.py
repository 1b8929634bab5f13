"""Plans: the bound is the smallest limit, needs follow from it, nothing overflows at billions."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.benchmarks.plan import HEADROOM, PlanInputs, make_plan
from feedline.pipeline.base.errors import UsageError

IMAGENET = PlanInputs(
    images=1_281_167, gpus=4, gpu_samples_per_s=2500, cores=32, bandwidth_bytes_per_s=2e9, load_cpu_s=300e-6,
    sample_bytes=29e3, prepare_cpu_s=2e-3, original_bytes=110e3,
)  # fmt: skip


def test_imagenet_on_four_gpus() -> None:
    plan = make_plan(IMAGENET)
    assert plan.bound == "gpus" and plan.samples_per_s == 10_000
    assert plan.epoch_s == pytest.approx(128.1, abs=0.1)
    assert plan.cores_needed == 4  # 10,000 × 300 µs / 0.85
    assert plan.next_bound == "storage"
    assert plan.prepare_s == pytest.approx(89, abs=1) and plan.prepare_bound == "storage"
    assert plan.shards == 512 and plan.shard_bytes == pytest.approx(1_281_167 * 29e3 / 512)  # as prepare has it


def test_too_few_cores_are_the_bound_and_said_to_be() -> None:
    plan = make_plan(replace(IMAGENET, cores=2))
    assert plan.bound == "cores" and plan.samples_per_s == pytest.approx(HEADROOM * 2 / 300e-6)
    assert make_plan(replace(IMAGENET, cores=plan.cores_needed)).bound != "cores"


@pytest.mark.parametrize(
    "name", ["gpu_samples_per_s", "load_cpu_s", "bandwidth_bytes_per_s", "prepare_cpu_s", "epochs"]
)
def test_what_cannot_be_is_refused(name: str) -> None:
    for value in (float("inf"), float("nan"), 1e300, -3, 0):
        with pytest.raises(UsageError, match=name.replace("_", "-")):
            replace(IMAGENET, **{name: value})


def test_costs_known_from_a_small_job_only_are_said_to_be() -> None:
    for originals, said in ((2_000, True), (50_000, False), (None, False)):
        plan = make_plan(replace(IMAGENET, prepared_originals=originals))
        assert any("too much" in one for one in plan.assumptions) == said


def test_random_reads_take_the_picture_alone() -> None:
    """And reads in sequence its tar header and label as well."""
    given = replace(IMAGENET, bandwidth_bytes_per_s=58e6, picture_bytes=14.5e3)
    assert make_plan(given).limits["storage"] == pytest.approx(2000)
    plan = make_plan(replace(given, random_bytes_per_s=58e6))
    assert plan.limits["storage"] == pytest.approx(4000) and plan.dataset_bytes == make_plan(given).dataset_bytes
    assert any("29.0 kB (its picture 14.5 kB)" in words for words in plan.assumptions)


def test_random_reads_limit_the_rate_and_shard_windows_lift_it() -> None:
    slow = replace(IMAGENET, random_bytes_per_s=58e6, latency_s=0.02)
    plan = make_plan(slow)
    assert plan.bound == "storage" and plan.samples_per_s == pytest.approx(2000)
    assert plan.window_samples_per_s == 10_000 and plan.next_bound == "gpus"
    assert plan.reads_at_once == 40  # 2,000 reads/s of 20 ms
    assert make_plan(replace(slow, bandwidth_bytes_per_s=116e6)).window_samples_per_s == pytest.approx(4000)
    assert make_plan(replace(slow, bandwidth_bytes_per_s=None)).window_samples_per_s is None
    assert make_plan(IMAGENET).window_samples_per_s is None and make_plan(IMAGENET).reads_at_once is None
    assert make_plan(replace(IMAGENET, latency_s=0.0)).reads_at_once == 1


@given(
    images=st.integers(1, 10**11), gpus=st.integers(1, 4096), cores=st.integers(1, 10**5),
    load_us=st.floats(1, 1e5), kilobytes=st.floats(0.1, 1e5),
)  # fmt: skip
def test_any_scale(images: int, gpus: int, cores: int, load_us: float, kilobytes: float) -> None:
    inputs = replace(
        IMAGENET, images=images, gpus=gpus, cores=cores, load_cpu_s=load_us / 1e6, sample_bytes=kilobytes * 1e3
    )
    plan = make_plan(inputs)
    assert plan.samples_per_s == min(plan.limits.values()) and plan.epoch_s > 0
    assert 1 <= plan.shards <= images
    enough = replace(inputs, cores=plan.cores_needed)
    assert make_plan(enough).limits["cores"] >= plan.limits["gpus"] * 0.999


@pytest.mark.parametrize("change", [{"images": 0}, {"cores": 0}, {"load_cpu_s": 0.0}, {"core_speed": -1.0}])
def test_nonsense_is_refused(change: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        replace(IMAGENET, **change)  # pyright: ignore[reportArgumentType]
