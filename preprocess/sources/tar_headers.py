"""Where the members of an uncompressed tar lie, from its headers alone: 512 bytes are read per member, no data.

A tar inside a tar is a range of the outer file, so the same walk gives absolute offsets at any depth. Names come from
ustar, GNU and PAX headers. What has no bytes of its own (links, devices) is a member in trouble, what cannot be read
as it lies (sparse files) is refused, every checksum is verified, and a tar must end with its end-of-archive mark: one
that does not was cut short.
About 3 µs a member from a warm file (`tarfile` takes 40 to 60).
"""

import os
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from feedline.pipeline.base.errors import FeedlineError, UsageError
from feedline.preprocess.sources.reading import what_happened

BLOCK_BYTES = 512
ZERO_BLOCK = bytes(BLOCK_BYTES)
AHEAD_BYTES = 8 << 20
EXTENSION_MAX_BYTES = 1 << 20
ADLER_MODULUS = 65521
REGULAR = b"0\x007"  # file, file as old tars wrote it, contiguous file
WITHOUT_BYTES = {
    b"1": "hard link",
    b"2": "symbolic link",
    b"3": "character device",
    b"4": "block device",
    b"6": "pipe",
}
REFUSED = {
    b"S": "sparse file",
    b"V": "volume label",
    b"M": "continuation of another volume",
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
    pending: dict[str, str] = {}
    announced = False
    while True:
        block = read(position, BLOCK_BYTES) if position + BLOCK_BYTES <= end else b""
        if len(block) < BLOCK_BYTES:
            raise cut_short(where, position, end)
        if block == ZERO_BLOCK:
            if announced:
                raise TarError(f"{where}: an extended header and no member behind it at byte {position}: damaged")
            return
        kind = block[156:157]
        announced = kind in b"xLK"
        length = checked_length(block, where, position)
        if kind in REGULAR:
            if pending:
                name = pending.get("path") or header_name(block)
                length = pax_length(pending, length, where)
                pending = {}
            else:
                name = header_name(block)
            if kind == b"\0" and own_name(block).endswith(b"/"):  # how tars older than ustar write a folder
                length = 0
            elif position + BLOCK_BYTES + length > end:
                raise cut_short(where, position + BLOCK_BYTES + length, end, name)
            else:
                yield Member(name, position + BLOCK_BYTES, length)
        elif kind in b"xgLK":
            data = extension_data(read, position, length, end, where)
            if kind != b"g":  # global headers carry no names
                pending |= extension_records(kind, data, where)
        elif kind in WITHOUT_BYTES:
            yield Member(pending.get("path") or header_name(block), position + BLOCK_BYTES, 0, WITHOUT_BYTES[kind])
            length, pending = 0, {}
        elif kind == b"5":
            length, pending = 0, {}
        else:
            what = REFUSED.get(kind, f"member of unknown type {kind!r}")
            name = pending.get("path") or header_name(block)
            raise TarError(f"{where}: {name!r} is a {what}, which has no bytes to read: pack the files themselves")
        position += BLOCK_BYTES + -(-length // BLOCK_BYTES) * BLOCK_BYTES


def checked_length(block: bytes, where: str, position: int) -> int:
    """The length field, after the block's checksum was found right."""
    try:
        said = int(block[148:156].rstrip(b" \0") or b"0", 8)
        length = number(block[124:136])
    except ValueError:
        said = length = -1
    # Adler-32's low half, begun at 0, is the sum of the bytes modulo 65521, in C.
    total = (zlib.adler32(block, 0) & 0xFFFF) - sum(block[148:156]) + 8 * 32
    if length < 0 or ((total - said) % ADLER_MODULUS and signed_sum(block) != said):
        raise TarError(
            f"{where}: no valid tar header at byte {position}: damaged, or a member's size is wrong before it"
        )
    return length


def signed_sum(block: bytes) -> int:
    """The checksum as some old tars computed it, from signed bytes."""
    return sum(byte - 256 if byte > 127 else byte for byte in block[:148] + b" " * 8 + block[156:])


def number(field: bytes) -> int:
    """Octal digits, or base 256 for what does not fit. Raises ValueError."""
    if field[0] & 0x80:
        return int.from_bytes(bytes([field[0] & 0x7F]) + field[1:], "big")
    return int(field.rstrip(b" \0") or b"0", 8)


def own_name(block: bytes) -> bytes:
    """Without a prefix, and whatever an extended header says."""
    return block[:100].partition(b"\0")[0]


def header_name(block: bytes) -> str:
    name = own_name(block)
    if block[257:263] == b"ustar\0" and block[345]:
        name = block[345:500].partition(b"\0")[0] + b"/" + name
    return name.decode("utf-8", "surrogateescape")


def extension_data(read: Read, position: int, length: int, end: int, where: str) -> bytes:
    if length > EXTENSION_MAX_BYTES:
        raise TarError(f"{where}: an extended header of {length} bytes at byte {position}: damaged")
    data = read(position + BLOCK_BYTES, length) if position + BLOCK_BYTES + length <= end else b""
    if len(data) < length:
        raise cut_short(where, position + BLOCK_BYTES + length, end)
    return data


def extension_records(kind: bytes, data: bytes, where: str) -> dict[str, str]:
    """What a GNU long name or a PAX header says of the next member."""
    if kind == b"L":
        return {"path": data.partition(b"\0")[0].decode("utf-8", "surrogateescape")}
    if kind == b"K":
        return {"linkpath": ""}
    found: dict[str, str] = {}
    while data:
        size, space, _ = data.partition(b" ")
        if not space or not is_number(size) or not len(size) + 3 <= int(size) <= len(data):
            raise TarError(f"{where}: a PAX header cannot be read: damaged")
        key, _, value = data[len(size) + 1 : int(size) - 1].partition(b"=")
        found[key.decode("utf-8", "surrogateescape")] = value.decode("utf-8", "surrogateescape")
        data = data[int(size) :]
    if any(key.startswith("GNU.sparse") for key in found):
        raise TarError(f"{where}: {found.get('path', 'a member')!r} is a sparse file: pack it without --sparse")
    return found


def is_number(digits: bytes) -> bool:
    """Of at most twenty digits, as every size is: Python refuses to read thousands of them with a ValueError."""
    return digits.isdigit() and len(digits) <= 20


def pax_length(records: dict[str, str], length: int, where: str) -> int:
    if "size" not in records:
        return length
    if not is_number(records["size"].encode("utf-8", "surrogateescape")):
        raise TarError(f"{where}: a PAX header says a size of {records['size']!r}: damaged")
    return int(records["size"])


def cut_short(where: str, needed: int, end: int, name: str | None = None) -> TarError:
    if name is None:
        return TarError(
            f"{where} is cut short at byte {end}, before its end-of-archive mark: copy or download it again"
        )
    return TarError(
        f"{where} is cut short: {name!r} ends at byte {needed}, the tar at {end}: copy or download it again"
    )


# --- readers ------------------------------------------------------------------------------------------


@contextmanager
def local_reader(path: str, window_bytes: int = BLOCK_BYTES) -> Generator[tuple[Read, int]]:
    """(read, size of the file). A larger window saves system calls where members are small."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    try:
        if hasattr(os, "posix_fadvise"):  # headers lie far apart: reading ahead would read everything
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        size = os.fstat(descriptor).st_size

        def plain(offset: int, length: int) -> bytes:
            return os.pread(descriptor, length, offset)

        yield (plain if window_bytes <= BLOCK_BYTES else windowed(plain, window_bytes)), size
    except OSError as error:
        raise TarError(f"{path} cannot be read: {error.strerror}") from error
    finally:
        os.close(descriptor)


def windowed(read: Read, window_bytes: int) -> Read:
    """Reads `window_bytes` at a time and answers from them while it can."""
    start, held = 0, b""

    def from_window(offset: int, length: int) -> bytes:
        nonlocal start, held
        if offset < start or offset + length > start + len(held):
            start, held = offset, read(offset, max(length, window_bytes))
        return held[offset - start : offset - start + length]

    return from_window


@contextmanager
def remote_reader(
    address: str, options: dict[str, Any], ahead_bytes: int = AHEAD_BYTES
) -> Generator[tuple[Read, int]]:
    """The same over fsspec. Headers are too close together for a request each: the object streams past once."""
    import fsspec

    try:
        filesystem, path = fsspec.core.url_to_fs(address, **options)
        with filesystem.open(path, "rb", block_size=ahead_bytes, cache_type="readahead") as opened:
            file: Any = opened
            size = int(file.size)

            def read(offset: int, length: int) -> bytes:
                file.seek(offset)
                return file.read(length)

            yield read, size
    except (OSError, ValueError, ImportError) as error:
        raise UsageError(f"{address} cannot be read: {what_happened(error)}") from error


@contextmanager
def reader(
    path: str, options: dict[str, Any], window_bytes: int = BLOCK_BYTES, ahead_bytes: int = AHEAD_BYTES
) -> Generator[tuple[Read, int]]:
    """`ahead_bytes` are fetched at once from a store; few where headers lie far apart."""
    opened = remote_reader(path, options, ahead_bytes) if "://" in path else local_reader(path, window_bytes)
    with opened as (read, size):
        yield read, size
