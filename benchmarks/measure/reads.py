"""What the storage under a dataset gives, by reading the dataset: pieces of a sample's size from random places, with
1, 4, 16 … reads under way at once while more of them bring more, and long files from their beginning on. A second.

Reads go past the page cache (O_DIRECT), so that they come from the storage whatever is in memory, and nothing that
others have there is dropped for them. A file system that refuses that is read as usual: then nobody knows whence.
"""

import ctypes
import itertools
import mmap
import os
import random
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from feedline.pipeline.base.errors import DatasetError
from feedline.pipeline.base.files import refused_as
from feedline.profiling.record.measurements import Reads

if TYPE_CHECKING:
    from feedline.pipeline.format.manifest import Index  # with Arrow, which a profile does without

AT_ONCE = (1, 4, 16, 64, 256)
MORE = 1.2
"""Times as much as with fewer at once that a number must bring for the next one to be tried."""
SEQUENTIAL_AT_ONCE = 4
"""Blocks of a long file, as a kernel that reads ahead has it."""
SECONDS = 1.0
SILENCE_S = 20.0
"""A storage that answers nothing for so long is taken to be gone."""
MOST_PIECES, MOST_BYTES = 4096, 8 << 20
BLOCK = 1 << 20
LONG = 8 * BLOCK
"""Shorter files say nothing of sequential reads."""
MOST_OPEN = 64
"""Files that are kept open; of more each is opened for its read, as a dataset of single files does."""
PIECE = 1 << 16
"""Read of a long file where nobody knows a sample's size."""
PAGE = mmap.PAGESIZE
DIRECT = getattr(os, "O_DIRECT", 0)


