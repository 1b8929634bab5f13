"""A shard: a plain WebDataset tar of which every byte is known, so that a sample is one range read."""

import hashlib
import json
import re
import tarfile
import zlib
from typing import Any, BinaryIO

from feedline.pipeline.base.text import UNPRINTABLE
from feedline.pipeline.format.manifest import SampleRow

BLOCK_BYTES = 512  # a tar is made of these
RECORD_BYTES = 10240  # and padded to a multiple of these, as tar and tarfile do
SHARD_NAME = re.compile(r"[a-z]+-\d{6,}(-[0-9a-f]{16})?\.tar")
"""What `shard_name` and `hashed_name` make."""


def member_header(name: str, size_bytes: int) -> bytes:
    """A member's header block(s): fixed time, owner and mode, so that equal content gives equal bytes.

    The common case (a short ASCII name) is filled into a ready block, ten times as fast as `tarfile`, whose bytes
    it gives; long and non-ASCII names go through `tarfile` itself, which adds a PAX header.
    """
    if len(name) > 100 or not name.isascii() or size_bytes >= 8 << 30:
        info = tarfile.TarInfo(name)
        info.size = size_bytes
        return info.tobuf(tarfile.PAX_FORMAT)
    start, size = name.encode(), b"%011o" % size_bytes
    checksum = b"%06o\0 " % (_HEADER_SUM + sum(start) + sum(size))
    return b"".join((start, bytes(100 - len(start)), _OWNER, size, _TIME, checksum, _HEADER_END))


_HEADER = tarfile.TarInfo().tobuf()  # without a name, of size 0: what is around name, size and checksum
_OWNER, _TIME, _HEADER_END = _HEADER[100:124], _HEADER[135:148], _HEADER[156:]
_HEADER_SUM = sum(_OWNER) + sum(_TIME) + 8 * ord(" ") + sum(_HEADER_END)  # the checksum counts as spaces


def padding_bytes(size_bytes: int, unit_bytes: int = BLOCK_BYTES) -> int:
    return -size_bytes % unit_bytes


class ShardWriter:
    """Writes samples to a tar and notes where each image lies.

    `with` it: leaving without an error writes the end of archive. Nothing is renamed or synced here; whoever
    owns the file decides when it becomes visible.
    """

    def __init__(self, file: BinaryIO, shard: int) -> None:
        self.rows: list[SampleRow] = []
        self.bytes = 0
        self._file = file
        self._shard = shard
        self._hash = hashlib.sha256()

    def __enter__(self) -> "ShardWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            end = 2 * BLOCK_BYTES
            self._write(bytes(end + padding_bytes(self.bytes + end, RECORD_BYTES)))

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()

    def add(self, key: str, image: bytes, extension: str, *, label: int, width: int, height: int,
            metadata: dict[str, Any] | None = None) -> None:  # fmt: skip
        """`image` becomes KEY.extension, the label KEY.cls, `metadata` (if any) KEY.json."""
        offset = self._member(f"{key}.{extension}", image)
        self._member(f"{key}.cls", str(label).encode())
        if metadata is not None:
            self._member(f"{key}.json", json.dumps(metadata, sort_keys=True).encode())
        where = {"shard": self._shard, "offset": offset, "length": len(image), "crc32": zlib.crc32(image)}
        self.rows.append(SampleRow(key=key, label=label, width=width, height=height, **where))

    def _member(self, name: str, data: bytes) -> int:
        self._write(member_header(name, len(data)))
        offset = self.bytes
        self._write(data)
        self._write(bytes(padding_bytes(len(data))))
        return offset

    def _write(self, data: bytes) -> None:
        self._file.write(data)
        self._hash.update(data)
        self.bytes += len(data)


def safe_key(name: str) -> str:
    """A WebDataset key from a source name: readers cut at the first dot, and a path must not leave its folder."""
    if not name.isprintable():
        name = UNPRINTABLE.sub(lambda found: f"_{ord(found[0]):x}", name)
    parts = [part for part in name.replace("\\", "/").split("/") if part not in ("", ".", "..")]
    return "/".join(part.replace(".", "_") for part in parts) or "_"


def shard_name(split: str, shard: int) -> str:
    return f"{split}-{shard:06d}.tar"


def hashed_name(name: str, sha256: str) -> str:
    """A shard's name that no other content has: in object stores."""
    return f"{name.removesuffix('.tar')}-{sha256[:16]}.tar"


def balanced_sizes(samples: int, shards: int) -> list[int]:
    """Shard sizes that differ by at most one; the longer ones first."""
    return [samples // shards + (1 if shard < samples % shards else 0) for shard in range(shards)]
