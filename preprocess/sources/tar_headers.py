"""Where the members of an uncompressed tar lie, from its headers alone: 512 bytes are read per member, no data.

A tar inside a tar is a range of the outer file, so the same walk gives absolute offsets at any depth. Names come from
ustar, GNU and PAX headers. What has no bytes of its own (links, devices) is a member in trouble, what cannot be read
as it lies (sparse files) is refused, every checksum is verified, and a tar must end with its end-of-archive mark: one
that does not was cut short.
About 3 µs a member from a warm file; `tarfile` takes 40 to 60, which is minutes for the members of a large set.
"""

import os
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from feedline.pipeline.base.errors import FeedlineError, UsageError
from feedline.pipeline.format.shard_tar import BLOCK_BYTES, padding_bytes
from feedline.preprocess.sources.reading import open_remote, what_happened

ZERO_BLOCK = bytes(BLOCK_BYTES)
AHEAD_BYTES = 8 << 20
EXTENSION_MAX_BYTES = 1 << 20
ADLER_MODULUS = 65521
REGULAR = b"0\x007"  # file, file as old tars wrote it, contiguous file
EXTENSIONS = b"xgLK"  # PAX, PAX for all members, GNU's long name and long link
FOLDER = b"5"
WITHOUT_BYTES = {
    b"1": "hard link",
    b"2": "symbolic link",
    b"3": "character device",
    b"4": "block device",
    b"6": "pipe",
}

Read = Callable[[int, int], bytes]
"""(absolute offset, length) -> bytes, fewer only at the end of the file."""


class TarError(FeedlineError):
    """A tar that is damaged, cut short, or holds what cannot be addressed."""


class Member(NamedTuple):
    name: str
    offset: int
    """Of its bytes, absolute."""
    length: int
    trouble: str = ""
    """What it is if it has no bytes."""


def walk(read: Read, start: int, end: int, where: str) -> Iterator[Member]:
    """The files of the tar at [start, end), in order; folders are passed over. `where` names it in errors.

    Raises TarError.
    """
    position = start
    records: dict[str, str] = {}
    announced = False
    while True:
        block = read(position, BLOCK_BYTES) if position + BLOCK_BYTES <= end else b""
        if len(block) < BLOCK_BYTES:
            raise cut_short(where, end)
        if block == ZERO_BLOCK:
            if announced:
                raise TarError(f"{where}: an extended header and no member behind it at byte {position}: damaged")
            return
        kind, length = block[156:157], checked_length(block, where, position)
        position += BLOCK_BYTES
        announced = kind in b"xLK"
        if kind in EXTENSIONS:
            if length > EXTENSION_MAX_BYTES:
                raise TarError(f"{where}: an extended header of {length} bytes at byte {position}: damaged")
            data = read(position, length) if position + length <= end else b""
            if len(data) < length:
                raise cut_short(where, end)
            if announced:  # a header for all members carries no names
                records |= {"path": text(data)} if kind == b"L" else pax_records(data, where) if kind == b"x" else {}
        else:
            own_name = block[:100].partition(b"\0")[0]
            name = (records.get("path") if records else None) or header_name(block, own_name)
            if kind in WITHOUT_BYTES or kind == FOLDER or (kind == b"\0" and own_name.endswith(b"/")):
                length = 0
                if kind in WITHOUT_BYTES:
                    yield Member(name, position, 0, WITHOUT_BYTES[kind])
            elif kind in REGULAR:
                length = int(records.get("size", length))
                if position + length > end:
                    raise cut_short(where, end, f"{name!r} ends at byte {position + length}")
                yield Member(name, position, length)
            else:
                what = "sparse file" if kind == b"S" else f"member of unknown type {kind!r}"
                raise TarError(
                    f"{where}: {name!r} is a {what}, which has no bytes to read: pack the files themselves"
                )
            records = {}
        position += length + padding_bytes(length)


def checked_length(block: bytes, where: str, position: int) -> int:
    """The length field, after the block's checksum was found right."""
    field = block[124:136]
    try:
        checksum = int(block[148:156].rstrip(b" \0") or b"0", 8)
        large = field[0] & 0x80  # what does not fit in octal digits is in base 256
        length = int.from_bytes(field, "big") - (0x80 << 88) if large else int(field.rstrip(b" \0") or b"0", 8)
    except ValueError:
        checksum = length = -1
    # Adler-32's low half, begun at 0, is the sum of the bytes modulo 65521, in C.
    total = (zlib.adler32(block, 0) & 0xFFFF) - sum(block[148:156]) + 8 * 32
    if length < 0 or (total - checksum) % ADLER_MODULUS:
        raise TarError(
            f"{where}: no valid tar header at byte {position}: damaged, or a member's size is wrong before it"
        )
    return length


def header_name(block: bytes, own_name: bytes) -> str:
    has_prefix = block[257:263] == b"ustar\0" and block[345]
    return text(block[345:500].partition(b"\0")[0] + b"/" + own_name if has_prefix else own_name)


def text(data: bytes) -> str:
    return data.partition(b"\0")[0].decode("utf-8", "surrogateescape")


def pax_records(data: bytes, where: str) -> dict[str, str]:
    records: dict[str, str] = {}
    while data:
        size, space, _ = data.partition(b" ")
        if not space or not is_size(size) or not len(size) + 3 <= int(size) <= len(data):
            raise TarError(f"{where}: a PAX header cannot be read: damaged")
        key, _, value = data[len(size) + 1 : int(size) - 1].partition(b"=")
        records[key.decode("utf-8", "surrogateescape")] = value.decode("utf-8", "surrogateescape")
        data = data[int(size) :]
    if any(key.startswith("GNU.sparse") for key in records):
        raise TarError(f"{where}: {records.get('path', 'a member')!r} is a sparse file: pack it without --sparse")
    if not is_size(records.get("size", "0").encode("utf-8", "surrogateescape")):
        raise TarError(f"{where}: a PAX header says a size of {records['size']!r}: damaged")
    return records


def is_size(digits: bytes) -> bool:
    """Of at most twenty digits: Python refuses to read thousands of them with a ValueError."""
    return digits.isdigit() and len(digits) <= 20


def cut_short(where: str, end: int, how: str = "") -> TarError:
    what = f": {how}, the tar at {end}" if how else f" at byte {end}, before its end-of-archive mark"
    return TarError(f"{where} is cut short{what}: copy or download it again")


@contextmanager
def reader(
    path: str, options: Mapping[str, Any], window_bytes: int = BLOCK_BYTES, ahead_bytes: int = AHEAD_BYTES
) -> Generator[tuple[Read, int]]:
    """(read, size of the file).

    Of a local file `window_bytes` are read at once: more save system calls where members are small. Headers of an
    object are too close together for a request each, so it streams past once, `ahead_bytes` at a time.
    """
    try:
        with (
            open_remote(path, options, block_size=ahead_bytes, cache_type="readahead")
            if "://" in path
            else Path(path).open("rb", window_bytes) as file
        ):
            if "://" not in path and hasattr(os, "posix_fadvise"):  # reading ahead would read everything
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
            size = file.seek(0, os.SEEK_END)

            def read(offset: int, length: int) -> bytes:
                file.seek(offset)
                return file.read(length)

            yield read, size
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {what_happened(error)}") from error
