"""Ranks of one measured training: forks of the measuring process, which stays rank 0 and holds the meter.

They step in time through DistributedDataParallel, over gloo on CPUs (a rank is a process) and NCCL on GPUs (a rank
is a GPU). Forking after torch's import costs no second one; nothing may have started a thread or touched a GPU yet.
The forks share rank 0's process group, which `benchmarks.measure.fork_server` ends as a whole after the window.
"""

import os
import signal
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from feedline.benchmarks.measure.rounds import require_torch
from feedline.pipeline.base.errors import UsageError
from feedline.pipeline.base.process import die_with_parent, usable_cores


def run_ranks(count: int, device: str, train: Callable[[int], None]) -> None:
    """`train(rank)` in `count` processes: rank 0 in this one, whose end this is; the others end with it."""
    meeting = Path(tempfile.mkdtemp(prefix="feedline-ranks-")) / "store"
    forks = [fork for fork in (start(rank, count, device, meeting, train) for rank in range(1, count)) if fork]
    try:
        join(0, count, device, meeting)
        train(0)
    finally:
        for fork in forks:
            os.kill(fork, signal.SIGKILL)
            os.waitpid(fork, 0)
        meeting.unlink(missing_ok=True)
        meeting.parent.rmdir()


def start(rank: int, count: int, device: str, meeting: Path, train: Callable[[int], None]) -> int:
    """The new process's id; in that process it does not return."""
    fork = os.fork()
    if fork:
        return fork
    try:
        die_with_parent()
        join(rank, count, device, meeting)
        train(rank)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def join(rank: int, count: int, device: str, meeting: Path) -> None:
    import torch
    import torch.distributed as dist

    if device == "cpu":
        torch.set_num_threads(max(1, usable_cores() // count))
    else:
        torch.cuda.set_device(rank)
    dist.init_process_group(
        "gloo" if device == "cpu" else "nccl", init_method=meeting.as_uri(), rank=rank, world_size=count
    )


def together(model: Any, device: str, rank: int) -> Any:
    """The model whose gradients are shared with the other ranks."""
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel(model, device_ids=None if device == "cpu" else [rank])


def check_devices(counts: list[int], device: str, models: list[str], pinned: Sequence[bool] = ()) -> str:
    """The device, cpu or cuda, asked for here: to ask torch in a process that forks would spoil the forks.

    Raises UsageError, before anything is measured, for a device or a count that cannot have an effect here.
    """
    require_torch()
    if device not in ("auto", "cpu", "cuda"):
        raise UsageError(f"--device {device}: known are auto, cpu and cuda")
    if max(counts) > 1 and not models:
        raise UsageError("--devices changes nothing where the loader runs alone: add --model, as --model small_cnn")
    if models:
        from feedline.train.models import check_name

        for name in models:
            check_name(name)
    if device == "cpu" and not any(pinned):
        return device
    import torch

    there = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if any(pinned) and not there:
        raise UsageError("--pin-memory true: memory is pinned for a GPU, and torch sees none here")
    if device == "cuda" and not there:
        raise UsageError("--device cuda: torch sees no CUDA device here, use --device cpu")
    if there and max(counts) > there:
        raise UsageError(f"--devices {max(counts)}: there are {there} GPUs here")
    return "cuda" if there and device != "cpu" else "cpu"
