"""What a process may use and how it ends: cores, torchrun's numbers, malloc's memory, CPU clocks, its parent.

A training step on the CPU allocates and frees the same activations every time. glibc's malloc gives large blocks and
the heap's free end back to the kernel at once, so each step takes thousands of page faults to get zeroed pages again:
a quarter of the small CNN's step, and more than half of MobileNetV2's at 224 px (benchmarks/NOTES.md).
"""

import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Generator, Sequence, Set
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

from feedline.pipeline.base.errors import UsageError

if TYPE_CHECKING:
    import subprocess

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Parameters of mallopt(3)."""
KEPT_BYTES = 1 << 30
OLD_MOST_BYTES = 32 << 20  # the most that a glibc before 2.36 may take for the second of them
ENVIRONMENT = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES", "LD_PRELOAD")
_PR_SET_PDEATHSIG = 1
MOST_OPEN_FILES = 65_536
ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS", "BLIS_NUM_THREADS"), "1"
)
"""A worker per core: a numeric library that starts a thread per core in each of them only makes them queue."""


def usable_cores() -> int:
    """Cores this process may run on: affinity and the cgroup's CPU quota, whichever is smaller; at least 1."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    quota = cgroup_cores()
    return max(1, min(allowed, int(quota))) if quota else allowed


def cgroup_cores() -> float | None:
    """The CPU quota in cores, the least that holds for this process; None when there is none."""
    quotas: list[float] = []
    for folder in cgroup_folders("cpu"):
        quota, _, period = read_text(f"{folder}/cpu.max").partition(" ")
        if not period:
            quota, period = (read_text(f"{folder}/cpu.cfs_{what}_us") for what in ("quota", "period"))
        if quota.isdigit() and period.isdigit():  # neither "max" nor -1
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def cgroup_memory_bytes() -> int | None:
    """The memory limit of the control group, page cache included, the least that holds; None when there is none."""
    names = ("memory.max", "memory.limit_in_bytes")
    limits = [read_text(f"{folder}/{name}") for folder in cgroup_folders("memory") for name in names]
    return min((int(limit) for limit in limits if limit.isdigit() and int(limit) < 1 << 60), default=None)


def usable_memory_bytes() -> int:
    """The machine's memory, or what the control group allows of it."""
    return min(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), cgroup_memory_bytes() or 1 << 62)


