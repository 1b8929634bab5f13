"""Remedies for reads: what the storage gives to more of them at once, to shorter ones, and in sequence."""

from dataclasses import replace

import pytest

from feedline.profiling.explain.measure.situation import measure
from feedline.profiling.explain.predict import prediction_for
from tests.profiling.remedy_runs import READS, TRIALS, found_in, of_family, reading, with_loader, with_workers

IN_SEQUENCE = replace(READS, sequential_bytes_per_s=400e6)


def rate_with(workers: int, **changes: object) -> float:
    found = prediction_for(found_in(reading(**changes)), num_workers=workers)  # pyright: ignore[reportArgumentType]
    assert found is not None
    return found.samples_per_s


def test_more_workers_gain_while_the_storage_gives_more() -> None:
    now = measure(reading()).rates.now
    assert now is not None
    assert rate_with(4, cores=8) == pytest.approx(2 * now.value, rel=0.1)
    flat = replace(READS, random_bytes_per_s=[24e6] * 4, latency_s=0.0045)  # one head: readers queue
    assert rate_with(4, cores=8, reads=flat) < 1.2 * now.value


def test_more_workers_of_a_loader_that_reads_ahead_wait_for_the_same_storage() -> None:
    """Unless its reads take what they take one by one: then it does not."""
    now = measure(reading("feedline")).rates.now
    assert now is not None
    assert rate_with(4, kind="feedline", cores=8) == pytest.approx(2 * now.value, rel=0.1)
    busy = replace(READS, random_bytes_per_s=[rate * 10 for rate in READS.random_bytes_per_s])
    assert rate_with(4, kind="feedline", cores=8, reads=busy) < 1.2 * now.value


def test_a_batchs_reads_at_once_take_the_waiting_away_up_to_what_storage_gives() -> None:
    (one,) = of_family(reading(), "ahead")
    assert one.helps and "__getitems__" in one.command and "threads" in one.needs
    assert one.samples_per_s == pytest.approx(155e6 / 110e3, rel=0.15)  # between 16 and 64 at once
    slow = replace(READS, random_bytes_per_s=[12e6, 12.5e6, 12.5e6, 12.5e6])
    assert of_family(reading(reads=slow), "ahead")[0].samples_per_s < 300


@pytest.mark.parametrize("kind", ["webdataset", "feedline", "unwatched", "fastai", "torchdata.nodes"])
def test_it_is_for_map_style_datasets(kind: str) -> None:
    assert not of_family(reading(kind), "ahead")


def test_nothing_is_predicted_from_reads_that_were_not_tried() -> None:
    for seen in (reading(reads=None), reading("feedline", reads=None)):
        assert not of_family(seen, "ahead") and not of_family(seen, "window")


def test_shard_windows_where_sequence_is_faster() -> None:
    (one,) = of_family(reading("feedline", reads=IN_SEQUENCE), "window")
    assert one.helps and "window_shards" in one.command and "feedline doctor" in one.command and one.changes
    assert one.gain > 3
    even = replace(READS, sequential_bytes_per_s=170e6)
    (one,) = of_family(reading("feedline", reads=even), "window")
    assert one.vain and "nearly as fast" in one.why
    assert not of_family(reading(reads=IN_SEQUENCE), "window")


def test_smaller_samples_are_as_fast_as_the_storage_brings_them() -> None:
    """planes of 9 kB here; the cores would do 5,000."""
    slow = replace(READS, random_bytes_per_s=[12e6, 13e6, 13e6, 13e6])
    seen = with_loader(replace(reading(reads=slow, blocked_s=0.017, cores=8, ceiling=9e3), trials=TRIALS))
    found = prediction_for(found_in(seen), codec="planes", size=256, loader="feedline", num_workers=2)
    assert found is not None and found.samples_per_s == pytest.approx(13e6 / 9e3, rel=0.2)
    assert "the storage" in found.why


def test_with_a_local_copy_a_sample_takes_what_it_computes() -> None:
    """A millisecond of 1.1 ms of CPU time. The longer it waits now, the less looks tell of what it does between,
    and the more its CPU time does, of which 0.62 is typical."""
    found = [of_family(reading(blocked_s=blocked_s, cores=8, ceiling=9e3), "storage")[0].samples_per_s
             for blocked_s in (0.002, 0.008, 0.03)]  # fmt: skip
    assert found[0] == pytest.approx(2 / 0.001, rel=0.02)
    assert found == sorted(found) and found[-1] < 2 / 0.00068
    seen = reading(cores=8, ceiling=9e3)  # looks that find nothing but reads
    stages = {**seen.workers[0].stages, "read": sum(seen.workers[0].stages.values())}
    (one,) = of_family(with_workers(seen, stages={**stages, "decode": 0.0}), "storage")
    assert one.samples_per_s == pytest.approx(2 / 0.00055, rel=0.02)  # half of its CPU time, at least
