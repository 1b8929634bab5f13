"""What a batch looks like from outside, whatever its structure: sample count, bytes, types. Imports no torch."""

from collections.abc import Iterator, Mapping
from typing import Any

DEPTH = 6  # of nesting looked into
WIDTH = 64  # members of one container looked at


def tensors(batch: Any, depth: int = DEPTH) -> Iterator[Any]:
    """Every tensor or array in a batch, in order: anything with a shape, a dtype and a length."""
    if hasattr(batch, "shape") and hasattr(batch, "dtype"):
        yield batch
    elif depth and isinstance(batch, Mapping):
        for _, value in zip(range(WIDTH), batch.values(), strict=False):
            yield from tensors(value, depth - 1)
    elif depth and isinstance(batch, list | tuple):
        for value in batch[:WIDTH]:
            yield from tensors(value, depth - 1)
    elif depth and hasattr(batch, "__dict__") and hasattr(batch, "__getitem__"):
        yield from tensors(list(vars(batch).values()), depth - 1)


def batch_samples(batch: Any) -> int | None:
    """Samples in a batch: the first tensor's first dimension, else the length of its first list; None if neither.

    Exceptions and the loader's own messages are no batches.
    """
    for tensor in tensors(batch):
        if len(tensor.shape):
            return int(tensor.shape[0])
    return _length(batch)


def _length(batch: Any) -> int | None:
    if isinstance(batch, Mapping):
        return next((_length(value) for value in batch.values()), None)
    if isinstance(batch, list | tuple):
        inner = batch[0] if batch else None
        return len(inner) if isinstance(inner, list | tuple) else (len(batch) or None)
    return None


def tensor_bytes(tensor: Any) -> int:
    nbytes = getattr(tensor, "nbytes", None)
    return int(nbytes) if isinstance(nbytes, int) else 0


def batch_bytes(batch: Any) -> int:
    return sum(tensor_bytes(tensor) for tensor in tensors(batch))


def describe(batch: Any) -> dict[str, Any]:
    """Keys of `recording.LoaderSeen`: dtypes, shapes, bytes, device, pinned."""
    found = list(tensors(batch))
    first = found[0] if found else None
    return {
        "batch_dtypes": [str(tensor.dtype).removeprefix("torch.") for tensor in found][:16],
        "batch_shapes": [[int(size) for size in tensor.shape] for tensor in found][:16],
        "batch_bytes": sum(map(tensor_bytes, found)),
        "batch_device": str(getattr(first, "device", "cpu")) if found else None,
        "pinned": bool(_pinned(first)) if found else None,
    }


def _pinned(tensor: Any) -> bool:
    check = getattr(tensor, "is_pinned", None)
    try:
        return bool(check()) if callable(check) else False
    except RuntimeError:
        return False
