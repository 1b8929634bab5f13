"""Processes killed and stopped while batches flow, storage that fails and lies, full disks and jumping clocks.

Every generator yields (kind of fault, what was wrong afterwards). The pictures of the split say by themselves which
sample they are (`tiny_split`), and the undisturbed order is known: so each batch that is delivered is checked.
"""

import ctypes
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from tests.lab import tiny_split
from tests.lab.chaos_files import SUBJECTS, Cached, Index, Prepare, Train
from tests.lab.chaos_steps import Ended, in_child

SAMPLES, BATCH, PX = 48, 4, 24
GONE_S = 10.0
Outcome = tuple[str, list[str]]


# --- an epoch that is checked -------------------------------------------------------------------------


class Epochs:
    """A loader's epochs against the undisturbed order."""

    def __init__(self, split: Path | str, workers: int, **options: Any) -> None:
        from feedline.pipeline.loader import Loader

        self._options: dict[str, Any] = {
            "batch_size": BATCH, "image_size": PX, "train": True, "seed": 3, "rank": 0, "world_size": 1,
        } | options  # fmt: skip
        self._split = split
        self.loader = Loader(split, num_workers=workers, **self._options)

    def again(self, state: dict[str, Any], workers: int) -> "Epochs":
        fresh = Epochs(self._split, workers, **self._options)
        fresh.loader.load_state_dict(state)
        return fresh

    def run(self, epoch: int, on_batch: Callable[[int], None] = lambda _: None) -> list[list[int]]:
        """Labels by batch, from where the loader stands. Raises AssertionError for a wrong picture."""
        self.loader.set_epoch(epoch)
        batches: list[list[int]] = []
        for images_NHWC, labels_N in self.loader:
            labels = [int(label) for label in labels_N]
            if list(tiny_split.shown(np.asarray(images_NHWC))) != [label % tiny_split.LEVELS for label in labels]:
                raise AssertionError("a wrong sample was delivered")
            batches.append(labels)
            on_batch(len(batches))
        return batches


def plan_of(split: Path, epoch: int) -> list[list[int]]:
    return Epochs(split, 0).run(epoch)


def problems_of(ended: Ended) -> list[str]:
    """A child returns its own list of problems; else how it ended is the problem."""
    if ended.stuck:
        return ["it hung"]
    return list(ended.said or []) if ended.status == 0 else [f"it ended with {ended.status}: {ended.said}"]


def gone(pids: list[int], within_s: float = GONE_S) -> list[str]:
    """Names of those that are still there."""
    processes: list[psutil.Process] = []
    for pid in pids:
        with suppress(psutil.Error):
            processes.append(psutil.Process(pid))
    _, alive = psutil.wait_procs(processes, timeout=within_s)
    return [f"process left: {one.name()}" for one in alive if one.status() != psutil.STATUS_ZOMBIE]


# --- workers and trainers -----------------------------------------------------------------------------


def loader(folder: Path, faults: int, rng: random.Random) -> Iterator[Outcome]:
    """Workers and trainers killed and stopped at random batches."""
    import_module("feedline.pipeline.loader")  # once, not in every fork

    split = folder / "train"
    in_child(lambda: bool(tiny_split.write(split, SAMPLES, 3, px=32)))
    kinds = {
        "worker killed": lambda: worker_killed(split, rng),
        "worker stopped for a while": lambda: worker_stopped(split, rng),
        "worker stopped when the loader closes": lambda: closed_on_stopped(split, rng),
        "trainer stopped for a while": lambda: trainer_stopped(split, rng),
        "trainer killed": lambda: trainer_killed(split, folder, rng),
    }
    for number in range(faults or 100):
        what = list(kinds)[number % len(kinds)]
        yield f"loader: {what}", kinds[what]()


