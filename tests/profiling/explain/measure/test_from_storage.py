"""Storage is claimed where the time in reads or the disks' account bears it, and nowhere else."""

from dataclasses import replace

import pytest

from feedline.profiling.explain.measure.from_storage import Source, Storage
from feedline.profiling.explain.measure.situation import measure
from feedline.profiling.explain.verdict import diagnose, record_keys
from feedline.profiling.record.measurements import Leg
from feedline.profiling.record.recording import Recording
from tests.profiling.remedy_runs import READS, reading, with_workers

FAST = replace(READS, random_bytes_per_s=[5e10, 6e10, 6e10, 6e10])
WARM = reading(blocked_s=0.00001, from_disk=0.0)


def storage_of(seen: Recording) -> Storage:
    return measure(seen).storage


@pytest.mark.parametrize(
    ("blocked_s", "from_disk", "source", "limits"),
    [
        (0.008, 1.0, "storage", True),
        (0.008, 0.0, "storage", True),  # of a file system that is on no disk here
        (0.008, None, "storage", True),
        (0.0001, 0.9, "storage", False),  # a disk that hardly lets wait
        (0.00001, 0.0, "memory", False),
        (0.00001, None, None, False),
        (0.0001, 0.3, None, False),
    ],
)
def test_where_the_bytes_came_from(
    blocked_s: float, from_disk: float | None, source: Source | None, limits: bool
) -> None:
    found = storage_of(reading(blocked_s=blocked_s, from_disk=from_disk))
    assert (found.source, found.limits) == (source, limits)


def test_reading_that_computes_is_no_storage() -> None:
    """Decompressing in `read`, on a core."""
    seen = with_workers(reading(from_disk=0.0), stages_cpu_s={"read": 1e3, "decode": 1.0})
    assert storage_of(seen).blocked_s == 0.0 and not storage_of(seen).limits
    assert record_keys(diagnose(seen))["storage"]["limits"] is False


def test_reading_that_mostly_computes_is_not_limited_by_storage() -> None:
    """Decompression behind every read that has to wait a little."""
    seen = reading(from_disk=0.0)
    seconds = seen.workers[0].stages["read"]
    found = storage_of(with_workers(seen, stages_cpu_s={"read": 0.6 * seconds, "decode": 1.0}))
    assert found.leads and found.source == "storage" and not found.limits


def test_the_record_holds_what_shows_it() -> None:
    seen = reading()
    found, now = record_keys(diagnose(seen))["storage"], measure(seen).rates.now
    assert now is not None and found["limits"] is True and found["source"] == "storage"
    assert found["blocked_share"] == pytest.approx(0.008 / 0.0091, rel=0.01)
    assert found["bytes_per_s"] == pytest.approx(now.value * 110e3)
    assert found["reads_per_s"] == pytest.approx(now.value * 2)
    assert found["from_disk"] == 1.0 and found["gives"]["at_once"] == [1, 4, 16, 64] and found["cold"] is None


def test_the_verdict_says_so_and_stays_data() -> None:
    told = diagnose(reading())
    assert told.bound == "data" and told.cause.kind == "read"
    one = next(words for words in told.evidence if words.startswith("Storage is what it waits for"))
    assert "the workers are blocked in reads 88 %" in one and "kB/s" not in one and "MB/s" in one and "reads/s" in one
    assert any("160 MB/s to 64" in words for words in told.evidence)
    assert not any("torage" in words for words in diagnose(WARM).evidence if "first epoch" not in words)


def test_reads_of_another_speed_than_the_runs_are_of_no_use() -> None:
    """Another machine's cache had them afterwards, or others read beside the run."""
    slow = replace(READS, random_bytes_per_s=[rate / 10 for rate in READS.random_bytes_per_s])
    for reads in (slow, replace(READS, cold=0.2), replace(READS, cold=None)):
        assert storage_of(reading(reads=reads)).reads is None
    assert any("is not known" in words for words in diagnose(reading(reads=slow)).evidence)


def test_reads_that_wait_once_a_call_are_of_the_storage_that_was_tried() -> None:
    """A file system that looks names up, and reads no further ahead than it must: 25 ms where one request takes 9."""
    seen = reading(blocked_s=0.025)
    assert storage_of(replace(seen, costs=replace(seen.costs, read_calls=5.5))).reads is not None
    assert storage_of(replace(seen, costs=replace(seen.costs, read_calls=1.0))).reads is None


def test_reads_from_memory_through_a_slow_server_are_no_reads_from_storage() -> None:
    """Opening a file asks the server, whatever is in memory: 1.4 ms, where a read from it takes 9."""
    seen = reading(blocked_s=0.0003, from_disk=0.0)
    assert storage_of(seen).share > 0.2
    assert storage_of(seen).source == "memory"
    for other in (replace(seen, reads=None), replace(seen, reads=FAST), reading(blocked_s=0.003, from_disk=0.0)):
        assert storage_of(other).source == "storage"


def test_a_run_from_memory_says_what_a_first_epoch_would_be() -> None:
    told = diagnose(WARM)
    assert told.recording.costs.device_bytes == 0.0
    found = record_keys(told)["storage"]
    assert found["source"] == "memory" and found["limits"] is False and found["cold"]["by"] == "reads"
    cold = measure(reading(blocked_s=READS.read_s(2))).rates.now
    assert cold is not None and found["cold"]["low"] < cold.value < found["cold"]["high"]
    assert any("came from memory: a first epoch, from storage, runs at" in words for words in told.evidence)


def test_a_first_epoch_that_nobody_knows_is_not_predicted() -> None:
    long = replace(READS, sequential_bytes_per_s=400e6)  # in which order such files are read cannot be seen
    for reads in (None, long):
        told = diagnose(replace(WARM, reads=reads))
        assert record_keys(told)["storage"]["cold"] is None
        assert any("may be slower" in words for words in told.evidence)
    assert any("no slower" in words for words in diagnose(replace(WARM, reads=FAST)).evidence)


def test_a_first_epoch_waits_once_a_sample_at_least_and_once_a_call_at_most() -> None:
    once, often = (measure(reading(blocked_s=n * READS.read_s(2))).rates.now for n in (1, 7))
    calls = replace(WARM, costs=replace(WARM.costs, read_calls=6.0))
    found = record_keys(diagnose(calls))["storage"]["cold"]
    assert once and often and found["low"] < 1.1 * often.value < found["samples_per_s"] < once.value < found["high"]


def test_a_cold_leg_is_better_than_a_prediction() -> None:
    leg = Leg(name="cold", samples_per_s=[100.0], dropped=1.0)
    found = record_keys(diagnose(replace(WARM, legs=[leg])))["storage"]["cold"]
    assert (found["by"], found["samples_per_s"]) == ("leg", 100.0)


def test_tars_that_are_read_in_sequence_share_its_bandwidth() -> None:
    reads = replace(READS, sequential_bytes_per_s=50e6)
    found = storage_of(reading("webdataset", blocked_s=0.00001, from_disk=0.0, reads=reads))
    assert found.cold_s == pytest.approx(2 * 110e3 / 50e6)
