"""What a batch looks like from outside, whatever its structure: sample count, bytes, types. Imports no torch.

Whatever a batch's own attributes raise is kept from the script, whose `next` this runs in: nested tensors have no
shape to tell, sparse ones no size.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from feedline.profiling.watch.facts import quietly

DEPTH = 6  # of nesting looked into
NODES = 128  # members looked at in all: a batch may hold lists of a million floats
COUNTED = 4096  # … where its tensors are counted, once
CHANNELS = (1, 3, 4)  # of a picture


def tensors(batch: Any) -> list[Any]:
    """The tensors and arrays in a batch, in order: anything with a shape and a dtype. Large structures are cut."""
    if isinstance(batch, list | tuple) and 0 < len(batch) < NODES:  # the usual batch, quickly
        flat = [one for one in batch if _is_array(one)]
        if len(flat) == len(batch):
            return flat
    return [one for one, array in _walk(batch) if array]


def parts(batch: Any) -> list[Any]:
    """All that it consists of, containers before their members. Large structures are cut."""
    return [one for one, _ in _walk(batch)]


def _walk(batch: Any, most: int = NODES) -> Iterator[tuple[Any, bool]]:
    """Its parts, and whether each is an array."""
    pending: list[tuple[Any, int]] = [(batch, DEPTH)]
    for _ in range(most):
        if not pending:
            break
        one, depth = pending.pop()
        array = _is_array(one)
        yield one, array
        if depth and not array:
            members = quietly(lambda one=one: _members(one, most)) or []
            pending += [(member, depth - 1) for member in reversed(members)]


def _is_array(one: Any) -> bool:
    try:
        return hasattr(one, "shape") and hasattr(one, "dtype")
    except Exception:
        return False


def _is_torchs(one: Any) -> bool:
    """A tensor, and no array of NumPy's; asked of its class, for what an object says may be anything."""
    return bool(quietly(lambda: hasattr(type(one), "untyped_storage")))


def _members(one: Any, most: int = NODES) -> list[Any]:
    if isinstance(one, Mapping):
        return [value for _, value in zip(range(most), one.values(), strict=False)]
    if isinstance(one, list | tuple):
        return list(one[:most])
    if hasattr(type(one), "__dataclass_fields__"):
        return [getattr(one, name, None) for name in type(one).__dataclass_fields__]
    if hasattr(one, "__dict__") and hasattr(one, "__getitem__"):
        return list(vars(one).values())
    return []


def sizes(batch: Any, batch_size: int | None = None) -> tuple[int | None, int]:
    """(samples, bytes) of a batch. Samples are the first tensor's first dimension, or the length of a list of samples
    that it is in, as detection's are (`batch_size`: the loader's own); else the length of its first list; None if
    neither: exceptions and the loader's own messages are no batches."""
    found = tensors(batch)
    try:  # the usual batch, quickly
        samples, size = int(found[0].shape[0]), sum(int(one.nbytes) for one in found)
    except Exception:
        return _sizes_of_others(batch, found, batch_size)
    return samples if samples == batch_size else _listed(batch, found[0], batch_size) or samples, size


def _sizes_of_others(batch: Any, found: Sequence[Any], batch_size: int | None) -> tuple[int | None, int]:
    first = next((one for one in found if _shape(one)), None)
    nbytes = (quietly(lambda one=one: one.nbytes) for one in found)
    size = sum(size for size in nbytes if isinstance(size, int))
    if first is None:
        return quietly(lambda: _length(batch)), size
    return _listed(batch, first, batch_size) or _shape(first)[0], size


def _listed(batch: Any, first: Any, batch_size: int | None) -> int | None:
    """How many samples a list around the batch's first tensor has; None where it holds none by one: tensors of whole
    batches, such as several crops, are lists too."""
    shape = _shape(first)
    picture = len(shape) == 3 and shape[0] in CHANNELS
    if batch_size is None and not picture:
        return None
    lists = quietly(lambda: _lists_around(batch, first)) or []
    if batch_size is not None and any(len(one) == batch_size for one in lists):
        return batch_size
    return next((len(one) for one in reversed(lists) if picture and _alike(one)), None)


def _lists_around(batch: Any, array: Any) -> list[Sequence[Any]]:
    """The outermost first."""
    lists: list[Sequence[Any]] = []
    while batch is not None and batch is not array and len(lists) < DEPTH:
        lists += [cast("Sequence[Any]", batch)] if isinstance(batch, list | tuple) else []
        members = _members(batch)
        batch = next((one for one in members if one is array or any(found is array for found in tensors(one))), None)
    return lists


def _alike(samples: Sequence[Any]) -> bool:
    """Whether they may be samples of one kind: a picture and its label are not."""
    return len({(type(one), len(shape := _shape(one)), *shape[:1]) for one in samples[:NODES]}) == 1


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
    """Keys of `recording.LoaderSeen`: dtypes, shapes, bytes, and how many tensors of torch's there are."""
    found = tensors(batch)
    return {
        "batch_dtypes": [str(quietly(lambda one=one: one.dtype)).removeprefix("torch.") for one in found][:16],
        "batch_shapes": [_shape(one) for one in found][:16],
        "batch_bytes": sizes(batch)[1],
        "batch_tensors": len({id(one) for one, array in _walk(batch, COUNTED) if array and _is_torchs(one)}),
    }
