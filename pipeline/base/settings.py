"""What settings have in common: limits, and defaults of more than one room.

A limit is said once, beside a field's default. The settings check it when they are made, and the command line makes
its option's range from it.
"""

import json
from collections.abc import Mapping
from dataclasses import MISSING, field, fields
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_type_hints

from feedline.pipeline.base.errors import UsageError

MOST = 10**9
"""No usual number is larger: torch takes no infinity, and counts threads and samples in 32 bits."""
MOST_THREADS = 4096
"""More than any host's cores: OpenMP ends the process where it cannot start them."""
TINY = 1e-9
"""The least of what must be above 0."""
UNITS = ("s", "px", "gib")

Policy = Literal["drop", "pad", "wrap"]
"""What becomes of an incomplete last batch."""
OnBad = Literal["raise", "skip", "replace"]
"""What becomes of a sample that cannot be used."""
BATCH_SIZE = 64
"""Samples per rank."""
IMAGE_SIZE = 224
"""Side of the images that a model is given, px."""
PREFETCH = 2
"""Batches under way per worker of feedline's loader."""
TORCH_PREFETCH = 2
"""The same of torch's DataLoader, and of whatever other loader does not tell."""
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


Kind = TypeVar("Kind")


def plain(settings: object) -> dict[str, Any]:
    """A dataclass's fields as JSON and torch's `weights_only` know them, for `from_plain`."""
    return json.loads(json.dumps(vars(settings), default=str))


def from_plain(kind: type[Kind], settings: Mapping[str, Any]) -> Kind:
    """An object of that dataclass from what JSON made of one: lists are tuples again, and paths paths.

    Raises UsageError for a setting that it does not have.
    """
    hints = get_type_hints(kind)
    if unknown := sorted(settings.keys() - hints.keys()):
        raise UsageError(f"these are settings of another version of feedline: {unknown[0]!r} is not known here")
    paths = {name for name, hint in hints.items() if Path in (hint, *get_args(hint))}
    return kind(**{
        name: Path(value) if name in paths and value is not None else _tuples(value)
        for name, value in settings.items()
    })  # fmt: skip


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def limited(default: Any = MISSING, least: float = 0, most: float = MOST, words: tuple[str, ...] = ()) -> Any:
    """A dataclass's number, or tuple of numbers: each from `least` to `most`, or None, or one of the words."""
    return field(default=default, metadata={"limits": (least, most), "words": words})


def is_word(setting: Any, value: Any) -> bool:
    """Whether the value is one of the words that may stand for the field's number."""
    return isinstance(value, str) and value in setting.metadata.get("words", ())


def check_limits(settings: Any) -> None:
    """For `__post_init__`. Raises UsageError, in one line that names the option."""
    for setting in fields(settings):
        limits, value = setting.metadata.get("limits"), getattr(settings, setting.name)
        if limits is None or value is None or is_word(setting, value):
            continue
        least, most = limits
        numbers = value if isinstance(value, tuple) else (value,)
        if not all(least <= number <= most for number in numbers):  # what is no number is neither
            limit = f"at most {most:,}" if any(number > most for number in numbers) else f"at least {least:,}"
            unit = setting.name.rpartition("_")[2]
            words, given = f"{limit} {unit}" if unit in UNITS else limit, ",".join(map(str, numbers))
            raise UsageError(f"--{setting.name.replace('_', '-')} {given}: {words}")
