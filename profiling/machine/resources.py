"""What a process tree and its machine use, sampled: CPU, memory, faults, disk, network, pressure, GPUs.

Once or twice a second, from psutil, /proc and the cgroup, by a thread of the watching process; between these readings
it looks at the files that are open (`open_files`). Rates are differences between two readings over the time between
them. What a system does not offer is left out, never 0.
"""

import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from feedline.pipeline.base.process import busy_core_seconds, read_text
from feedline.profiling.machine.nvml import GpuSampler
from feedline.profiling.machine.open_files import OpenFiles
from feedline.profiling.record.recording import Gpu, Series

PERIOD_S = 0.5
BUDGET = 0.003  # of CPU time: a look that took longer (many processes, a slow kernel) is followed by a longer pause …
LONGEST_PERIODS = 4  # … but by no more than so many periods
SHORT_LOOKS = 40  # after these the period doubles
FILES_S, OWN_FILES_S = 0.02, 0.2  # between looks at the files of others, and of this very process
TREE_S = 2.0  # how often new children are looked for; known ones are read every time
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
BLOCK = Path("/sys/block")
NO_DISK = ("loop", "ram", "zram")

Reading = tuple[str, str, str, float]
"""Name, unit, source, value: bytes as they are now; else what a counter shows, to become a rate in that unit."""


class ResourceSampler(threading.Thread):
    """Samples a process, its descendants and the machine until stopped."""

    def __init__(
        self,
        pid: int,
        *,
        origin: float | None = None,
        period_s: float = PERIOD_S,
        scopes: Callable[[Iterable[int]], dict[int, str]] = lambda _: {},
        tell_files: Callable[[dict[str, Any]], None] | None = None,
        gpu: str = "",
    ) -> None:
        """`scopes` names processes (trainer, worker:0 …) by id; the root is the trainer where it says nothing.
        `tell_files` is given the files that the named ones have open, in the journal's words. `gpu`: the UUID of the
        one to look at; "" looks at all."""
        super().__init__(name="feedline-resources", daemon=True)
        self.cpu_s = 0.0
        self.looks = 0
        self._series: dict[tuple[str, str], Series] = {}
        self._adding = threading.Lock()  # held while a look is added to the series: who takes them takes whole looks
        self._origin = time.perf_counter() if origin is None else origin
        self._pid = pid
        self._period_s = period_s
        self._scopes = scopes
        self._files, self._tell_files, self._told_files = OpenFiles(), tell_files, OpenFiles().told
        self._files_s = OWN_FILES_S if pid == os.getpid() else FILES_S
        self._files_due = 0.0
        self._gpus = GpuSampler(only=gpu)
        self._last: dict[tuple[str, str], tuple[float, float]] = {}
        self._processes: dict[int, psutil.Process] = {}
        self._named: dict[int, str] = {}
        self._tree_read = float("-inf")
        self._disks = whole_disks()
        self._stop_asked = threading.Event()

    @property
    def recorded(self) -> list[Series]:
        return list(self._series.values())

    @property
    def gpus(self) -> list[Gpu]:
        return self._gpus.summary()

    @property
    def gpu_note(self) -> str:
        return self._gpus.note

    def stop(self) -> None:
        self._stop_asked.set()
        if self.is_alive():
            self.join(timeout=5)

    def run(self) -> None:
        self._gpus.start()
        pause_s = self._period_s
        while not self._stopped_in(pause_s):
            before_s = time.thread_time()
            self._look(time.perf_counter())
            self.looks += 1
            self.cpu_s = time.thread_time()
            pause_s = min(max(self._period_s, (self.cpu_s - before_s) / BUDGET), LONGEST_PERIODS * self._period_s)
            if self.looks == SHORT_LOOKS:
                self._period_s *= 2
        self._gpus.stop()

    def _stopped_in(self, pause_s: float) -> bool:
        """Whether it was stopped within that time, in which it looks at files."""
        until_s = time.perf_counter() + pause_s
        while self._tell_files and self._named and self._files_due < until_s:
            if self._stop_asked.wait(max(0.0, self._files_due - time.perf_counter())):
                break
            before_s = time.thread_time()
            self._files.look(self._named)
            cost_s = time.thread_time() - before_s
            self._files_due = time.perf_counter() + max(self._files_s, cost_s / BUDGET)
        if self._tell_files and (told := self._files.told) != self._told_files:
            self._tell_files(told)
            self._told_files = told
        return self._stop_asked.wait(max(0.0, until_s - time.perf_counter()))

    def _look(self, now: float) -> None:
        """One reading of everything: each process' numbers are added up by scope."""
        if old := now - self._tree_read > TREE_S:
            self._tree_read = now
            with suppress(psutil.Error):
                root = psutil.Process(self._pid)
                for process in (root, *root.children(recursive=True)):
                    self._processes.setdefault(process.pid, process)
        if old or not self._named:
            self._named = self._scopes(self._processes)
        sums: dict[tuple[str, str, str, str], float] = {}
        for pid, process in list(self._processes.items()):
            scope = self._named.get(pid) or ("trainer" if pid == self._pid else "other")
            try:
                readings = list(self._as_rates(str(pid), now, _of_process(process)))
            except (OSError, IndexError, psutil.NoSuchProcess):  # it has ended
                del self._processes[pid]
                self._last = {key: last for key, last in self._last.items() if key[0] != str(pid)}
                continue
            for name, unit, source, value in readings:
                sums[name, unit, scope, source] = sums.get((name, unit, scope, source), 0.0) + value
        for name, unit, source, value in self._as_rates("host", now, _of_machine(self._disks)):
            sums[name, unit, "host", source] = value
        seen = (*sums.items(), *self._gpus.look(set(self._processes)))
        with self._adding:
            for (name, unit, scope, source), value in seen:
                series = Series(name=name, unit=unit, scope=scope, source=source)
                series = self._series.setdefault((name, scope), series)
                series.t_s.append(round(now - self._origin, 3))
                series.values.append(value if value is None else round(value, 4))

    def _as_rates(self, whose: str, now: float, readings: Iterator[Reading]) -> Iterator[Reading]:
        """Counters as rates; left out at the first reading and when a counter went backwards."""
        for name, unit, source, value in readings:
            if unit == "B":
                yield name, unit, source, value
                continue
            before = self._last.get((whose, name))
            self._last[whose, name] = (now, value)
            if before is not None and now > before[0] and value >= before[1]:
                yield name, unit, source, (value - before[1]) / (now - before[0])


