"""What the kernel says of a thread, against threads that are known to sleep, to wait, to read, to compute."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from feedline.profiling.watch import evidence
from feedline.profiling.watch.evidence import BLOCKED_IN, LOCK, READ, SLEEP, WAIT, ThreadEvidence

pytestmark = pytest.mark.skipif(not BLOCKED_IN or not Path("/proc/self/syscall").exists(), reason="no such kernel")
LOOKS = 20


def observed(work: Callable[[threading.Event], object]) -> tuple[set[str | None], float, float]:
    """What it is blocked in, its share of CPU time and of waiting for a core."""
    over = threading.Event()
    thread = threading.Thread(target=work, args=(over,), daemon=True)
    thread.start()
    seen = ThreadEvidence(thread.native_id)
    time.sleep(0.05)
    began, kinds = time.perf_counter(), set[str | None]()
    seen.spent()
    for _ in range(LOOKS):
        time.sleep(0.01)
        kinds.add(seen.blocked_in())
    spent, seconds = seen.spent(), time.perf_counter() - began
    over.set()
    return kinds, (spent.cpu_s or 0.0) / seconds, (spent.delay_s or 0.0) / seconds


def test_a_sleep_a_lock_and_a_pipe_are_told_apart() -> None:
    held = threading.Lock()
    held.acquire()
    reading, writing = os.pipe()
    blocked = {
        SLEEP: lambda over: time.sleep(1.0),
        LOCK: lambda over: held.acquire(timeout=1.0),
        WAIT: lambda over: os.read(reading, 1),
    }
    for kind, work in blocked.items():
        kinds, cpu, delay = observed(work)
        assert kinds == {kind}
        assert cpu + delay < 0.2
    os.write(writing, b"x")
    held.release()


def test_waiting_for_a_file_is_reading(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    kinds, cpu, _ = observed(lambda over: os.open(tmp_path / "fifo", os.O_RDONLY))
    assert (kinds, cpu < 0.2) == ({READ}, True)
    os.close(os.open(tmp_path / "fifo", os.O_WRONLY))


def test_a_process_and_a_full_pipe_are_waited_for_too() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1)"])
    reading, writing = os.pipe()
    for work in (lambda over: child.wait(), lambda over: os.write(writing, bytes(1 << 20))):
        kinds, cpu, _ = observed(work)
        assert (kinds, cpu < 0.2) == ({WAIT}, True)
    os.set_blocking(reading, False)
    with pytest.raises(BlockingIOError):
        while True:
            os.read(reading, 1 << 20)
            time.sleep(0.01)


def test_of_a_thread_that_has_ended_nothing_is_known() -> None:
    ended = threading.Thread(target=time.sleep, args=(0.01,))
    ended.start()
    ended.join()
    time.sleep(0.1)
    seen = ThreadEvidence(ended.native_id)
    assert seen.spent() == (None, None)
    assert seen.blocked_in() is None


def test_threads_that_fight_for_a_core_are_known_by_their_delay() -> None:
    """Two processes' worth of work on one core: each has it for half of the time."""
    core = {min(os.sched_getaffinity(0))}

    def burn(over: threading.Event) -> None:
        os.sched_setaffinity(0, core)
        data = bytes(1 << 20)
        while not over.is_set():
            sum(data.count(b"x") for _ in range(8))  # bytes.count holds the lock: the other thread wants a core too

    child = os.fork()
    if not child:
        os.sched_setaffinity(0, core)
        end = time.monotonic() + 20
        while time.monotonic() < end:
            pass
        os._exit(0)
    try:
        _, cpu, delay = observed(burn)
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
    assert delay > 0.15
    assert cpu < 0.85


def test_where_the_kernel_does_not_tell_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "SCHEDSTAT", "nowhere")
    seen = ThreadEvidence(threading.get_native_id())
    assert seen.spent().delay_s is None
    assert evidence.run_queue_delay_s(os.getpid()) is None
