"""What the sampler takes from the machine's counters."""

import os
import time
from pathlib import Path
from statistics import median
from types import SimpleNamespace

import pytest

from feedline.profiling.machine import resources
from feedline.profiling.machine.resources import ResourceSampler


def test_each_byte_of_a_disk_is_counted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counters know partitions and what lies on other disks, too: 1 MB/s on each of them here."""
    for name in ("mmcblk0", "nvme0n1", "dm-0", "zram0", "loop0"):
        (tmp_path / name / "slaves").mkdir(parents=True)
    (tmp_path / "dm-0" / "slaves" / "nvme0n1p2").touch()
    names = ("mmcblk0", "mmcblk0p1", "mmcblk0p2", "nvme0n1", "nvme0n1p2", "dm-0", "zram0", "loop0")

    def counters(**_: object) -> dict[str, SimpleNamespace]:
        done = 1e6 * time.perf_counter()
        return {name: SimpleNamespace(read_bytes=done, write_bytes=0) for name in names}

    monkeypatch.setattr(resources, "BLOCK", tmp_path)
    monkeypatch.setattr("psutil.disk_io_counters", counters)
    sampler = ResourceSampler(os.getpid(), period_s=0.05)
    sampler.start()
    deadline = time.monotonic() + 60
    while not (rates := rates_of(sampler)) or len(rates) < 9:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    sampler.stop()
    assert median(rates) == pytest.approx(2e6, rel=0.3)


def rates_of(sampler: ResourceSampler) -> list[float]:
    read = [one for one in sampler.recorded if (one.name, one.scope) == ("disk_read_bytes_per_s", "host")]
    return [value for one in read for value in one.values if value is not None]
