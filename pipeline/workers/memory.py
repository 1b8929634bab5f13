"""Anonymous memory shared by file descriptor (memfd): no name, no /dev/shm, nothing left after kill -9."""

import mmap
import os
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from feedline.pipeline.base.errors import FeedlineError

PAGE_BYTES = mmap.PAGESIZE


class SharedMemory:
    """`size_bytes` of zeroed memory; `descriptor` may be inherited by or sent to another process, which opens it."""

    def __init__(self, name: str, size_bytes: int) -> None:
        """`name` only shows up in /proc. Raises FeedlineError when there is no memory for it."""
        self.size_bytes = max(PAGE_BYTES, round_up(size_bytes))
        self.descriptor = os.memfd_create(f"feedline-{name}", os.MFD_CLOEXEC)
        try:
            os.ftruncate(self.descriptor, self.size_bytes)
            self.map = mmap.mmap(self.descriptor, self.size_bytes)
        except (OSError, OverflowError) as error:
            self.close_descriptor()
            size, why = f"{self.size_bytes / 2**20:,.0f} MiB", getattr(error, "strerror", "no machine has as much")
            raise FeedlineError(f"cannot share {size} of memory with the workers: {why}") from error

    @property
    def view(self) -> memoryview:
        return memoryview(self.map)

    def close_descriptor(self) -> None:
        """The mapping stays for as long as an array shows it; only the handle goes. So it does with its owner."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def __del__(self) -> None:
        with suppress(OSError, AttributeError):  # it was never made, or the interpreter is ending
            self.close_descriptor()


def attach(descriptor: int) -> memoryview:
    """Maps what another process made; the descriptor may be closed afterwards."""
    return memoryview(mmap.mmap(descriptor, os.fstat(descriptor).st_size))


def round_up(size_bytes: int, unit_bytes: int = PAGE_BYTES) -> int:
    return -(-size_bytes // unit_bytes) * unit_bytes


Layout = dict[str, list[Any]]
"""Name of a column -> [dtype, length, offset], as JSON can carry it."""


def share_columns(arrays: dict[str, npt.NDArray[Any]]) -> tuple[SharedMemory, Layout]:
    """One-dimensional arrays one after another in one memory: a worker maps them and copies none."""
    layout: Layout = {}
    end_bytes = 0
    for name, array in arrays.items():
        layout[name] = [array.dtype.str, len(array), end_bytes]
        end_bytes += round_up(array.nbytes, 64)
    memory = SharedMemory("index", end_bytes)
    for name, shared in shared_columns(memory.view, layout).items():
        shared[:] = arrays[name]
    return memory, layout


def shared_columns(view: memoryview, layout: Layout) -> dict[str, npt.NDArray[Any]]:
    return {name: np.frombuffer(view, *place) for name, place in layout.items()}
