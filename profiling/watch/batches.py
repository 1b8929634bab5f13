"""What a batch looks like from outside, whatever its structure: sample count, bytes, types. Imports no torch.

Whatever a batch's own attributes raise is kept from the script, whose `next` this runs in: nested tensors have no
shape to tell, sparse ones no size.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from feedline.profiling.watch.facts import quietly

DEPTH = 6  # of nesting looked into
NODES = 128  # members looked at in all: a batch may hold lists of a million floats


def tensors(batch: Any) -> list[Any]:
    """The tensors and arrays in a batch, in order: anything with a shape and a dtype. Large structures are cut."""
    if isinstance(batch, list | tuple) and 0 < len(batch) < NODES:  # the usual batch, quickly
        flat = [one for one in batch if _is_array(one)]
        if len(flat) == len(batch):
            return flat
    found: list[Any] = []
    pending: list[tuple[Any, int]] = [(batch, DEPTH)]
    for _ in range(NODES):
        if not pending:
            break
        one, depth = pending.pop()
        if _is_array(one):
            found.append(one)
        elif depth:
            pending += [(member, depth - 1) for member in reversed(quietly(lambda one=one: _members(one)) or [])]
    return found


def _is_array(one: Any) -> bool:
    try:
        return hasattr(one, "shape") and hasattr(one, "dtype")
    except Exception:
        return False


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
    try:  # the usual batch, quickly
        return int(found[0].shape[0]), sum(int(one.nbytes) for one in found)
    except Exception:
        return _sizes_of_others(batch, found)


def _sizes_of_others(batch: Any, found: Sequence[Any]) -> tuple[int | None, int]:
    shapes = (_shape(one) for one in found)
    samples = next((shape[0] for shape in shapes if shape), None)
    nbytes = (quietly(lambda one=one: one.nbytes) for one in found)
    size = sum(size for size in nbytes if isinstance(size, int))
    return quietly(lambda: _length(batch)) if samples is None else samples, size


def _shape(array: Any) -> list[int]:
    """The dimensions that are numbers: not those of a jagged tensor, which differ from row to row."""
    found = (quietly(lambda size=size: int(size)) for size in quietly(lambda: list(array.shape)) or [])
    return [size for size in found if size is not None]


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
        "batch_dtypes": [str(quietly(lambda one=one: one.dtype)).removeprefix("torch.") for one in found][:16],
        "batch_shapes": [_shape(one) for one in found][:16],
        "batch_bytes": sizes(batch)[1],
    }
