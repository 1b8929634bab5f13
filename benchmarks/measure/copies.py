"""How fast bytes get to the GPU: from the loader's page-locked slots, from what torch pinned, from pageable memory.

Each copy is made by itself and waited for, which costs a hundredth of a batch's copy.
"""

import time
from dataclasses import dataclass

import torch

from feedline.pipeline.device import page_lock
from feedline.pipeline.workers.memory import SharedMemory

PARTS, PART_S = 5, 0.06
WARM_UP = 3


@dataclass(frozen=True, kw_only=True)
class Copies:
    source: str
    """slots, pinned or pageable."""
    size_bytes: int
    bytes_per_s: list[float]
    """One for each part of the time."""


def measure_copies(size_bytes: int, device: torch.device) -> list[Copies]:
    """Of batches so large, to a CUDA device."""
    memory = SharedMemory("copies", size_bytes)
    unlock = page_lock(memory, device)
    sources = {
        "slots": torch.frombuffer(memory.map, dtype=torch.uint8)[:size_bytes],
        "pinned": torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True),
        "pageable": torch.empty(size_bytes, dtype=torch.uint8),
    }
    target = torch.empty(size_bytes, dtype=torch.uint8, device=device)
    try:
        return [
            Copies(source=name, size_bytes=size_bytes, bytes_per_s=rates(source.fill_(1), target))
            for name, source in sources.items()
        ]
    finally:
        unlock()


def rates(source: torch.Tensor, target: torch.Tensor) -> list[float]:
    def copy() -> None:
        target.copy_(source, non_blocking=True)
        torch.cuda.synchronize(target.device)

    for _ in range(WARM_UP):
        copy()
    found: list[float] = []
    for _ in range(PARTS):
        started_s, count = time.perf_counter(), 0
        while (spent_s := time.perf_counter() - started_s) < PART_S:
            copy()
            count += 1
        found.append(count * source.nbytes / spent_s)
    return found
