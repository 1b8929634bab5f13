"""How the ranks of one attempt of a torchrun job find each other, and nobody of an earlier attempt.

torchrun may start its ranks again on the same key-value store, where the addresses of the ranks that are gone still
stand (seen with torch 2.15: every restart then fails to connect). The number of restarts does not tell attempts apart
either: it stays when nodes come and go. So rank 0 draws a new name for its attempt, hands it to every rank that says
hello, and all of them meet under that name.
"""

import os
import time
import uuid
from datetime import timedelta
from typing import Any

import torch.distributed as dist

POLL_S = 0.05
_PREFIX = "feedline/meeting"


def fresh_store(rank: int, world_size: int, timeout_s: float) -> Any:
    """A store of this attempt's own; None where no torchrun agent serves one, and torch may use its usual way.

    Raises TimeoutError when the ranks have not all come in time.
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store: Any = dist.TCPStore(  # pyright: ignore[reportPrivateImportUsage]
        address, port, is_master=False, timeout=timedelta(seconds=timeout_s)
    )
    until_s = time.monotonic() + timeout_s
    name = _hand_out(store, world_size, until_s) if rank == 0 else _ask(store, rank, until_s)
    return dist.PrefixStore(f"{_PREFIX}/{name}", store)  # pyright: ignore[reportPrivateImportUsage]


def _hand_out(store: Any, world_size: int, until_s: float) -> str:
    """Rank 0: answers every hello, also those of the dead, until every rank has repeated the name."""
    name = uuid.uuid4().hex
    missing = set(range(1, world_size))
    while missing:
        for rank in sorted(missing):
            hello = _read(store, f"{_PREFIX}/hello/{rank}")
            if hello is None:
                continue
            store.set(f"{_PREFIX}/name/{hello}", name)
            if _read(store, f"{_PREFIX}/heard/{hello}") == name:
                missing.discard(rank)
        _pause(until_s, f"{len(missing)} of {world_size} ranks did not come")
    return name


def _ask(store: Any, rank: int, until_s: float) -> str:
    me = uuid.uuid4().hex
    store.set(f"{_PREFIX}/hello/{rank}", me)
    while (name := _read(store, f"{_PREFIX}/name/{me}")) is None:
        _pause(until_s, "rank 0 did not come")
    store.set(f"{_PREFIX}/heard/{me}", name)
    return name


def _read(store: Any, key: str) -> str | None:
    return store.get(key).decode() if store.check([key]) else None


def _pause(until_s: float, otherwise: str) -> None:
    if time.monotonic() > until_s:
        raise TimeoutError(otherwise)
    time.sleep(POLL_S)
