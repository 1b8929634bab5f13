"""Where a worker's time goes: a row a stage. A new stage is its row here and its rules in `watch/rules.py`."""

from typing import NamedTuple


class Stage(NamedTuple):
    words: str  # in a sentence: 41 % in decoding
    hue: str  # CSS variable of the charts' palette
    shrinks: bool = False  # with smaller pictures and prepared shards
    computes: bool = False  # it wants a core: cheaper samples help where workers lack cores
    makes: bool = False  # who does it makes batches, in the training thread too


STAGES: dict[str, Stage] = {
    "read": Stage("reading", "c5", shrinks=True, makes=True),
    "decode": Stage("decoding", "c1", shrinks=True, computes=True, makes=True),
    "transform": Stage("transforming", "c3", shrinks=True, computes=True),
    "collate": Stage("collating", "c2", computes=True),
    "send": Stage("sending", "c4", computes=True),  # serialising and handing over
    "blocked": Stage("waiting for something outside", "c7"),  # a sleep, a server: neither a core nor a file
    "lock": Stage("waiting for a lock", "c9"),  # that another thread or worker holds
    "idle": Stage("waiting for work", "c8"),
    "other": Stage("other work", "c6"),
}