def cgroup_folders(controller: str, root: str = "/sys/fs/cgroup") -> list[Path]:
    """Of this process's control group and of those above it, as far as they are shown here; v2's and v1's."""
    folders: list[Path] = []
    for line in read_text("/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            top = Path(root, controller if controllers else "")
            own = top / path.lstrip("/")
            folders += [folder for folder in (own, *own.parents) if folder.is_relative_to(top)]
    return folders


def open_files_limit() -> int:
    """Descriptors that this process may have."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return limit if 0 <= limit < MOST_OPEN_FILES else MOST_OPEN_FILES


def allow_open_files() -> None:
    """As many as its user may, up to MOST_OPEN_FILES: the usual limit, 1,024, is for programs that call select(2)."""
    limit, top = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_OPEN_FILES if top == resource.RLIM_INFINITY else min(MOST_OPEN_FILES, top)
    if 0 <= limit < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, top))


def read_text(path: str) -> str:
    """A file of the kernel's, without white space around it; empty where it cannot be read."""
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def from_environment(name: str, default: int) -> int:
    """What torchrun sets, as a number. Raises UsageError for anything else."""
    text = os.environ.get(name, "")
    try:
        return int(text) if text else default
    except ValueError as error:
        raise UsageError(f"{name}={text} in the environment is no number: unset it or use torchrun") from error


@contextmanager
def signals_held() -> Generator[None]:
    """Ctrl-C and its like wait until the block has ended. In the main thread; no other one hears them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []
    kinds = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {kind: signal.signal(kind, lambda number, _: arrived.append(number)) for kind in kinds}
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, signal.SIG_DFL if handler is None else handler)
        for number in arrived[:1]:
            signal.raise_signal(number)


def start_python(
    module: str, arguments: Sequence[str], descriptors: Sequence[int], stderr: IO[bytes] | None = None,
    blocked: Set[signal.Signals] = frozenset({signal.SIGINT}),
) -> "subprocess.Popen[bytes]":  # fmt: skip
    """A fresh interpreter that runs a module of ours, with these descriptors; it imports what we can import, and its
    numeric libraries have one thread. A Ctrl-C meanwhile comes to us afterwards: the child has it, and what else is
    `blocked`, blocked until it says what it makes of it. Its stdin is empty."""
    import subprocess  # here: what only asks for its cores starts 5 ms sooner

    command = [sys.executable, "-P", "-m", module, *arguments]
    path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
    environment = {**os.environ, **ONE_THREAD, "PYTHONPATH": path}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
    try:
        return subprocess.Popen(
            command, env=environment, pass_fds=descriptors, stdin=subprocess.DEVNULL, stderr=stderr
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def how_it_ended(status: int) -> str:
    """A process's `returncode` in words."""
    if status >= 0:
        return f"ended with status {status}"
    name = signal.Signals(-status).name if -status in set(signal.Signals) else -status
    return f"was killed by {name}{', perhaps for want of memory,' if status == -signal.SIGKILL else ''}"


def wait_or_kill(process: "subprocess.Popen[bytes]", patience_s: float) -> None:
    """Until it has ended; where that takes longer than our patience it is killed."""
    import subprocess  # here: as in `start_python`

    try:
        process.wait(patience_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def die_with(parent: int, number: int = signal.SIGKILL) -> None:
    """The kernel sends this process that signal when the thread that started it ends (Linux; elsewhere nothing).

    Where the parent had died before the kernel was asked, we send it ourselves.
    """
    import ctypes  # here and below: what only asks for its cores starts sooner

    with suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(number))
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


def is_alive(pid: int) -> bool:
    """Whether a process of this number exists on this host, whoever owns it."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    return True


def cpu_seconds(pid: int | None = None) -> float:
    """User and system time of a process (this one unless given); 0 when it is gone."""
    import psutil  # here: a loader's worker never asks, and starts 10 ms sooner

    with suppress(psutil.Error):
        return sum(psutil.Process(pid).cpu_times()[:2])
    return 0.0


def busy_core_seconds() -> float:
    """Of all cores of the machine; a guest's time is in that of its host's process."""
    import psutil

    spent = psutil.cpu_times()
    return spent.user + spent.nice + spent.system + getattr(spent, "irq", 0.0) + getattr(spent, "softirq", 0.0)


def children_cpu_seconds() -> float:
    """User and system time of all descendants of this process, those that have ended and been waited for included."""
    import psutil

    own = psutil.Process()
    seconds = sum(own.cpu_times()[2:4])
    for child in own.children(recursive=True):
        with suppress(psutil.Error):
            seconds += sum(child.cpu_times()[:4])
    return seconds


class CpuClocks(NamedTuple):
    """Seconds that count up, or what went by between two readings."""

    own_s: float  # of this process, all its threads
    children_s: float  # of its descendants, ended ones included
    busy_s: float  # of all cores of the machine
    clock_s: float

    @classmethod
    def now(cls) -> "CpuClocks":
        return cls(time.process_time(), children_cpu_seconds(), busy_core_seconds(), time.perf_counter())

    def since(self, before: "CpuClocks") -> "CpuClocks":
        return CpuClocks(*(now_s - then_s for now_s, then_s in zip(self, before, strict=True)))

    @property
    def others_cores(self) -> float:
        """How many cores all other programs used meanwhile."""
        return max(0.0, (self.busy_s - self.own_s - self.children_s) / self.clock_s)


def keep_freed_memory(most_bytes: int = KEPT_BYTES) -> bool:
    """For the whole process and the rest of its life. The process stays as large as its largest step made it.

    Blocks over `most_bytes` still come from the kernel and go back to it, and so does what is free at the heap's end
    beyond that. Returns whether malloc was told. It is not where there is no glibc, nor where its user has chosen:
    mallopt's own environment variables or another allocator (`LD_PRELOAD`) are left alone.
    """
    if not sys.platform.startswith("linux") or any(os.environ.get(name) for name in ENVIRONMENT):
        return False
    import ctypes

    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # musl has none
        return False
    mapped = (most_bytes, min(most_bytes, OLD_MOST_BYTES))
    return bool(mallopt(M_TRIM_THRESHOLD, most_bytes)) and any(mallopt(M_MMAP_THRESHOLD, most) for most in mapped)
