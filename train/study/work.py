"""A process that works on a study until nothing in it is open: `python -m feedline.train.study.work ORDER`.

Under torchrun the ranks are one worker: rank 0 takes the tasks and the others follow. What a task is, its kind knows:
a module with `begin(study, settings) -> Work`.
"""

import errno
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

from feedline.pipeline.base.errors import BusyError, FeedlineError, first_line
from feedline.pipeline.base.files import write_error
from feedline.train.study.tasks import Claim, LeaseLost, Task, Tasks, disk_is_full, lives

if TYPE_CHECKING:
    from feedline.train.config import TrainConfig
    from feedline.train.distributed import World

LOOK_S = 0.5
ENDING_SOON_S = 2.0
STUDY_FAILED = "feedline: "
"""A worker's last line begins so where it says why the study cannot go on: torchrun has a status of its own."""


class Amid(Exception):
    """What has failed is one task, amid which this worker cannot go on: another one begins anew."""


class Work(Protocol):
    """What a kind of study knows. Every rank has one."""

    config: "TrainConfig"
    """What the ranks meet with: device, threads, timeout."""

    def tasks(self) -> Iterable[Task]:
        """All of the study's, in the order in which they should be begun. Asked on rank 0, before each is taken."""
        ...

    def do(self, task: Task, world: "World", claim: Claim | None) -> dict[str, Any]:
        """Does it, on every rank; returns what `Claim.finish` is told: `state`, `value`, further facts (`curve`:
        [epoch, top-1] pairs, `epochs`, …). Rank 0 alone has the claim, and shows there how far it is."""
        ...


@dataclass(frozen=True, kw_only=True)
class Order:
    """What a worker is started with."""

    kind: str
    """The module that knows the study's tasks."""
    study: str
    settings: Mapping[str, Any]
    """For the kind's `begin`, as JSON."""
    starter: tuple[int, float]
    """Process and start of whoever started it, with whom it ends."""
    cores: tuple[int, ...] = ()
    """It stays on these; empty: on those it is given."""
    gpus: str | None = None
    """CUDA_VISIBLE_DEVICES; None leaves it."""
    at_most: int | None = None
    """Tasks it begins before it ends."""
    log: str = ""
    """What it says; beside it lie `begun` and, once it is told to end, `ending`."""

    @property
    def begun(self) -> Path:
        """A byte for each task that was begun."""
        return Path(f"{self.log}.begun")

    @property
    def ending(self) -> Path:
        return Path(f"{self.log}.ending")

    def to_json(self) -> str:
        return json.dumps(asdict(self), default=str)


def work_through(order: Order) -> None:
    """Raises FeedlineError or OSError for what is wrong with the study itself; a task that fails is recorded, and
    raises Amid where other ranks are in the middle of it, or CUDA may fail at every call after it."""
    study = Path(order.study)
    work: Work = import_module(order.kind).begin(study, order.settings)
    import torch

    from feedline.train.distributed import RankLost, joined

    tasks, begun = Tasks(study), 0
    with joined(work.config) as world:
        while order.at_most is None or begun < order.at_most:
            claim = tasks.take(work.tasks()) if world.is_main else None
            taken = world.from_main(claim and (claim.task, claim.attempt))
            if taken is None:
                return
            task, attempt = taken
            begun += 1
            if claim is not None and order.log:
                with order.begun.open("a") as file:
                    file.write("x")
            try:
                with claim or nullcontext():
                    told = work.do(task, world, claim)
                    if claim is not None:
                        claim.finish(**told)
            except LeaseLost as error:
                if world.world_size > 1:
                    raise Amid from error
            except Exception as error:
                if disk_is_full(error):
                    raise write_error(OSError(errno.ENOSPC, ""), f"working on {study}") from error
                if isinstance(error, BusyError):  # until it hears that the task is another's
                    time.sleep(10 * LOOK_S)
                if claim is None and not isinstance(error, RankLost | BusyError):
                    _told_instead(Claim(tasks, task, attempt), error)
                spoilt = torch.cuda.is_initialized() and isinstance(error, RuntimeError)
                if world.world_size > 1 or (spoilt and order.at_most is None):
                    raise Amid from error
                if not isinstance(error, FeedlineError):  # its record has one line of it, the log the rest
                    traceback.print_exc()


def _told_instead(of_main: Claim, error: Exception) -> None:
    """By a rank that fails alone: rank 0, who has the first word, may only be told to end."""
    until_s = time.monotonic() + LOOK_S
    while time.monotonic() < until_s:
        if of_main.is_told or not of_main.lease.exists():
            return
        time.sleep(LOOK_S / 10)
    of_main.write("failed", error=first_line(error))


def main(words: str) -> None:
    """Ends with one line where the study cannot go on."""
    order = Order(**json.loads(words))
    if order.cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, order.cores)
    if order.gpus is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = order.gpus
    if "TORCHELASTIC_RUN_ID" not in os.environ:  # what a cluster sets for the job is not of each of its trainings
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
            os.environ.pop(name, None)
    signal.signal(signal.SIGTERM, partial(_told_to_end, order))
    threading.Thread(target=_end_with, args=order.starter, daemon=True).start()
    from feedline.train.distributed import RankLost

    try:
        work_through(order)
    except RankLost:  # the other one says why
        raise
    except (FeedlineError, OSError) as error:
        said = write_error(error, f"working on {order.study}") if isinstance(error, OSError) else error
        sys.exit(f"{STUDY_FAILED}{said}")


def _told_to_end(order: Order, number: int, _frame: FrameType | None) -> None:
    """By whoever started us, and the task is given back; or by torchrun, because another rank has ended, and with
    that this attempt."""
    from feedline.train.distributed import RankLost

    until_s = time.monotonic() + ENDING_SOON_S  # a signal to all processes reaches whoever started us, too
    while "TORCHELASTIC_RUN_ID" in os.environ and lives(*order.starter) and not order.ending.exists():
        if time.monotonic() > until_s:
            raise RankLost("another rank ended amid it")
        time.sleep(LOOK_S / 10)
    sys.exit(128 + number)


def _end_with(pid: int, started: float) -> None:
    """torchrun may stand between us and whoever started us, so that the kernel cannot be asked."""
    while lives(pid, started):
        time.sleep(LOOK_S)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main(sys.argv[1])
