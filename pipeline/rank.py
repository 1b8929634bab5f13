"""Which of the training job's processes this one is."""

import os

import torch

from feedline.pipeline.base.errors import UsageError


def place(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """(rank, world size): as given, else the process group's, else torchrun's environment, else (0, 1)."""
    if rank is None and world_size is None:
        group = torch.distributed
        if group.is_available() and group.is_initialized():
            rank, world_size = group.get_rank(), group.get_world_size()
        else:
            rank, world_size = from_environment("RANK", 0), from_environment("WORLD_SIZE", 1)
    elif rank is None or world_size is None:
        raise UsageError("give rank and world_size together, or neither")
    if not 0 <= rank < world_size:
        raise UsageError(f"rank {rank} is not one of the {world_size} ranks 0 to {world_size - 1}")
    return rank, world_size


def from_environment(name: str, default: int) -> int:
    """What torchrun sets, as a number. Raises UsageError for anything else."""
    text = os.environ.get(name, "")
    try:
        return int(text) if text else default
    except ValueError as error:
        raise UsageError(f"{name}={text} in the environment is no number: unset it or use torchrun") from error
