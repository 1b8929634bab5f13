"""Which rank of a job this process is, and how many workers that leaves it."""

import os

import torch

from feedline.pipeline.base.errors import UsageError
from feedline.pipeline.base.process import from_environment, usable_cores, usable_memory_bytes

LATER = "make the Loader once the process group is there, or give rank and world_size"
MOST_WORKERS = 16
"""Of a loader that is told no number."""


def which_rank(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """(rank, world size): as given, else the process group's, else torchrun's environment, else (0, 1)."""
    if rank is None and world_size is None:
        group = torch.distributed
        if group.is_available() and group.is_initialized():
            rank, world_size = group.get_rank(), group.get_world_size()
        else:
            rank, world_size = from_environment("RANK", 0), from_environment("WORLD_SIZE", 1)
            if world_size > 1 and "RANK" not in os.environ:
                if "LOCAL_RANK" in os.environ:  # Lightning's processes have no more before their group is made
                    raise UsageError(f"WORLD_SIZE={world_size}, and RANK is not set: {LATER}")
                world_size = 1  # left over from another job
    elif rank is None or world_size is None:
        raise UsageError("give rank and world_size together, or neither")
    if not 0 <= rank < world_size:
        raise UsageError(f"rank {rank} is not one of the {world_size} ranks 0 to {world_size - 1}")
    return rank, world_size


def check_still(rank: int, world_size: int, *, given: bool) -> None:
    """Raises UsageError where the process group, made since, knows another place than a loader took itself to have:
    every rank would be handed the same samples."""
    group = torch.distributed
    if given or not (group.is_available() and group.is_initialized()):
        return
    if (now := (group.get_rank(), group.get_world_size())) != (rank, world_size):
        words = f"this Loader was made as rank {rank} of {world_size}, and is rank {now[0]} of {now[1]} now"
        raise UsageError(f"{words}: {LATER}")


def ranks_here() -> int:
    """Of this host."""
    return max(1, from_environment("LOCAL_WORLD_SIZE", 1))


def default_workers() -> int:
    """One per core this rank may use: affinity and cgroup quota, shared with the other ranks of the host."""
    return max(1, min(MOST_WORKERS, usable_cores() // ranks_here()))


def memory_bytes() -> int:
    """This rank's share of the memory that the machine has or the control group allows."""
    return usable_memory_bytes() // ranks_here()
