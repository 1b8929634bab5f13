"""One iteration over one loader (a pass) and one batch of it (a row), as they are while the script runs."""

from dataclasses import dataclass, field
from typing import Any

STEP_COLUMNS = ("start", "got", "end", "samples", "bytes", "loader", "epoch", "copy", "backward", "optimizer",
                "pause", "sync", "starved", "trained", "syncs")  # fmt: skip
"""Of `Row.values`, as the journal keeps them."""
PASS_COLUMNS = ("loader", "epoch", "samples", "start_s", "end_s")
"""Of `Pass.told`."""


@dataclass(eq=False)
class Row:
    start: float
    got: float
    samples: int
    bytes: int
    loader: int
    epoch: int
    end: float = 0.0
    copy: float = 0.0
    backward: float = 0.0
    optimizer: float = 0.0
    pause: float = 0.0
    sync: float = 0.0
    syncs: int = 0
    starved: float | None = None
    trained: bool = False
    copies: list[Any] = field(default_factory=list)
    """CUDA event pairs around its host-to-device copies."""

    def values(self) -> list[Any]:
        times = (self.copy, self.backward, self.optimizer, self.pause, self.sync)
        whole = (self.samples, self.bytes, self.loader, self.epoch)
        rest = (self.starved, self.trained, self.syncs)
        return [self.start, self.got, self.end, *whole, *(round(one, 7) for one in times), *rest]


@dataclass(eq=False)
class Pass:
    loader: int
    epoch: int
    started: float
    in_trainer: bool
    outer: Row | None
    row: Row | None = None
    batches: int = 0
    samples: int = 0
    first_got: float | None = None
    """When its first batch had come."""
    last_asked: float = 0.0
    done: bool = False
    source: Any = None
    """Weak reference to the loader object; legs hold on to it, `for batch in DataLoader(…)` does not."""
    inner: list["Pass"] = field(default_factory=list)

    def told(self, ended: float | None) -> list[Any]:
        """By `PASS_COLUMNS`; `ended` is when the loader said that there is no more."""
        start_s = (self.first_got or self.started) - self.started
        return [self.loader, self.epoch, self.samples, start_s, None if ended is None else ended - self.last_asked]
