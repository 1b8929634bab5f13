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


def attach(descriptor: int, *, writable: bool = True) -> memoryview:
    """Maps what another process made; the descriptor may be closed afterwards."""
    access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
    return memoryview(mmap.mmap(descriptor, os.fstat(descriptor).st_size, access=access))


def round_up(size_bytes: int, unit_bytes: int = PAGE_BYTES) -> int:
    return -(-size_bytes // unit_bytes) * unit_bytes


class Columns:
    """Named one-dimensional arrays packed one after another: a worker maps them and copies none."""

    @staticmethod
    def pack(arrays: dict[str, npt.NDArray[Any]]) -> tuple[SharedMemory, dict[str, list[Any]]]:
        """The memory, and for each name [dtype, length, offset] as JSON can carry it."""
        layout: dict[str, list[Any]] = {}
        end_bytes = 0
        for name, array in arrays.items():
            layout[name] = [array.dtype.str, len(array), end_bytes]
            end_bytes += round_up(array.nbytes, 64)
        memory = SharedMemory("index", end_bytes)
        for name, shared in Columns.unpack(memory.view, layout).items():
            shared[:] = arrays[name]
        return memory, layout

    @staticmethod
    def unpack(view: memoryview, layout: dict[str, list[Any]]) -> dict[str, npt.NDArray[Any]]:
        return {
            name: np.frombuffer(view, np.dtype(dtype), length, offset)
            for name, (dtype, length, offset) in layout.items()
        }