class Piece(NamedTuple):
    path: Path
    offset: int
    length: int

    @property
    def first(self) -> int:
        """Of the page that it begins in."""
        return self.offset - self.offset % PAGE

    @property
    def room_bytes(self) -> int:
        """Of all pages that it lies in."""
        return -(-(self.offset + self.length - self.first) // PAGE) * PAGE


def pieces_of_split(split: Path, index: "Index", names: Sequence[str]) -> list[Piece]:
    """Samples of a prepared split at random, of MOST_OPEN shards at most; `names` of its shards."""
    draw = random.Random(0)
    shards = draw.sample(range(len(names)), min(len(names), MOST_OPEN))
    there = np.flatnonzero(np.isin(index.shards_N, shards)).tolist()
    places = map(index.place, draw.sample(there, min(len(there), MOST_PIECES)))
    return [Piece(split / names[shard], offset, length) for shard, offset, length in places]


def pieces_of_files(paths: Sequence[str], piece_bytes: float | None) -> list[Piece]:
    """Whole files; of files that hold many samples, pieces of one's size."""
    sizes: dict[Path, int] = {}
    for path in map(Path, paths):
        with suppress(OSError):
            sizes |= {path: path.stat().st_size} if path.is_file() else {}
    wanted, draw = max(1, round(piece_bytes or PIECE)), random.Random(0)
    long = {path: size for path, size in sizes.items() if size > 4 * max(wanted, PIECE)}
    if 2 * len(long) < len(sizes):
        return [Piece(path, 0, size) for path, size in sizes.items()]
    some = draw.sample([*long], min(len(long), MOST_OPEN))
    chosen = draw.choices(some, [long[path] for path in some], k=MOST_PIECES) if some else []
    return [Piece(path, draw.randrange(long[path] - wanted), wanted) for path in chosen]


def measure_reads(pieces: Sequence[Piece], seconds: float = SECONDS) -> Reads | None:
    """None where there is nothing to read. Raises DatasetError for storage that fails, or does not answer."""
    whole = [one._replace(length=min(one.length, MOST_BYTES)) for one in pieces if one.length > 0]
    chosen = random.Random(1).sample(whole, min(len(whole), MOST_PIECES))
    if not chosen:
        return None
    with closing(_Files(chosen)) as files:
        turns, turn_s = itertools.cycle(chosen), seconds / (len(AT_ONCE) + 1)
        tried: list[_Read] = []
        for count in AT_ONCE:
            if len(tried) < 2 or tried[-1].bytes_per_s >= MORE * tried[-2].bytes_per_s:
                tried.append(_read(turns, count, turn_s, files))
        blocks = files.blocks()
        sequential = _read(itertools.cycle(blocks), SEQUENTIAL_AT_ONCE, turn_s, files) if blocks else None
        return Reads(
            piece_bytes=statistics.fmean(one.length for one in chosen),
            at_once=[*AT_ONCE[: len(tried)]],
            random_bytes_per_s=[one.bytes_per_s for one in tried],
            latency_s=statistics.median(tried[0].each_s),
            sequential_bytes_per_s=sequential and sequential.bytes_per_s,
            cold=1.0 if files.direct else None,
        )


def in_memory(pieces: Sequence[Piece]) -> float | None:
    """The share of their pages that is in the page cache; None where the kernel does not tell, as mincore(2) does not
    of files that one may not write."""
    known = [flags for one in pieces if (flags := _resident(one)) is not None]
    return sum(map(sum, known)) / sum(map(len, known)) if known else None


def _resident(piece: Piece) -> list[int] | None:
    """For each of its pages, whether it is there."""
    length = piece.offset + piece.length - piece.first
    try:
        if os.geteuid() not in (0, piece.path.stat().st_uid) and not os.access(piece.path, os.W_OK):
            return None
        with (
            piece.path.open("rb") as file,
            mmap.mmap(file.fileno(), length, flags=mmap.MAP_PRIVATE, offset=piece.first) as pages,
        ):
            flags, start = (ctypes.c_ubyte * (piece.room_bytes // PAGE))(), ctypes.c_char.from_buffer(pages)
            address = ctypes.c_void_p(ctypes.addressof(start))
            del start  # else the map cannot be closed
            failed = ctypes.CDLL(None).mincore(address, ctypes.c_size_t(length), flags)
            return None if failed else [flag & 1 for flag in flags]
    except (OSError, ValueError, AttributeError):  # ValueError: beyond its end; AttributeError: there is no such call
        return None


class _Read(NamedTuple):
    """Of one turn."""

    bytes_per_s: float
    each_s: list[float]


class _Files:
    """Reads pieces of files, of which few are kept open."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        """Raises DatasetError."""
        self.room_bytes = max(BLOCK, *(one.room_bytes for one in pieces))
        self.direct = DIRECT if _takes_direct(pieces[0]) else 0
        self._kept: dict[Path, int] = {}
        paths = list(dict.fromkeys(one.path for one in pieces))
        if len(paths) <= MOST_OPEN:
            with ThreadPoolExecutor(16) as pool:
                opening = [(path, pool.submit(self._open, path)) for path in paths]
            self._kept = {path: file.result() for path, file in opening if file.exception() is None}
            if failed := next((error for _, file in opening if (error := file.exception())), None):
                self.close()
                raise failed

    def blocks(self) -> list[Piece]:
        """The long ones of those that are kept open, block by block."""
        sizes = {path: os.fstat(file).st_size for path, file in self._kept.items()}
        return [
            Piece(path, offset, BLOCK)
            for path, size in sizes.items()
            for offset in range(0, size - BLOCK + 1, BLOCK)
            if size >= LONG
        ]

    def read(self, piece: Piece, room: mmap.mmap) -> None:
        """Raises DatasetError."""
        file = self._kept[piece.path] if self._kept else self._open(piece.path)
        try:
            got = os.preadv(file, [memoryview(room)[: piece.room_bytes]], piece.first)
        except OSError as error:
            raise DatasetError(f"{piece.path} cannot be read: {error.strerror}") from error
        finally:
            if not self._kept:
                os.close(file)
        if piece.first + got < (end := piece.offset + piece.length):
            raise DatasetError(f"{piece.path} is cut short: it ends before byte {end:,}")

    def _open(self, path: Path) -> int:
        with refused_as(DatasetError, f"{path} cannot be read"):
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | self.direct)

    def close(self) -> None:
        for file in self._kept.values():
            os.close(file)


def _takes_direct(piece: Piece) -> bool:
    """Whether a file can be read past the page cache. What else is wrong with it shows when it is read."""
    try:
        file = os.open(piece.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | DIRECT)
    except OSError:
        return False
    try:
        return bool(DIRECT and os.preadv(file, [mmap.mmap(-1, PAGE)], piece.first))
    except OSError:
        return False
    finally:
        os.close(file)


def _read(pieces: Iterator[Piece], at_once: int, seconds: float, files: _Files) -> _Read:
    """So many threads read one piece after the other. Raises DatasetError."""
    done, failed, turn = list[tuple[int, float]](), list[DatasetError](), threading.Lock()
    began_s = time.perf_counter()
    until_s = began_s + seconds

    def work() -> None:
        room = mmap.mmap(-1, files.room_bytes)  # whose pages are aligned, as O_DIRECT wants it
        asked_s = 0.0
        while not failed and asked_s < until_s:  # once at least, however late it is
            with turn:
                piece = next(pieces)
            asked_s = time.perf_counter()
            try:
                files.read(piece, room)
            except DatasetError as error:
                failed.append(error)
            done.append((piece.length, time.perf_counter() - asked_s))

    threads = [threading.Thread(target=work, daemon=True) for _ in range(at_once)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until_s + SILENCE_S - time.perf_counter()))
    if failed:
        raise failed[0]
    if any(thread.is_alive() for thread in threads):
        raise DatasetError(f"reads have not been answered for {SILENCE_S:.0f} s: is the storage still there?")
    taken_s = time.perf_counter() - began_s
    return _Read(sum(length for length, _ in done) / taken_s, [each_s for _, each_s in done])
