"""One shard checked: its bytes against the manifest and the index, its samples decoded."""

import hashlib
import io
import tarfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from feedline.pipeline.base.errors import DatasetError
from feedline.pipeline.codecs.table import CODECS
from feedline.pipeline.format.manifest import Index, Manifest, ShardInfo
from feedline.pipeline.format.shard_tar import BLOCK_BYTES, member_header, padding_bytes
from feedline.preprocess.store import LocalStore, ObjectStore

SAMPLES_DECODED = 4  # of each shard, when not all are
MAX_PROBLEMS_PER_SHARD = 20


@dataclass(frozen=True, kw_only=True)
class Problem:
    shard: str
    """Path of the shard or file, relative to the dataset."""
    key: str
    """The sample, or "" where no single one is meant."""
    what: str


@dataclass(frozen=True)
class Split:
    folder: str
    manifest: Manifest
    index: Index
    keys: list[str]


def file_in(split: Split, name: str) -> str:
    return f"{split.folder}/{name}" if split.folder else name


class ShardCheck:
    """One shard's bytes against its manifest entry and its index rows."""

    def __init__(self, store: LocalStore | ObjectStore, split: Split, number: int, full: bool) -> None:
        self._store, self._split, self._full = store, split, full
        self._info: ShardInfo = split.manifest.shards[number]
        self._where = file_in(split, self._info.name)
        self._rows = np.flatnonzero(split.index.shards_N == number).tolist()
        self._problems: list[Problem] = []

    def run(self) -> tuple[int, list[Problem]]:
        """Samples decoded, problems found."""
        try:
            data = self._store.read(self._where)
        except OSError as error:
            self._note("", f"cannot be read: {error.strerror or error}")
            return 0, self._problems
        if data is None:
            self._note("", "missing")
            return 0, self._problems
        if len(data) != self._info.bytes:
            self._note(self._key_at(len(data)), f"{len(data)} bytes long, the manifest says {self._info.bytes}")
        same = hashlib.sha256(data).hexdigest() == self._info.sha256
        if not same or self._full:
            walk(data, self._split, self._rows, self._note)
        elif not self._split.manifest.settings.get("foreign", False):
            for row in self._rows:
                end = int(self._split.index.offsets_N[row] + self._split.index.lengths_N[row])
                label = int(self._split.index.labels_N[row])
                check_label(data, end + padding_bytes(end), self._split.keys[row], label, self._note)
        if not same and not self._problems:
            self._note("", "its SHA-256 is not the manifest's, in a place the index does not cover")
        return self._decode(data), self._problems[:MAX_PROBLEMS_PER_SHARD]

    def _note(self, key: str, what: str) -> None:
        self._problems.append(Problem(shard=self._where, key=key, what=what))

    def _key_at(self, position: int) -> str:
        """The sample whose bytes lie at or before a position."""
        before = [row for row in self._rows if self._split.index.offsets_N[row] <= position]
        return self._split.keys[before[-1] if before else self._rows[0]] if self._rows else ""

    def _decode(self, data: bytes) -> int:
        rows = self._rows
        if not self._full and len(rows) > SAMPLES_DECODED:
            rows = [rows[n * (len(rows) - 1) // (SAMPLES_DECODED - 1)] for n in range(SAMPLES_DECODED)]
        index = self._split.index
        for row in rows:
            start = int(index.offsets_N[row])
            sample = data[start : start + int(index.lengths_N[row])]
            trouble = sample_trouble(
                sample, self._split.manifest, int(index.widths_N[row]), int(index.heights_N[row])
            )
            if trouble:
                self._note(self._split.keys[row], trouble)
        return len(rows)


def walk(data: bytes, split: Split, rows: Sequence[int], note: Callable[[str, str], None]) -> None:
    """Every byte of a shard: headers and padding as the writer makes them, images by CRC, labels by the index."""
    index = split.index
    foreign = split.manifest.settings.get("foreign", False)
    cursor = 0
    for n, row in enumerate(rows):
        key = split.keys[row]
        start, length = int(index.offsets_N[row]), int(index.lengths_N[row])
        if zlib.crc32(data[start : start + length]) != int(index.crc32_N[row]):
            note(key, "image bytes are not those that were written (CRC-32)")
        if foreign:
            continue
        last = n + 1 == len(rows)
        end = len(data) if last else int(index.offsets_N[rows[n + 1]])
        cursor = walk_sample(data, cursor, key, start, length, int(index.labels_N[row]), end, last, note)
    if not foreign and any(data[cursor:]):
        note(split.keys[rows[-1]] if rows else "", "end-of-archive padding is not all zero (after the last sample)")


def walk_sample(
    data: bytes, cursor: int, key: str, start: int, length: int, label: int, end: int, last: bool,
    note: Callable[[str, str], None],
) -> int:  # fmt: skip
    """Checks one sample's members; returns where the next one begins (as the writer would have it)."""
    image = member_at(data, cursor, start)
    if (
        image is None
        or not image.name.startswith(f"{key}.")
        or data[cursor:start] != member_header(image.name, length)
    ):
        note(key, "the image's tar header is not the one that was written")
    cursor = check_label(data, check_padding(data, start + length, key, note), key, label, note)
    cursor = check_padding(data, cursor, key, note)
    extra = member_at(data, cursor, end)
    if extra is not None and extra.name == f"{key}.json":
        if data[cursor : extra.offset_data] != member_header(extra.name, extra.size):
            note(key, "the metadata's tar header is not the one that was written")
        cursor = check_padding(data, extra.offset_data + extra.size, key, note)
    elif last and extra is None and any(data[cursor : cursor + BLOCK_BYTES]):
        note(key, "end-of-archive padding is not all zero (after the last sample)")
        cursor += BLOCK_BYTES
    return cursor


def check_label(data: bytes, cursor: int, key: str, label: int, note: Callable[[str, str], None]) -> int:
    """The member KEY.cls; returns where its text ends."""
    text = str(label).encode()
    header = member_header(f"{key}.cls", len(text))
    if data[cursor : cursor + len(header)] != header:
        note(key, "the label's tar header is not the one that was written")
    cursor += len(header)
    if data[cursor : cursor + len(text)] != text:
        note(key, f"the label in the tar is {data[cursor : cursor + len(text)]!r}, the index says {label}")
    return cursor + len(text)


def member_at(data: bytes, cursor: int, end: int) -> tarfile.TarInfo | None:
    """The member whose header begins at `cursor`, with absolute offsets; None when there is none that can be read."""
    if min(end, len(data)) - cursor < BLOCK_BYTES or not data[cursor]:
        return None
    try:
        with tarfile.open(fileobj=io.BytesIO(data[cursor:end] + bytes(2 * BLOCK_BYTES))) as tar:
            member = tar.next()
    except (tarfile.TarError, ValueError, OverflowError):
        return None
    if member is not None:
        member.offset_data += cursor
    return member


def check_padding(data: bytes, position: int, key: str, note: Callable[[str, str], None]) -> int:
    end = position + padding_bytes(position)
    if any(data[position:end]):
        note(key, "tar padding is not zero")
    return end


# --- samples ------------------------------------------------------------------------------------------


def sample_trouble(data: bytes, manifest: Manifest, width: int, height: int) -> str:
    """What is wrong with one sample's image; "" when nothing is."""
    try:
        return CODECS[manifest.codec].check(data, width, height, manifest.settings)
    except (ValueError, OSError, EOFError, SyntaxError, DatasetError) as error:
        return f"does not decode ({error})"
