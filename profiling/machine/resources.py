"""What a process tree and its machine use, sampled: CPU, memory, faults, disk, network, pressure, GPUs.

Once or twice a second, from /proc, psutil and the cgroup, by a thread of the watching process. Rates are differences
between two readings over the time between them. What a system does not offer is left out, never 0.
"""

import os
import re
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from feedline.profiling.machine.nvml import GpuSampler
from feedline.profiling.record.host import read_text
from feedline.profiling.record.recording import Gpu, Series

PERIOD_S = 0.5
BUDGET = 0.003
"""Of CPU time: a look that took longer (many processes, a slow kernel) is followed by a longer pause …"""
LONGEST_PERIODS = 4  # … but by no more than so many periods
SHORT_LOOKS = 40  # after these the period doubles
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
TREE_S = 2.0  # how often new children are looked for; known ones are read every time
SKIPPED_DISKS = ("loop", "ram", "zram", "dm-", "md")


class SeriesSet:
    """Series by (name, scope), filled as numbers come."""

    def __init__(self, origin: float) -> None:
        self.origin = origin
        self._found: dict[tuple[str, str], Series] = {}

    def add(self, name: str, unit: str, scope: str, source: str, now: float, value: float | None) -> None:
        key = (name, scope)
        if key not in self._found:
            self._found[key] = Series(name=name, unit=unit, scope=scope, source=source)
        self._found[key].t_s.append(round(now - self.origin, 3))
        self._found[key].values.append(value if value is None else round(value, 4))

    def all(self) -> list[Series]:
        return list(self._found.values())


class Rates:
    """Turns counters into rates: None at the first reading and when a counter went backwards."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[float, float]] = {}

    def __call__(self, key: str, now: float, value: float) -> float | None:
        before = self._last.get(key)
        self._last[key] = (now, value)
        if before is None or now <= before[0] or value < before[1]:
            return None
        return (value - before[1]) / (now - before[0])


class ResourceSampler(threading.Thread):
    """Samples a process, its descendants and the machine until stopped."""

    def __init__(
        self,
        pid: int,
        *,
        origin: float | None = None,
        period_s: float = PERIOD_S,
        roles: Callable[[], dict[int, str]] | None = None,
        gpus: GpuSampler | None = None,
    ) -> None:
        """`roles` names processes (trainer, worker:0 …) by id; the root is the trainer where it says nothing."""
        super().__init__(name="feedline-resources", daemon=True)
        self.cpu_s = 0.0
        self.looks = 0
        self.series = SeriesSet(time.perf_counter() if origin is None else origin)
        self._pid = pid
        self._period_s = period_s
        self._roles = roles or dict
        self._gpus = GpuSampler() if gpus is None else gpus
        self._rates = Rates()
        self._known: set[int] = set()
        self._named: dict[int, str] = {}
        self._looked = float("-inf")
        self._stop_asked = threading.Event()

    @property
    def recorded(self) -> list[Series]:
        return self.series.all()

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
        while not self._stop_asked.wait(pause_s):
            self.look()
            self.looks += 1
            before_s, self.cpu_s = self.cpu_s, time.thread_time()
            pause_s = min(max(self._period_s, (self.cpu_s - before_s) / BUDGET), LONGEST_PERIODS * self._period_s)
            if self.looks == SHORT_LOOKS:
                self._period_s *= 2
        self._gpus.stop()

    def look(self) -> None:
        """One reading of everything."""
        now = time.perf_counter()
        self._read_processes(now)
        self._read_machine(now)
        self._gpus.look(self.series, now, self._known)

    # --- processes ----------------------------------------------------------------------------------------

    def _processes(self, now: float) -> set[int]:
        if now - self._looked > TREE_S or not self._known:
            self._looked = now
            self._known |= set(tree(self._pid))
            self._named = self._roles()
        return self._known

    def _read_processes(self, now: float) -> None:
        sums: dict[tuple[str, str, str, str], float] = {}
        for pid in list(self._processes(now)):
            scope = self._named.get(pid) or ("trainer" if pid == self._pid else "other")
            try:
                found = self._read_process(pid, now)
            except (OSError, IndexError):
                self._known.discard(pid)
                continue
            for (name, unit, source), value in found.items():
                key = (name, unit, scope, source)
                sums[key] = sums.get(key, 0.0) + value
        for (name, unit, scope, source), value in sums.items():
            self.series.add(name, unit, scope, source, now, value)

    def _read_process(self, pid: int, now: float) -> dict[tuple[str, str, str], float]:
        """Raises OSError when the process is gone."""
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        status = Path(f"/proc/{pid}/status").read_text()
        counters = {
            ("cpu_cores", "cores", "/proc/PID/stat"): (int(stat[11]) + int(stat[12])) / TICKS_PER_S,
            ("major_faults_per_s", "1/s", "/proc/PID/stat"): int(stat[9]),
            ("switches_voluntary_per_s", "1/s", "/proc/PID/status"): _field(status, "\nvoluntary_ctxt_switches:"),
            ("switches_forced_per_s", "1/s", "/proc/PID/status"): _field(status, "nonvoluntary_ctxt_switches:"),
        }
        io = read_text(f"/proc/{pid}/io")  # another user's process does not tell
        if io:
            counters["read_bytes_per_s", "B/s", "/proc/PID/io rchar"] = _field(io, "rchar:")
            counters["disk_read_bytes_per_s", "B/s", "/proc/PID/io read_bytes"] = _field(io, "read_bytes:")
        rates = {key: self._rates(f"{pid} {key[0]}", now, value) for key, value in counters.items()}
        found = {key: value for key, value in rates.items() if value is not None}
        found["rss_bytes", "B", "/proc/PID/stat"] = float(int(stat[21]) * PAGE_BYTES)
        return found

    # --- the machine --------------------------------------------------------------------------------------

    def _read_machine(self, now: float) -> None:
        def add(name: str, unit: str, source: str, value: float | None) -> None:
            if value is not None:
                self.series.add(name, unit, "host", source, now, value)

        def rate(name: str, unit: str, source: str, value: float) -> None:
            add(name, unit, source, self._rates(name, now, value))

        busy = psutil.cpu_times()
        rate("cpu_cores", "cores", "/proc/stat", sum(busy) - busy.idle - getattr(busy, "iowait", 0.0))
        add("memory_available_bytes", "B", "/proc/meminfo", float(psutil.virtual_memory().available))
        if (disk := disk_bytes()) is not None:
            rate("disk_read_bytes_per_s", "B/s", "/proc/diskstats", disk[0])
            rate("disk_write_bytes_per_s", "B/s", "/proc/diskstats", disk[1])
        if (network := network_bytes()) is not None:
            rate("net_receive_bytes_per_s", "B/s", "/proc/net/dev", network[0])
            rate("net_send_bytes_per_s", "B/s", "/proc/net/dev", network[1])
        for kind in ("cpu", "io", "memory"):
            if (stalled := pressure_us(kind)) is not None:
                per_s = self._rates(f"psi {kind}", now, stalled)
                add(
                    f"psi_{kind}_some",
                    "fraction",
                    f"/proc/pressure/{kind}",
                    per_s / 1e6 if per_s is not None else None,
                )
        if (throttled := throttled_us()) is not None:
            add("cgroup_throttled", "fraction", "cpu.stat", self._rates("throttled", now, throttled / 1e6))
        if Path("/dev/shm").is_dir():
            add("shm_bytes", "B", "statvfs /dev/shm", float(shutil.disk_usage("/dev/shm").used))


def tree(root: int) -> list[int]:
    """A process and its descendants. Empty when it is gone."""
    found, queue = [], [root]
    while queue:
        pid = queue.pop()
        found.append(pid)
        try:
            for task in Path(f"/proc/{pid}/task").iterdir():
                queue += [int(child) for child in (task / "children").read_text().split()]
        except FileNotFoundError:
            if Path(f"/proc/{pid}").exists() or not Path("/proc/self").exists():
                return _tree_by_psutil(root)  # a kernel without /proc/PID/task/TID/children
        except (OSError, ValueError):
            continue
    return found


def _tree_by_psutil(root: int) -> list[int]:
    try:
        return [root, *(child.pid for child in psutil.Process(root).children(recursive=True))]
    except psutil.Error:
        return []


def _field(text: str, name: str) -> int:
    """The number after a field's name in a /proc file; 0 when it is not there."""
    return int(text.partition(name)[2].split(maxsplit=1)[0]) if name in text else 0


