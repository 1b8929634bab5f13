"""The kernel at every level that this processor has: all of them give the same bytes."""

from collections.abc import Callable

import numpy as np
import pytest

from feedline.pipeline.kernel import compiled
from feedline.pipeline.kernel.compiled import Kernel, Pixels


def kernel() -> Kernel:
    """Skips the module where there is none."""
    if compiled.KERNEL is None:
        pytest.skip(f"there is no compiled kernel: {compiled.TROUBLE}", allow_module_level=True)
    return compiled.KERNEL


def at_every_level(work: Callable[[Kernel], Pixels]) -> Pixels:
    """What it gives, the same at each; the level before is in use again afterwards."""
    used, before = kernel(), kernel().level()
    try:
        results: dict[str, Pixels] = {}
        for level in used.LEVELS:
            used.use(level)
            results[level] = work(used)
    finally:
        used.use(before)
    first, *others = results
    for other in others:
        assert np.array_equal(results[first], results[other]), f"{other} differs from {first}"
    return results[first]
