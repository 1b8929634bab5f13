"""The ranks of a run: one plain object over torch.distributed that is also right for a single process.

Tensors on the CPU travel over gloo and tensors on a GPU over NCCL, so small facts (losses, random states, a
checkpoint's bytes) never need the device.
"""

import hashlib
import os
import time
import uuid
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import timedelta
from textwrap import shorten
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from feedline.pipeline.base.errors import FeedlineError, UsageError, first_line
from feedline.pipeline.base.process import from_environment, usable_cores
from feedline.pipeline.ranks import ranks_here
from feedline.train.config import TrainConfig

POLL_S = 0.05


class RankLost(FeedlineError):
    """Another rank ended, or could not be reached in time."""


@dataclass(frozen=True, kw_only=True)
class World:
    rank: int
    world_size: int
    local_world_size: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all ranks, on the CPU, equal on every rank. `values` is left as it was."""
        total = values.detach().to("cpu", copy=True)
        if self.world_size > 1:
            dist.all_reduce(total)
        return total

    def mean(self, numbers: list[float]) -> list[float]:
        """Of each number over all ranks, equal on every rank."""
        return (self.sum(torch.tensor(numbers, dtype=torch.float64)) / self.world_size).tolist()

    def gather(self, thing: Any) -> list[Any]:
        """Every rank's `thing`, by rank, on every rank."""
        things: list[Any] = [thing] * self.world_size
        if self.world_size > 1:
            dist.all_gather_object(things, thing)
        return things

    def from_main(self, thing: Any) -> Any:
        """Rank 0's `thing` on every rank."""
        box = [thing]
        if self.world_size > 1:
            dist.broadcast_object_list(box, src=0, device=torch.device("cpu"))
        return box[0]

    def share_buffers(self, model: nn.Module) -> None:
        """Rank 0's batch-norm statistics and the like, on every rank."""
        if self.world_size > 1:
            for buffer in model.buffers():
                dist.broadcast(buffer, src=0)

    def on_main(self, work: Callable[[], Any]) -> Any:
        """What rank 0's call of `work` returns, on every rank; its FeedlineError is raised on all of them too."""
        done: Any = None
        if self.is_main:
            try:
                done = work()
            except FeedlineError as error:
                done = error
        done = self.from_main(done)
        if isinstance(done, FeedlineError):
            raise done
        return done


