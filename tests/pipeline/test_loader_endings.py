"""However a script ends, its loader's workers end with it and nothing is left: real scripts, real signals."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.commands import all_gone

SCRIPT = """
import sys, time
from feedline.pipeline.loader import Loader
loader = Loader(sys.argv[1], batch_size=8, image_size=16, num_workers=2, seed=1, rank=0, world_size=1)
iterator = iter(loader)
for _ in range(int(sys.argv[2])):
    next(iterator)
print(*loader.worker_pids, flush=True)
{then}
"""
FOREVER = "while True:\n    for batch in loader:\n        time.sleep(0.001)"


@pytest.fixture
def start(split: Path, tmp_path: Path) -> Iterator[object]:
    """Starts SCRIPT and waits until its workers work; gives the process and their pids."""
    started: list[subprocess.Popen[str]] = []

    def run(then: str, batches: int = 1) -> tuple[subprocess.Popen[str], list[int]]:
        script = tmp_path / "script.py"
        script.write_text(SCRIPT.format(then=then))
        process = subprocess.Popen(
            [sys.executable, str(script), str(split), str(batches)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        started.append(process)
        assert process.stdout is not None
        pids = [int(pid) for pid in process.stdout.readline().split()]
        assert len(pids) == 2, process.communicate()[1]
        return process, pids

    yield run
    for process in started:
        process.kill()
        process.communicate()


def shared_memory_files() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if "feedline" in name}  # noqa: PTH208


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_a_signal_to_the_trainer_ends_its_workers(start, end: signal.Signals) -> None:  # type: ignore[no-untyped-def]
    before = shared_memory_files()
    process, pids = start(FOREVER)
    process.send_signal(end)
    process.communicate()
    assert all_gone(pids)
    assert shared_memory_files() == before
    assert process.returncode == -end


def test_ctrl_c_in_a_terminal_reaches_everybody_and_only_the_trainer_speaks(start) -> None:  # type: ignore[no-untyped-def]
    process, pids = start(FOREVER)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate()
    assert all_gone(pids)
    assert errors.count("Traceback") == errors.count("KeyboardInterrupt") == 1


def test_signals_that_the_trainer_handles_end_no_worker_not_even_one_that_is_just_starting(start) -> None:  # type: ignore[no-untyped-def]
    """Slurm's --signal and torchrun send them to everybody, for a checkpoint and a few more steps."""
    then = """
import os, signal
kinds, got = [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2], []
for kind in kinds:
    signal.signal(kind, lambda number, _: got.append(number))
second = Loader(sys.argv[1], batch_size=8, image_size=16, num_workers=2, rank=0, world_size=1)
begun = iter(second)
for kind in kinds:
    os.killpg(0, kind)
assert (len(list(iterator)), len(list(begun))) == (6, 7)
assert sorted(got) == sorted(kinds)
"""
    process, pids = start(then)
    _, errors = process.communicate()
    assert process.returncode == 0, errors
    assert all_gone(pids)


@pytest.mark.parametrize("then", ["sys.exit(3)", "raise ValueError('mine')", "import os; os._exit(4)"])
def test_leaving_in_the_middle_of_an_epoch_leaves_nothing(start, then: str) -> None:  # type: ignore[no-untyped-def]
    process, pids = start(then)
    _, errors = process.communicate()
    assert all_gone(pids)
    assert process.returncode == {"sys.exit(3)": 3, "import os; os._exit(4)": 4}.get(then, 1)
    assert ("mine" in errors) == ("mine" in then)


def test_a_loader_started_from_a_thread_outlives_the_thread(start) -> None:  # type: ignore[no-untyped-def]
    """The kernel would kill a worker with the *thread* that started it: the trainer must not ask for that there."""
    then = """
import threading
second = Loader(sys.argv[1], batch_size=8, image_size=16, num_workers=1, rank=0, world_size=1)
iterators = []
thread = threading.Thread(target=lambda: iterators.append(iter(second)))
thread.start(); thread.join()
assert len(list(iterators[0])) == 7
"""
    process, _ = start(then)
    _, errors = process.communicate()
    assert process.returncode == 0, errors


def test_a_fork_of_the_trainer_does_not_end_its_workers(start) -> None:  # type: ignore[no-untyped-def]
    then = """
import os, gc
child = os.fork()
if not child:
    del iterator, loader
    gc.collect()
    os._exit(0)
os.waitpid(child, 0)
assert len(list(iterator)) == 6
"""
    process, pids = start(then)
    _, errors = process.communicate()
    assert process.returncode == 0, errors
    assert all_gone(pids)


def test_a_forked_child_has_workers_of_its_own(start) -> None:  # type: ignore[no-untyped-def]
    """Taking the parent's replies, it would leave the parent waiting for ever."""
    then = """
import os
from feedline.pipeline.base.errors import UsageError
loader.set_epoch(0)
expected = [labels.tolist() for _, labels in loader][1:]
loader.set_epoch(0)
iterator = iter(loader)
next(iterator)
child = os.fork()
if not child:
    try:
        next(iterator)
    except UsageError as error:
        assert "forked" in str(error)
        loader.set_epoch(0)
        status = int([labels.tolist() for _, labels in loader][1:] != expected)
        loader.close()
        os._exit(status)
    os._exit(9)
assert [labels.tolist() for _, labels in iterator] == expected
assert os.waitpid(child, 0)[1] == 0
"""
    process, pids = start(then)
    _, errors = process.communicate()
    assert process.returncode == 0, errors
    assert all_gone(pids)


