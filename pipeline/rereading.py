"""Whether the page cache keeps a split from one epoch to the next, by the kernel's account of what came from storage.

In random order a cache smaller than the data is of little use: what is needed next was used at any time of the epoch
before. Nothing is lost against the first epoch, but nothing is gained, and each sample is a request of its own again.
What helps where requests are slow is a window of whole shards that stays in memory.
"""

from collections.abc import Sequence

AGAIN = 0.5
"""Of the bytes read in an epoch: from so much on, it came from storage."""


def window_fits(shards: int, shard_bytes: float, room_bytes: float) -> int:
    """Shards of the largest window that surely stays in memory while it is mixed and the next one is read: both have
    half of it."""
    return int(min(shards, room_bytes / 4 // max(1.0, shard_bytes)))


class Rereading:
    def __init__(self, shards_bytes: Sequence[int], memory_bytes: int, window_shards: int) -> None:
        self._shards_bytes, self._memory_bytes, self._window_shards = shards_bytes, memory_bytes, window_shards
        self._read = self._stored = self._epochs = 0
        self.note = ""
        """For people, in one line; "" where there is nothing to say."""

    def epoch_ended(self, epoch: int, read_bytes: int, storage_bytes: int) -> None:
        """A whole one. What was read, and of it from storage, since the loader was made; a file system that keeps no
        account of it (FUSE) has 0."""
        read, stored = read_bytes - self._read, storage_bytes - self._stored
        self._read, self._stored, self._epochs = read_bytes, storage_bytes, self._epochs + 1
        again = self._epochs > 1 and stored > AGAIN * read > 0
        self.note = self._said(epoch, stored / read) if again else ""

    def _said(self, epoch: int, share: float) -> str:
        split_bytes = sum(self._shards_bytes)
        of, room = (f"{size_bytes / 2**30:,.1f} GiB" for size_bytes in (split_bytes, self._memory_bytes))
        again = f"epoch {epoch} had {min(share, 1):.0%} of its bytes from storage again"
        said = f"{again} ({of} of shards, {room} of memory)"
        if self._window_shards:
            return said
        shards = len(self._shards_bytes)
        if not (fits := window_fits(shards, split_bytes / max(1, shards), self._memory_bytes)):
            return f"{said}: not even a window of one shard fits into memory, prepare smaller ones (--shard-size)"
        return f"{said}: where random requests are slow, window_shards={fits} reads whole shards, and fits"