def disk_bytes() -> tuple[float, float] | None:
    """Bytes read from and written to whole physical disks since boot."""
    try:
        disks = psutil.disk_io_counters(perdisk=True)
    except (OSError, RuntimeError):
        return None
    whole = [counters for name, counters in disks.items() if _whole_disk(name)]
    return (sum(one.read_bytes for one in whole), sum(one.write_bytes for one in whole)) if whole else None


def _whole_disk(name: str) -> bool:
    return not name.startswith(SKIPPED_DISKS) and not re.fullmatch(r"(sd|vd|xvd|hd)[a-z]+\d+|nvme\d+n\d+p\d+", name)


def network_bytes() -> tuple[float, float] | None:
    try:
        cards = {name: one for name, one in psutil.net_io_counters(pernic=True).items() if name != "lo"}
    except OSError:
        return None
    if not cards:
        return None
    return sum(one.bytes_recv for one in cards.values()), sum(one.bytes_sent for one in cards.values())


def pressure_us(kind: str) -> float | None:
    """Microseconds in which some task waited for `kind`; a container's own figure where there is one."""
    text = read_text(f"/sys/fs/cgroup/{kind}.pressure") or read_text(f"/proc/pressure/{kind}")
    found = re.search(r"some .*total=(\d+)", text)
    return float(found.group(1)) if found else None


def throttled_us() -> float | None:
    """Microseconds this cgroup was held back by its CPU quota; None where there is no quota to count."""
    text = read_text("/sys/fs/cgroup/cpu.stat") or read_text("/sys/fs/cgroup/cpu/cpu.stat")
    found = re.search(r"throttled_usec (\d+)", text)
    if found:
        return float(found.group(1))
    found = re.search(r"throttled_time (\d+)", text)
    return float(found.group(1)) / 1e3 if found else None
