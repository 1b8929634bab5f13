"""One shard checked: its bytes against the manifest and the index, its samples decoded."""

import hashlib
import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from feedline.pipeline.base.errors import DatasetError
from feedline.pipeline.codecs.table import CODECS
from feedline.pipeline.format.manifest import Index, Manifest, ShardInfo
from feedline.pipeline.format.shard_tar import member_header, padding_bytes
from feedline.preprocess.store import LocalStore, ObjectStore

SAMPLES_DECODED = 4  # of each shard, when not all are
MAX_PROBLEMS_PER_SHARD = 20
HEADER_MAX_BYTES = 4096  # an extended header with a long name, and the member's own
EXTENSION = re.compile(rb"[a-z0-9]+")


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
    """Every byte of a shard: headers and padding as the writer makes them, images by CRC-32, labels by the index."""
    index = split.index
    foreign = split.manifest.settings.get("foreign", False)
    headers = [b"" if foreign else image_header(data, split, row) for row in rows]
    begins = [int(index.offsets_N[row]) - len(header) for row, header in zip(rows, headers, strict=True)]
    begins = [0, *begins[1:], len(data)]
    for n, row in enumerate(rows):
        key, start = split.keys[row], int(index.offsets_N[row])
        end = start + int(index.lengths_N[row])
        if zlib.crc32(data[start:end]) != int(index.crc32_N[row]):
            note(key, "image bytes are not those that were written (CRC-32)")
        if foreign:
            continue
        if data[begins[n] : start] != headers[n]:
            note(key, "the image's tar header is not the one that was written")
        end = check_padding(data, end, key, note)
        end = check_label(data, end, key, int(index.labels_N[row]), note)
        end = check_padding(data, end, key, note)
        if not is_metadata_or_nothing(data[end : begins[n + 1]], key):
            note(key, "what follows the label is neither its metadata nor the archive's end")
    if not rows and not foreign and any(data):
        note("", "end-of-archive padding is not all zero")


def image_header(data: bytes, split: Split, row: int) -> bytes:
    """As the writer makes it; the extension alone is not in the index, and taken from the tar."""
    key, start = split.keys[row], int(split.index.offsets_N[row])
    _, _, tail = data[max(start - HEADER_MAX_BYTES, 0) : start].rpartition(f"{key}.".encode())
    extension = EXTENSION.match(tail)
    name = f"{key}.{extension[0].decode() if extension else ''}"
    return member_header(name, int(split.index.lengths_N[row]))


def is_metadata_or_nothing(data: bytes, key: str) -> bool:
    """Whether it is the member KEY.json, whose text only the shard's SHA-256 covers, and zeros; or zeros alone."""
    text = data[len(member_header(f"{key}.json", 0)) :].rstrip(b"\0")
    return data.rstrip(b"\0") in (b"", member_header(f"{key}.json", len(text)) + text)


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