def _of_process(process: psutil.Process) -> Iterator[Reading]:
    """Raises OSError or psutil.NoSuchProcess when it is gone."""
    stat = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()  # proc(5)'s fields 3 and on
    yield "rss_bytes", "B", "/proc/PID/stat", float(int(stat[21]) * PAGE_BYTES)
    yield "cpu_cores", "cores", "/proc/PID/stat", (int(stat[11]) + int(stat[12])) / TICKS_PER_S
    yield "ended_children_cores", "cores", "/proc/PID/stat", (int(stat[13]) + int(stat[14])) / TICKS_PER_S
    yield "major_faults_per_s", "1/s", "/proc/PID/stat", int(stat[9])
    # Some kernels count neither switches nor bytes, and another user's process does not tell what it reads.
    with suppress(psutil.AccessDenied, NotImplementedError):
        switches = process.num_ctx_switches()
        yield "switches_voluntary_per_s", "1/s", "/proc/PID/status", switches.voluntary
        yield "switches_forced_per_s", "1/s", "/proc/PID/status", switches.involuntary
    with suppress(psutil.AccessDenied, OSError, RuntimeError, ValueError):
        io = process.io_counters()
        yield "read_bytes_per_s", "B/s", "/proc/PID/io rchar", io.read_chars
        yield "disk_read_bytes_per_s", "B/s", "/proc/PID/io read_bytes", io.read_bytes
        yield "read_calls_per_s", "1/s", "/proc/PID/io syscr", io.read_count


def whole_disks() -> set[str]:
    """Names of those that lie on no other disk: each byte is counted once."""
    return {
        disk.name
        for disk in BLOCK.glob("*")
        if not disk.name.startswith(NO_DISK) and not any((disk / "slaves").glob("*"))
    }


def _of_machine(disks: set[str]) -> Iterator[Reading]:
    """Of a container where it has figures of its own: seconds in which some task waited, or was held back by a CPU
    quota."""
    yield "memory_available_bytes", "B", "/proc/meminfo", float(psutil.virtual_memory().available)
    if Path("/dev/shm").is_dir():
        yield "shm_bytes", "B", "statvfs /dev/shm", float(shutil.disk_usage("/dev/shm").used)
    yield "cpu_cores", "cores", "/proc/stat", busy_core_seconds()
    if hasattr(times := psutil.cpu_times(), "steal"):
        yield "steal_cores", "cores", "/proc/stat", times.steal
    with suppress(OSError, RuntimeError):
        counters = psutil.disk_io_counters(perdisk=True)
        if whole := [counters[name] for name in counters if name in disks]:
            yield "disk_read_bytes_per_s", "B/s", "/proc/diskstats", sum(disk.read_bytes for disk in whole)
            yield "disk_write_bytes_per_s", "B/s", "/proc/diskstats", sum(disk.write_bytes for disk in whole)
    with suppress(OSError):
        cards = psutil.net_io_counters(pernic=True)
        if outside := [cards[name] for name in cards if name != "lo"]:
            yield "net_receive_bytes_per_s", "B/s", "/proc/net/dev", sum(card.bytes_recv for card in outside)
            yield "net_send_bytes_per_s", "B/s", "/proc/net/dev", sum(card.bytes_sent for card in outside)
    for kind in ("cpu", "io", "memory"):
        text = read_text(f"/sys/fs/cgroup/{kind}.pressure") or read_text(f"/proc/pressure/{kind}")
        if stalled := re.search(r"some .*total=(\d+)", text):
            yield f"psi_{kind}_some", "fraction", f"/proc/pressure/{kind}", int(stalled[1]) / 1e6
    text = read_text("/sys/fs/cgroup/cpu.stat") or read_text("/sys/fs/cgroup/cpu/cpu.stat")
    if throttled := re.search(r"throttled_(usec|time) (\d+)", text):
        yield "cgroup_throttled", "fraction", "cpu.stat", int(throttled[2]) / {"usec": 1e6, "time": 1e9}[throttled[1]]
