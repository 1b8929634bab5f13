"""What a batch looks like from outside, whatever its structure: sample count, bytes, types. Imports no torch."""

from collections.abc import Mapping
from typing import Any

DEPTH = 6  # of nesting looked into
NODES = 128  # members looked at in all: a batch may hold lists of a million floats


def tensors(batch: Any) -> list[Any]:
    """The tensors and arrays in a batch, in order: anything with a shape and a dtype. Large structures are cut."""
    if isinstance(batch, list | tuple) and 0 < len(batch) < NODES:  # the usual batch, quickly
        flat = [one for one in batch if hasattr(one, "shape") and hasattr(one, "dtype")]
        if len(flat) == len(batch):
            return flat
    found: list[Any] = []
    pending: list[tuple[Any, int]] = [(batch, DEPTH)]
    for _ in range(NODES):
        if not pending:
            break
        one, depth = pending.pop()
        if hasattr(one, "shape") and hasattr(one, "dtype"):
            found.append(one)
        elif depth:
            pending += [(member, depth - 1) for member in reversed(_members(one))]
    return found


def _members(one: Any) -> list[Any]:
    if isinstance(one, Mapping):
        return [value for _, value in zip(range(NODES), one.values(), strict=False)]
    if isinstance(one, list | tuple):
        return list(one[:NODES])
    if hasattr(one, "__dict__") and hasattr(one, "__getitem__"):
        return list(vars(one).values())
    return []


def sizes(batch: Any) -> tuple[int | None, int]:
    """(samples, bytes) of a batch. Samples are the first tensor's first dimension, else the length of its first list;
    None if neither: exceptions and the loader's own messages are no batches."""
    found = tensors(batch)
    samples = next((int(tensor.shape[0]) for tensor in found if len(tensor.shape)), None)
    nbytes = (getattr(tensor, "nbytes", None) for tensor in found)
    return _length(batch) if samples is None else samples, sum(size for size in nbytes if isinstance(size, int))


def _length(batch: Any) -> int | None:
    if isinstance(batch, Mapping):
        return next((_length(value) for value in batch.values()), None)
    if isinstance(batch, list | tuple):
        inner = batch[0] if batch else None
        return len(inner) if isinstance(inner, list | tuple) else (len(batch) or None)
    return None


def describe(batch: Any) -> dict[str, Any]:
    """Keys of `recording.LoaderSeen`: dtypes, shapes, bytes."""
    found = tensors(batch)
    return {
        "batch_dtypes": [str(tensor.dtype).removeprefix("torch.") for tensor in found][:16],
        "batch_shapes": [[int(size) for size in tensor.shape] for tensor in found][:16],
        "batch_bytes": sizes(batch)[1],
    }
