"""Limits of the process's own control group and of all above it, in both versions of the kernel's interface."""

import resource
from pathlib import Path

import pytest

from feedline.pipeline.base import process


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tree of control groups; this process is in a/b of v2 and of v1's controllers."""
    own = tmp_path / "of-this-process"
    own.write_text("5:memory:/a/b\n3:cpu,cpuacct:/a/b\n1:name=systemd:/x\n0::/a/b\n")
    for top in ("", "cpu", "memory"):
        (tmp_path / "groups" / top / "a" / "b").mkdir(parents=True)
    read, folders, root = process.read_text, process.cgroup_folders, str(tmp_path / "groups")
    monkeypatch.setattr(process, "read_text", lambda path: read(str(own) if path == "/proc/self/cgroup" else path))
    monkeypatch.setattr(process, "cgroup_folders", lambda controller: folders(controller, root))
    return tmp_path / "groups"


def test_without_a_limit_there_is_none(groups: Path) -> None:
    (groups / "a" / "cpu.max").write_text("max 100000\n")
    (groups / "memory" / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    assert process.cgroup_cores() is None and process.cgroup_memory_bytes() is None


def test_the_least_of_all_above_holds(groups: Path) -> None:
    (groups / "a" / "b" / "cpu.max").write_text("400000 100000\n")
    (groups / "a" / "cpu.max").write_text("150000 100000\n")
    assert process.cgroup_cores() == 1.5
    assert process.usable_cores() == 1
    (groups / "a" / "b" / "memory.max").write_text("4294967296\n")
    (groups / "a" / "memory.max").write_text("1073741824\n")
    assert process.cgroup_memory_bytes() == process.usable_memory_bytes() == 1 << 30


def test_the_first_version_is_read_too(groups: Path) -> None:
    (groups / "cpu" / "a" / "b" / "cpu.cfs_quota_us").write_text("-1\n")
    (groups / "cpu" / "a" / "b" / "cpu.cfs_period_us").write_text("100000\n")
    assert process.cgroup_cores() is None
    (groups / "cpu" / "a" / "cpu.cfs_quota_us").write_text("250000\n")
    (groups / "cpu" / "a" / "cpu.cfs_period_us").write_text("100000\n")
    assert process.cgroup_cores() == 2.5
    (groups / "memory" / "a" / "memory.limit_in_bytes").write_text("2147483648\n")
    assert process.cgroup_memory_bytes() == 2 << 30


@pytest.mark.parametrize(
    ("before", "allowed"), [((1024, 4096), 4096), ((1024, 1 << 20), 65_536), ((1024, -1), 65_536), ((-1, -1), None)]
)
def test_as_many_open_files_as_may_be(
    before: tuple[int, int], allowed: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: before)
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: asked.append(limits))
    process.allow_open_files()
    assert asked == ([(allowed, before[1])] if allowed else [])
    assert process.open_files_limit() == (65_536 if before[0] < 0 else 1024)
