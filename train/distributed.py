"""The ranks of a run: one plain object over torch.distributed that is also right for a single process.

Tensors on the CPU travel over gloo and tensors on a GPU over NCCL, so small facts (losses, random states, a
checkpoint's bytes) never need the device.
"""

import hashlib
import os
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from textwrap import shorten
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from feedline.pipeline.base.errors import FeedlineError, UsageError
from feedline.pipeline.base.process import from_environment, usable_cores
from feedline.train.config import TrainConfig
from feedline.train.meeting import fresh_store


class RankLost(FeedlineError):
    """Another rank ended, or could not be reached in time."""


@dataclass(frozen=True, kw_only=True)
class World:
    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    @property
    def hosts(self) -> int:
        return max(1, self.world_size // self.local_world_size)

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all ranks, on the CPU, equal on every rank. `values` is left as it was."""
        total = values.detach().to("cpu", copy=True)
        if self.world_size > 1:
            dist.all_reduce(total)
        return total

    def gather(self, thing: Any) -> list[Any]:
        """Every rank's `thing`, by rank, on every rank."""
        if self.world_size == 1:
            return [thing]
        things: list[Any] = [None] * self.world_size
        dist.all_gather_object(things, thing)
        return things

    def from_main(self, thing: Any) -> Any:
        """Rank 0's `thing` on every rank."""
        if self.world_size == 1:
            return thing
        box = [thing]
        dist.broadcast_object_list(box, src=0, device=torch.device("cpu"))
        return box[0]


@contextmanager
def joined(config: TrainConfig) -> Generator[World]:
    """The world this process was started in (torchrun's environment, or alone); left again at the end.

    Raises UsageError for a device that is not there and RankLost when the ranks lose each other.
    """
    device = pick_device(config.device)
    set_threads(config)
    torch.use_deterministic_algorithms(config.deterministic, warn_only=device.type == "cuda")
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        yield World(rank=0, world_size=1, local_rank=0, local_world_size=1, device=device)
        return
    mine = not dist.is_initialized()
    try:
        if mine:
            backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
            rank, world_size = from_environment("RANK", 0), from_environment("WORLD_SIZE", 1)
            store = fresh_store(rank, world_size, config.timeout_s)
            known: dict[str, Any] = {} if store is None else {"store": store, "rank": rank, "world_size": world_size}
            dist.init_process_group(backend, timeout=timedelta(seconds=config.timeout_s), **known)
        yield _world(device)
    except (RuntimeError, TimeoutError, dist.DistError) as error:
        if not is_lost_rank(error):
            raise
        rank = os.environ["RANK"]
        raise RankLost(
            f"another rank ended or cannot be reached (seen by rank {rank}: {first_line(error)})"
        ) from error
    finally:
        if mine and dist.is_initialized():
            dist.destroy_process_group()


def _world(device: torch.device) -> World:
    return World(
        rank=dist.get_rank(),
        world_size=dist.get_world_size(),
        local_rank=local_rank(),
        local_world_size=local_world_size(),
        device=device,
    )


def pick_device(name: str) -> torch.device:
    """`auto` is CUDA where there is one; each local rank takes its own GPU."""
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise UsageError(f"--device {name}: torch sees no CUDA device here, use --device cpu")
    device = torch.device(name if ":" in name else f"cuda:{local_rank()}")
    if (device.index or 0) >= torch.cuda.device_count():
        raise UsageError(
            f"local rank {local_rank()} has no GPU of its own ({torch.cuda.device_count()} here): "
            f"start torchrun with --nproc-per-node {torch.cuda.device_count()}"
        )
    torch.cuda.set_device(device)
    return device


def set_threads(config: TrainConfig) -> None:
    """torchrun allows each rank one thread; the host's cores divided by its ranks is what they can really use."""
    torch.set_num_threads(config.threads or max(1, usable_cores() // local_world_size()))


def local_rank() -> int:
    return from_environment("LOCAL_RANK", 0)


def local_world_size() -> int:
    return from_environment("LOCAL_WORLD_SIZE", 1)


def is_lost_rank(error: BaseException) -> bool:
    """Whether this is torch's way of saying that the other end of a collective is gone."""
    if isinstance(error, dist.DistError | TimeoutError):
        return True
    text = str(error).lower()
    return any(word in text for word in ("gloo", "nccl", "connection closed by peer", "connection reset"))


def first_line(error: BaseException) -> str:
    """Whole words of it."""
    return shorten((str(error).strip().splitlines() or [type(error).__name__])[0], 200, placeholder=" …")


def is_first_to_say(message: str) -> bool:
    """Whether no other rank of this job has claimed this message yet; true where nobody can be asked."""
    address, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    if not address or not port or from_environment("WORLD_SIZE", 1) == 1:
        return True
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    try:
        store = dist.TCPStore(  # pyright: ignore[reportPrivateImportUsage]
            address, int(port), is_master=False, timeout=timedelta(seconds=5)
        )
        return store.add(f"feedline/said/{attempt}/{hash_text(message)}", 1) == 1
    except (RuntimeError, dist.DistError):
        return True


def hash_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