def worker_killed(split: Path, rng: random.Random) -> list[str]:
    at, epoch, delay_s = rng.randrange(1, SAMPLES // BATCH), rng.randrange(5), rng.random() * 0.01

    def act() -> list[str]:
        from feedline.pipeline.base.errors import WorkerError

        epochs, had = Epochs(split, 2), list[list[int]]()

        def strike(batch: int) -> None:
            if batch == at:
                time.sleep(delay_s)
                os.kill(random.choice(epochs.loader.worker_pids), signal.SIGKILL)

        try:
            had = epochs.run(epoch, strike)
        except WorkerError:
            state = epochs.loader.state_dict()
            had = plan_of(split, epoch)[: state["samples"] // BATCH] + epochs.again(state, 1).run(epoch)
        problems = [] if had == plan_of(split, epoch) else ["another order after a worker's death"]
        pids = epochs.loader.worker_pids
        epochs.loader.close()
        return problems + gone(pids)

    return problems_of(in_child(act))


def worker_stopped(split: Path, rng: random.Random) -> list[str]:
    at, epoch, pause_s = rng.randrange(1, SAMPLES // BATCH), rng.randrange(5), rng.uniform(0.05, 0.4)

    def act() -> list[str]:
        epochs = Epochs(split, 2)

        def strike(batch: int) -> None:
            if batch == at:
                pid = random.choice(epochs.loader.worker_pids)
                os.kill(pid, signal.SIGSTOP)
                threading.Timer(pause_s, os.kill, (pid, signal.SIGCONT)).start()

        had = epochs.run(epoch, strike)
        pids = epochs.loader.worker_pids
        epochs.loader.close()
        return ([] if had == plan_of(split, epoch) else ["another order after a worker's pause"]) + gone(pids)

    return problems_of(in_child(act))


def closed_on_stopped(split: Path, rng: random.Random) -> list[str]:
    """A worker that never comes back must not keep the trainer from ending."""
    epoch = rng.randrange(5)

    def act() -> list[str]:
        epochs = Epochs(split, 2)
        iterator = iter(epochs.loader)
        next(iterator)
        pids = epochs.loader.worker_pids
        os.kill(pids[epoch % 2], signal.SIGSTOP)
        epochs.loader.close()
        return gone(pids)

    return problems_of(in_child(act))


def trainer_stopped(split: Path, rng: random.Random) -> list[str]:
    at, epoch = rng.randrange(1, SAMPLES // BATCH), rng.randrange(5)

    def act() -> list[str]:
        epochs = Epochs(split, 2)
        had = epochs.run(epoch, lambda batch: os.kill(os.getpid(), signal.SIGSTOP) if batch == at else None)
        pids = epochs.loader.worker_pids
        epochs.loader.close()
        return ([] if had == plan_of(split, epoch) else ["another order after the trainer's pause"]) + gone(pids)

    return problems_of(in_child(act, stopped_s=rng.uniform(0.05, 2.5)))


def trainer_killed(split: Path, folder: Path, rng: random.Random) -> list[str]:
    """Its workers end with it, and another trainer goes on from the last state that was saved."""
    import json

    at, epoch, workers = rng.randrange(1, SAMPLES // BATCH), rng.randrange(5), rng.choice((1, 3))
    saved = folder / "state.json"

    def act() -> None:
        epochs = Epochs(split, 2)

        def strike(batch: int) -> None:
            pids = epochs.loader.worker_pids
            saved.write_text(json.dumps({"state": epochs.loader.state_dict(), "pids": pids}))
            if batch == at:
                os.kill(os.getpid(), signal.SIGKILL)

        epochs.run(epoch, strike)

    def resume() -> list[str]:
        state = json.loads(saved.read_text())["state"]
        had = Epochs(split, 0).again(state, workers).run(epoch)
        return [] if had == plan_of(split, epoch)[at:] else ["the rest is another after the trainer's death"]

    if in_child(act).status != -signal.SIGKILL:
        return ["the trainer was not killed"]
    left = gone(json.loads(saved.read_text())["pids"])
    return left + problems_of(in_child(resume))


# --- the machine --------------------------------------------------------------------------------------


def machine(folder: Path, faults: int, rng: random.Random) -> Iterator[Outcome]:
    """A full disk and a full /dev/shm for real (root and mount namespaces needed), and clocks that jump."""
    import_module("feedline.pipeline.loader")  # once, not in every fork

    split = folder / "train"
    in_child(lambda: bool(tiny_split.write(split, SAMPLES, 3, px=32)))
    for number in range(faults or 12):
        if os.geteuid() == 0:
            kind = (Prepare, Index, Cached, Train)[number % 4]
            work = folder / f"full-{number}"
            work.mkdir()
            subject, kibibytes = kind(work), rng.choice((8, 16, 32, 64, 96))
            yield (
                f"machine: full disk, {subject.name}",
                problems_of(in_child(lambda s=subject, w=work, k=kibibytes: full_disk(s, w, k))),
            )
            yield "machine: full /dev/shm", problems_of(in_child(lambda n=number: full_shm(split, n)))
        yield "machine: clock jumps, loader", problems_of(in_child(lambda n=number: jumping(split, folder, n)))
        kind = SUBJECTS[number % 3]
        work = folder / f"clock-{number}"
        work.mkdir()
        subject = kind(work)
        yield (
            f"machine: clock jumps, {subject.name}",
            problems_of(in_child(lambda s=subject, w=work, n=number: clock(s, w, n))),
        )


def mount_tmpfs(place: Path, size: str) -> None:
    """Over `place`, seen by this process and its children only."""
    namespace = 0x00020000  # CLONE_NEWNS
    if ctypes.CDLL(None, use_errno=True).unshare(namespace):
        raise OSError(ctypes.get_errno(), "unshare")
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)], check=True)


def full_disk(subject: Any, work: Path, kibibytes: int) -> list[str]:
    """On a disk that is too small it ends in an error of ours; once there is room it does what it always does."""
    (work / "calm").mkdir()
    problems = problems_of(in_child(subject.make))
    subject_on = work / "disk"
    subject_on.mkdir()
    in_child(lambda: (subject.fresh(work / "calm"), subject.act(work / "calm"))[:0])
    expected = in_child(lambda: subject.left(work / "calm")).said
    mount_tmpfs(subject_on, "64m")
    in_child(lambda: (subject.fresh(subject_on),)[:0])
    used = sum(path.stat().st_blocks * 512 for path in subject_on.rglob("*")) >> 10
    remount = ["mount", "-o", f"remount,size={used + kibibytes}k", str(subject_on)]
    subprocess.run(remount, check=True)
    ended = in_child(lambda: subject.act(subject_on))
    problems += [f"on the full disk: {ended.said}"] if ended.status not in (0, 1) else []
    problems += [said] if (said := in_child(lambda: subject.unsound(subject_on)).said) else []
    subprocess.run(["mount", "-o", "remount,size=64m", str(subject_on)], check=True)
    again = in_child(lambda: subject.act(subject_on))
    if again.status or in_child(lambda: subject.left(subject_on)).said != expected:
        problems.append(f"with room again: {again.said or 'other files'}")
    return problems


def full_shm(split: Path, epoch: int) -> list[str]:
    expected = plan_of(split, epoch)
    mount_tmpfs(Path("/dev/shm"), "4096")
    Path("/dev/shm/full").write_bytes(bytes(4096))
    epochs = Epochs(split, 2)
    had = epochs.run(epoch)
    epochs.loader.close()
    return [] if had == expected else ["another order with a full /dev/shm"]


JUMPS = """
import random, time
_random = random.Random({seed})
time.time = lambda: _random.uniform(-1e8, 4e9)
time.time_ns = lambda: int(time.time() * 1e9)
"""


def jumping(split: Path, folder: Path, number: int) -> list[str]:
    """Trainer and workers both live with a clock that jumps: the workers through a sitecustomize on their path."""
    expected = plan_of(split, number)
    place = folder / f"site-{number}"
    place.mkdir(exist_ok=True)
    (place / "sitecustomize.py").write_text(JUMPS.format(seed=number))
    exec(JUMPS.format(seed=number), {})
    sys.path.insert(0, str(place))
    epochs = Epochs(split, 2)
    had = epochs.run(number)
    epochs.loader.close()
    return [] if had == expected else ["another order with jumping clocks"]


def clock(subject: Any, work: Path, number: int) -> list[str]:
    for name in ("calm", "jumps"):
        (work / name).mkdir()
    problems = problems_of(in_child(subject.make))

    def act(folder: Path) -> Any:
        subject.fresh(folder)
        subject.act(folder)

    in_child(lambda: act(work / "calm"))
    exec(JUMPS.format(seed=number), {})
    ended = in_child(lambda: act(work / "jumps"))
    same = in_child(lambda: subject.left(work / "calm") == subject.left(work / "jumps")).said
    return problems + ([] if ended.status == 0 and same else [f"with a jumping clock: {ended.said or 'other files'}"])


def kinds() -> dict[str, Callable[[Path, int, random.Random], Iterator[Outcome]]]:
    from tests.lab import chaos_storage

    return {
        "loader": loader,
        "machine": machine,
        "storage": chaos_storage.storage,
        "commands": chaos_storage.commands,
    }