@contextmanager
def joined(config: TrainConfig) -> Generator[World]:
    """The world this process was started in (torchrun's environment, or alone); left again at the end. After an error
    it is torn down at once: the others, who may be waiting for us, are told so, and we wait for none of them.

    Raises UsageError for a device that is not there and RankLost when the ranks lose each other.
    """
    device = pick_device(config.device)
    local_world_size = ranks_here()
    # torchrun allows each rank one thread; the host's cores divided by its ranks is what they can really use
    torch.set_num_threads(config.threads or max(1, usable_cores() // local_world_size))
    torch.use_deterministic_algorithms(config.deterministic, warn_only=device.type == "cuda")
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        yield World(rank=0, world_size=1, local_world_size=1, device=device)
        return
    rank, world_size = from_environment("RANK", 0), from_environment("WORLD_SIZE", 1)
    mine, failed = not dist.is_initialized(), True
    try:
        if mine:
            backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
            store = fresh_store(rank, world_size, config.timeout_s)
            known: dict[str, Any] = {} if store is None else {"store": store, "rank": rank, "world_size": world_size}
            try:
                dist.init_process_group(backend, timeout=timedelta(seconds=config.timeout_s), **known)
            except ValueError as error:  # another variable is missing, or says nothing
                what = f"RANK and WORLD_SIZE are set, but {short_line(error)}: start it by torchrun, or unset both"
                raise UsageError(what) from error
        yield World(rank=dist.get_rank(), world_size=dist.get_world_size(),
                    local_world_size=local_world_size, device=device)  # fmt: skip
        failed = False
    except (RuntimeError, TimeoutError, dist.DistError) as error:
        words = ("gloo", "nccl", "connection closed by peer", "connection reset")
        lost = isinstance(error, dist.DistError | TimeoutError) or any(word in str(error).lower() for word in words)
        if not lost:
            raise
        # NCCL says on a line of its own, behind the place in its code, what it was that went wrong
        told = f"{short_line(error)} {str(error).partition('Last error:')[2].strip()}".strip()
        reason = f"another rank ended or cannot be reached (seen by rank {rank}: {shorten(told, 400)})"
        raise RankLost(reason) from error
    finally:
        if mine and dist.is_initialized():
            with suppress(Exception) if failed else nullcontext():  # what went wrong goes before
                leave = dist.destroy_process_group
                (getattr(dist.distributed_c10d, "_abort_process_group", leave) if failed else leave)()


def pick_device(name: str) -> torch.device:
    """`auto` is CUDA where there is one; each local rank takes its own GPU."""
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise UsageError(f"--device {name}: torch sees no CUDA device here, use --device cpu")
    local_rank, there = from_environment("LOCAL_RANK", 0), torch.cuda.device_count()
    device = torch.device(name if ":" in name else f"cuda:{local_rank}")
    if there > 1 and "LOCAL_RANK" not in os.environ and from_environment("WORLD_SIZE", 1) > 1 and ":" not in name:
        which = f"which of the {there} GPUs here is this rank's"
        raise UsageError(f"WORLD_SIZE is set and LOCAL_RANK is not, which says {which}: start it by torchrun")
    if ":" in name and ranks_here() > 1:
        raise UsageError(f"--device {name}: each rank takes a GPU of its own, use --device cuda")
    if ":" in name and (device.index or 0) >= there:
        raise UsageError(f"--device {name}: the last one here is cuda:{there - 1}")
    if (device.index or 0) >= there:
        raise UsageError(
            f"local rank {local_rank} has no GPU of its own ({there} here): start torchrun with "
            f"--nproc-per-node {there}"
        )
    torch.cuda.set_device(device)
    return device


def gpu_uuid(device: torch.device) -> str:
    """As NVML names it, which numbers GPUs otherwise; "" for a CPU."""
    return str(getattr(torch.cuda.get_device_properties(device), "uuid", "")) if device.type == "cuda" else ""


def may_restart() -> bool:
    """Whether torchrun starts its ranks again when one fails."""
    return from_environment("TORCHELASTIC_MAX_RESTARTS", 0) > 0


def is_restart() -> bool:
    """Whether this is not the first start of its job: torchrun's next attempt (which it does not count where it was
    nodes that came or went), or one of a job that Slurm has taken up again. To be asked once, on rank 0."""
    if from_environment("TORCHELASTIC_RESTART_COUNT", 0) or from_environment("SLURM_RESTART_COUNT", 0):
        return True
    if not may_restart() or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return False
    try:
        return agent_store(5).add("feedline/begun", 1) > 1
    except (RuntimeError, dist.DistError):
        return False


def short_line(error: BaseException) -> str:
    """Whole words of its first line, 200 characters at most: torch's can be a page."""
    return shorten(first_line(error), 200, placeholder=" …")


# --- how ranks find each other ------------------------------------------------------------------------


def agent_store(timeout_s: float) -> Any:
    """The key-value store of this torchrun job. Raises RuntimeError or DistError where it does not answer."""
    return dist.TCPStore(  # pyright: ignore[reportPrivateImportUsage]
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False,
        timeout=timedelta(seconds=timeout_s),
    )  # fmt: skip


def fresh_store(rank: int, world_size: int, timeout_s: float) -> Any:
    """A store of this attempt's own; None where no torchrun agent serves one, and torch may use its usual way.

    torchrun may start its ranks again on the same store, where the addresses of the ranks that are gone still stand
    (seen with torch 2.15: every restart then fails to connect). The number of restarts does not tell attempts apart
    either: it stays when nodes come and go. So rank 0 draws a name for its attempt and hands it to every rank that
    says hello. It answers the hellos of the dead too, until every living rank has repeated the name.
    Raises TimeoutError or DistError when the ranks have not all come in time.
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None
    store = dist.PrefixStore("feedline/meeting", agent_store(timeout_s))  # pyright: ignore[reportPrivateImportUsage]
    me = uuid.uuid4().hex
    if rank:
        store.set(f"hello/{rank}", me)
        name = store.get(f"name/{me}").decode()
        store.set(f"heard/{me}", name)
        return dist.PrefixStore(name, store)  # pyright: ignore[reportPrivateImportUsage]
    until_s = time.monotonic() + timeout_s
    missing = set(range(1, world_size))
    while missing:
        for other in [other for other in missing if store.check([f"hello/{other}"])]:
            hello = store.get(f"hello/{other}").decode()
            store.set(f"name/{hello}", me)
            if store.check([f"heard/{hello}"]) and store.get(f"heard/{hello}").decode() == me:
                missing.discard(other)
        if time.monotonic() > until_s:
            raise TimeoutError(f"{len(missing)} of {world_size} ranks did not come")
        time.sleep(POLL_S)
    return dist.PrefixStore(me, store)  # pyright: ignore[reportPrivateImportUsage]


def is_first_to_say(message: str) -> bool:
    """Whether no other rank of this torchrun job has claimed this message yet; true where nobody can be asked."""
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    key = hashlib.sha256(message.encode()).hexdigest()[:16]
    try:
        return agent_store(5).add(f"feedline/said/{attempt}/{key}", 1) == 1
    except (RuntimeError, dist.DistError):
        return True
