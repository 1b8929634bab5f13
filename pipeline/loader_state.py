"""Where a loader is in its epochs, in plain JSON: what `Loader.state_dict` gives and `load_state_dict` takes.

What a position means is decided by the order, so all that decides the order is in it: the seed, and ORDER. A state
moved from a remote split (a window of shards) to a local copy (none) would go on in another order, in silence.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from feedline.pipeline.base.errors import UsageError
from feedline.pipeline.loader_config import MANY, MOST_EPOCH, LoaderConfig, whole

VERSION = 2
ORDER = ("shuffle", "window_shards", "subset", "class_balanced")
"""Of the loader's settings, beside the seed."""


@dataclass(frozen=True)
class Place:
    """Behind so many samples of an epoch, those of all ranks."""

    epoch: int = 0
    samples: int = 0
    begins: Literal["here", "here if anything is left", "with the next epoch"] = "here"
    """The next `iter()`."""


@dataclass(frozen=True, kw_only=True)
class Order:
    """One loader's, for as long as it lives."""

    folder: Path
    """Of the split, for messages."""
    manifest: str
    """The split's identity."""
    settings: dict[str, Any]
    """The seed, and ORDER's."""

    @classmethod
    def of(cls, config: LoaderConfig, folder: Path, manifest: str, window_shards: int) -> "Order":
        """`window_shards`: what None of the setting stands for here is known to the loader alone."""
        shuffle = bool(config.train if config.shuffle is None else config.shuffle)
        settings = {"seed": config.seed, "shuffle": shuffle, "window_shards": window_shards if shuffle else 0,
                    "subset": config.part, "class_balanced": bool(config.class_balanced)}  # fmt: skip
        return cls(folder=folder, manifest=manifest, settings=settings)

    def state(self, place: Place) -> dict[str, Any]:
        where = {"epoch": place.epoch, "samples": place.samples}
        return {"version": VERSION, **where, "manifest": self.manifest, **self.settings}

    def place(self, state: Any) -> Place:
        """Where it goes on. Raises UsageError for a state of another dataset or order, and for what is none; nothing
        has been taken of it then."""
        said: dict[str, Any] = dict(state) if isinstance(state, Mapping) else {}
        if said.get("version") != VERSION:
            raise UsageError(f"this is not a loader's state of version {VERSION}: {state!r:.80}")
        for name in ("epoch", "manifest", "samples", "seed", *ORDER):
            if name not in said:
                raise UsageError(f"this loader's state lacks {name!r}: {state!r:.80}")
        epoch = whole("epoch", said["epoch"], 0, MOST_EPOCH)
        samples = whole("samples", said["samples"], 0, MANY)
        if said["manifest"] != self.manifest:
            raise UsageError(f"the state is of another dataset than {self.folder}: it was prepared anew since")
        for name, mine in self.settings.items():
            if said[name] != mine:
                theirs = _option(name, said[name])
                remedy = f"give it {theirs}, or begin an epoch with set_epoch instead"
                raise UsageError(f"the state was made with {theirs}, this loader has {_option(name, mine)}: {remedy}")
        return Place(epoch, samples, "here if anything is left")


def _option(name: str, value: Any) -> str:
    """As a loader takes it; a part of the samples is up to three options."""
    if name != "subset" or not isinstance(value, Mapping):
        return f"{name}={value!r}"
    part = cast("Mapping[str, Any]", value)
    options = {"classes": part.get("classes"), "subset": part.get("samples"), "subset_seed": part.get("seed")}
    return ", ".join(f"{option}={setting!r}" for option, setting in options.items() if setting is not None)
