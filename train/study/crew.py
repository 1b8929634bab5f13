"""Several workers at once on one host, each on cores or a GPU of its own, until nothing in the study is open."""

import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from feedline.pipeline.base.errors import FeedlineError, UsageError
from feedline.pipeline.base.process import how_it_ended, start_python, usable_cores, wait_or_kill
from feedline.pipeline.base.settings import check_limits, limited
from feedline.pipeline.base.text import count_of
from feedline.train.study.tasks import Tasks, started_s
from feedline.train.study.work import LOOK_S, STUDY_FAILED, Order

WORKER = "feedline.train.study.work"
ENDING_S = 30.0
"""A worker that was told to end gives its task back first."""


@dataclass(frozen=True, kw_only=True)
class CrewConfig:
    jobs: int | None = limited(None, 1)
    """Trainings at a time; default: as many as the GPUs take, or one without."""
    jobs_per_gpu: int = limited(1, 1)
    """Trainings that share a GPU."""
    ranks: int = limited(1, 1)
    """Ranks of each training, which torchrun starts; each has a GPU of its own where there are any."""
    at_most: int | None = limited(None, 1)
    """Tasks that this command begins before it ends (one, in a job of an array); default: all that are open."""

    def __post_init__(self) -> None:
        check_limits(self)


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a training runs; without cores or GPUs it takes what it gets."""

    cores: tuple[int, ...] = ()
    gpus: str | None = None


def places(config: CrewConfig, cores: Sequence[int], gpus: Sequence[str]) -> list[Place]:
    """One for each training at a time: the cores in equal shares, whole GPUs by turns. More trainings than cores have
    one core each, by turns: threads that wait for each other on shared cores would spin. Raises UsageError where
    there are too few GPUs."""
    room = len(gpus) // config.ranks * config.jobs_per_gpu
    if gpus and (config.jobs or 1) > room:
        raise UsageError(
            f"--jobs {config.jobs or 1} of {count_of(config.ranks, 'rank')} on {count_of(len(gpus), 'GPU')}: at most "
            f"{room}, or more --jobs-per-gpu"
        )
    jobs = config.jobs or max(1, room)
    jobs = min(jobs, config.at_most or jobs)
    made: list[Place] = []
    shares = max(1, min(jobs, len(cores)))
    for job in range(jobs):
        share = job % shares
        own = cores[share * len(cores) // shares : (share + 1) * len(cores) // shares] if jobs > 1 else ()
        first = job % (room // config.jobs_per_gpu) * config.ranks if gpus else 0
        made.append(Place(cores=tuple(own), gpus=",".join(gpus[first : first + config.ranks]) if gpus else None))
    return made


def visible_gpus(device: str) -> list[str]:
    """The names by which CUDA_VISIBLE_DEVICES knows those that `--device` means; none where they are not to be shared
    out: on CPUs, and where one is named."""
    if device == "cpu" or ":" in device:
        return []
    import torch

    named = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return (named or [str(index) for index in range(torch.cuda.device_count())])[: torch.cuda.device_count()]


def hire(kind: str, study: Path, settings: Mapping[str, Any], device: str, config: CrewConfig) -> list[Order]:
    """What the workers of this command are started with. Raises UsageError where they have no room."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if len(cores) > usable_cores():  # a quota says how many, not which: a random part, not everybody's first ones
        cores = sorted(random.sample(cores, usable_cores()))
    made = places(config, cores, visible_gpus(device))
    starter = (os.getpid(), started_s())
    return [
        Order(kind=kind, study=str(study), settings=settings, starter=starter, cores=place.cores, gpus=place.gpus,
              at_most=config.at_most and len(range(job, config.at_most, len(made))))
        for job, place in enumerate(made)
    ]  # fmt: skip


class Worker:
    """One order, and the process that carries it out now."""

    def __init__(self, order: Order, ranks: int, log: Path) -> None:
        self._order, self._ranks, self._log = replace(order, log=str(log)), ranks, log
        self.start()

    def start(self) -> None:
        self._begun = self._tasks_begun()
        left = self._order.at_most and self._order.at_most - self._begun
        module, words = WORKER, [replace(self._order, at_most=left).to_json()]
        if self._ranks > 1:
            words = ["--standalone", f"--nproc-per-node={self._ranks}", "-m", WORKER, *words]
            module = "torch.distributed.run"
        with self._log.open("ab") as file:
            self._log_begins = file.tell()
            self.process = start_python(module, words, (), stderr=file)

    def _tasks_begun(self) -> int:
        return self._order.begun.stat().st_size if self._order.begun.exists() else 0

    def at_work(self) -> bool:
        """One that was killed is started anew, for what it may still begin. Raises FeedlineError where that would not
        help."""
        status = self.process.poll()
        if status is None or status == 0:
            return status is None
        lines = self._log.read_bytes()[self._log_begins :].decode(errors="replace").splitlines()
        if said := next((line for line in reversed(lines) if line.startswith(STUDY_FAILED)), ""):
            raise FeedlineError(said.removeprefix(STUDY_FAILED))
        begun = self._tasks_begun()
        if begun == self._begun:
            raise FeedlineError(f"a worker {how_it_ended(status)} before it had begun anything: see {self._log}")
        if begun == self._order.at_most:
            return False
        self.start()
        return True

    def tell_to_end(self) -> None:
        self._order.ending.touch()
        self.process.terminate()

    def wait(self) -> None:
        wait_or_kill(self.process, ENDING_S)
        for file in (self._order.begun, self._order.ending):
            file.unlink(missing_ok=True)
        if not self._log.stat().st_size:
            self._log.unlink()


def work_on(orders: Sequence[Order], ranks: int, tasks: Tasks, look: Callable[[], None]) -> None:
    """A worker for each order, until none has anything left to do; `look` is called meanwhile, and at the end.

    Raises FeedlineError where the study cannot go on. However it ends, no worker is left.
    """
    logs = tasks.study / "logs"
    logs.mkdir(exist_ok=True)
    workers: list[Worker] = []
    try:
        for number, order in enumerate(orders):
            log = logs / f"{tasks.me['host']}-{tasks.me['pid']}-{number}.log"
            workers.append(Worker(order, ranks, log))
        while [worker for worker in workers if worker.at_work()]:
            look()
            time.sleep(LOOK_S)
    finally:
        for worker in workers:
            worker.tell_to_end()
        for worker in workers:
            worker.wait()
    look()
