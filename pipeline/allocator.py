"""Freed memory is kept for the next step instead of going back to the kernel.

A training step on the CPU allocates and frees the same activations every time. glibc's malloc gives large blocks and
the heap's free end back to the kernel at once, so each step takes thousands of page faults to get zeroed pages again:
a quarter of the small CNN's step, and more than half of MobileNetV2's at 224 px (benchmarks/NOTES.md).
"""

import ctypes
import os
import sys

M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
"""Parameters of mallopt(3)."""
KEPT_BYTES = 1 << 30
ENVIRONMENT = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES", "LD_PRELOAD")


def keep_freed_memory(most_bytes: int = KEPT_BYTES) -> bool:
    """For the whole process and the rest of its life. The process stays as large as its largest step made it.

    Blocks over `most_bytes` still come from the kernel and go back to it, and so does what is free at the heap's end
    beyond that. Returns whether malloc was told. It is not where there is no glibc, nor where its user has chosen:
    mallopt's own environment variables or another allocator (`LD_PRELOAD`) are left alone.
    """
    if not sys.platform.startswith("linux") or any(os.environ.get(name) for name in ENVIRONMENT):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # musl has none
        return False
    return bool(mallopt(M_TRIM_THRESHOLD, most_bytes) and mallopt(M_MMAP_THRESHOLD, most_bytes))