def test_a_forked_child_undoes_nothing_of_its_parent_s(start) -> None:  # type: ignore[no-untyped-def]
    """The page-locked slots are registered with the parent's CUDA, which must not be called in a forked child."""
    then = """
import os
closed = []
loader._workshops[0].on_close.append(lambda: closed.append(os.getpid()))
child = os.fork()
if not child:
    next(iter(loader))
    loader.close()
    os._exit(len(closed))
assert os.waitpid(child, 0)[1] == 0
loader.close()
assert closed == [os.getpid()]
"""
    process, pids = start(then)
    _, errors = process.communicate()
    assert process.returncode == 0, errors
    assert all_gone(pids)


def test_two_threads_at_once_are_told_in_one_line(start) -> None:  # type: ignore[no-untyped-def]
    then = """
import threading
errors = []
def go():
    try:
        for _ in range(50):
            list(loader)
    except Exception as error:
        errors.append(f"{type(error).__name__}: {error}")
threads = [threading.Thread(target=go) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
words = ("two threads take batches of one Loader at once", "begun another since")
assert errors
assert not [error for error in errors if not any(word in error for word in words)], errors
assert len(list(loader)) == 7
"""
    process, _ = start(then)
    _, errors = process.communicate()
    assert process.returncode == 0, errors


@pytest.mark.parametrize("end", ["", "loader.close()", "del loader, iterator, batch", "import os; os._exit(0)"])
def test_what_was_begun_of_another_epoch_ends_with_the_script(start, end: str) -> None:  # type: ignore[no-untyped-def]
    process, pids = start(f"for epoch in range(3):\n    for batch in loader: pass\n{end}")
    _, errors = process.communicate()
    assert (process.returncode, errors) == (0, "")
    assert all_gone(pids)


def test_workers_end_without_a_word(start) -> None:  # type: ignore[no-untyped-def]
    """Whatever their transform's libraries would say at an interpreter's end: triton's report leaks, line by line."""
    then = """
def loud(image):
    import atexit
    atexit.register(print, "leaked!", file=sys.stderr)
    return image
noisy = Loader(sys.argv[1], batch_size=8, image_size=16, num_workers=1, rank=0, world_size=1, transform=loud)
assert len(list(noisy)) == 7
noisy.close()
"""
    process, _ = start(then)
    _, errors = process.communicate()
    assert (process.returncode, errors) == (0, "")


@pytest.mark.slow
def test_starts_and_ends_at_random_moments_leave_the_process_table_as_it_was(split: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(then=FOREVER))
    before = shared_memory_files()
    for number in range(3):
        process = subprocess.Popen(
            [sys.executable, str(script), str(split), "1"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        watched = psutil.Process(process.pid)
        while not watched.children() and process.poll() is None:
            time.sleep(0.01)
        time.sleep(0.15 * number)  # somewhere between a worker's first instruction and the epoch's middle
        os.killpg(process.pid, signal.SIGINT if number % 2 else signal.SIGTERM) if number else process.kill()
        process.wait()
        assert all_gone(_in_session(process.pid))
    assert shared_memory_files() == before


def test_a_tiny_dev_shm_does_not_matter(split: Path, tmp_path: Path) -> None:
    """As in a container: slots are anonymous memory, and /dev/shm is not asked for a byte."""
    if os.geteuid() != 0 or not shutil.which("unshare"):
        pytest.skip("needs root and unshare, to mount a small /dev/shm for one process")
    script = tmp_path / "script.py"
    then = "import os; free = os.statvfs('/dev/shm'); print(len(list(iterator)), free.f_blocks * free.f_frsize)"
    script.write_text(SCRIPT.format(then=then))
    mount = 'mount -t tmpfs -o size=4096 tmpfs /dev/shm && exec "$@"'
    command = ["unshare", "--mount", "sh", "-c", mount, "sh", sys.executable, str(script), str(split), "1"]
    done = subprocess.run(command, capture_output=True, text=True)
    if "unshare failed" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"no mount namespaces here: {done.stderr.strip()}")
    assert done.stdout.splitlines()[1:] == ["6 4096"], done.stderr


def _in_session(session: int) -> list[int]:
    pids: list[int] = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == session:
                pids.append(process.pid)
        except OSError:
            pass  # it has ended since
    return pids


def test_in_a_child_that_was_forked_amid_a_batch_of_another_thread_nobody_takes_one(
    split: Path, tmp_path: Path
) -> None:
    script = """
import os, sys, threading, time
from feedline.pipeline.loader import Loader

def slow(image_HWC):
    open("begun", "w").close()
    while not os.path.exists("go"):
        time.sleep(0.01)
    return image_HWC

loader = Loader(sys.argv[1], batch_size=8, image_size=16, num_workers=0, transform=slow, rank=0, world_size=1)
other = threading.Thread(target=list, args=(loader,))
other.start()
while not os.path.exists("begun"):
    time.sleep(0.01)
if not (child := os.fork()):
    open("go", "w").close()
    os._exit(len(list(loader)))
other.join()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    ran = subprocess.run(
        [sys.executable, "-c", script, str(split)], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert ran.stdout.strip() == "7", ran.stderr
