"""Crop-addressable JPEG, the file: where its tiles are, and how a region is cut out of it.

A baseline JPEG with restart markers is a grid of tiles that can each be decoded on their own. `cut` copies the tiles
that a region touches into a small, valid JPEG: the frame header gets the new size, the restart markers new numbers.
No pixel is touched and no entropy code is read: about 20 µs in Python. Any decoder reads both. A file without such a
grid (progressive, no restart markers, …) comes back whole, with the region's place in it.
"""

import struct
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from feedline.pipeline.base.errors import DatasetError
from feedline.pipeline.codecs.base import Pixels, Subsampling

_TILE_MCUS = (2, 3, 4, 1)
"""Tile widths, best first. Narrow ones cut closely and cost bytes and a restart of the decoder each: 16 px 5 % of the
bytes, 32 px 2.4 %, 64 px 1.2 %."""

_BASELINE = (0xC0, 0xC1)  # sequential Huffman, 8 bit; anything else is decoded whole
_PARAMETERLESS = frozenset({0x01, *range(0xD0, 0xD8)})
EOI = b"\xff\xd9"
MOST_PX = 178_956_970
"""Of a picture that is read at all: Pillow's own limit. A header of a few bytes can claim 4 gigapixels."""


class JpegError(DatasetError):
    """Bytes that are not a JPEG we can read, or a region that is not in it."""


class Cut(NamedTuple):
    """A JPEG that holds the region, and where in its pixels the region starts."""

    data: bytes
    left_px: int
    top_px: int


class Frame(NamedTuple):
    """What the headers of a JPEG say."""

    width_px: int
    height_px: int
    mcu_width_px: int
    mcu_height_px: int
    size_at: int
    """Where height and width (two bytes each) stand in the file."""
    scan_at: int
    """Where the entropy-coded data starts; 0 when the file is not one interleaved baseline scan."""
    interval_mcus: int


def restart_interval(width_px: int, subsampling: Subsampling = "420") -> int:
    """MCUs per restart interval, a divisor of a row's MCUs: for 4:2:0 the one that made cutting and decoding fastest,
    32 px if it can be, at most 64 (benchmarks/NOTES.md); for 4:4:4 the whole row, narrow tiles would cost 18 % of
    the bytes."""
    if subsampling != "420":
        return -(-width_px // 8)
    per_row = -(-width_px // 16)
    return next(n for n in _TILE_MCUS if per_row % n == 0)


_SIZE = struct.Struct(">HH")
_KNOWN_HEADERS: dict[bytes, tuple[int, int, int, int]] = {}
"""Headers without their four bytes of size -> where those stand, MCU width and height, restart interval."""
_usual_places = (0, 0)
"""`size_at` and `scan_at` of the header walked last."""


def parse(data: bytes) -> Frame:
    """What the marker segments up to the scan say. Raises JpegError for anything but a JPEG with a frame.

    Files of one encoder differ in their size only, so a header that was walked once is recognised: 8 to 1 µs.
    """
    global _usual_places
    size_at, scan_at = _usual_places
    known = _KNOWN_HEADERS.get(data[:size_at] + data[size_at + 4 : scan_at])
    if known is not None and known[0] == size_at:
        height, width = _SIZE.unpack_from(data, size_at)
        if height and width and height * width <= MOST_PX:
            return Frame(width, height, *known[1:3], size_at, scan_at, known[3])
    frame = _walk(data)
    if frame.scan_at:
        if len(_KNOWN_HEADERS) >= 64:  # files with tables of their own: remembering does not pay, so it must not grow
            _KNOWN_HEADERS.clear()
        key = data[: frame.size_at] + data[frame.size_at + 4 : frame.scan_at]
        _KNOWN_HEADERS[key] = (frame.size_at, frame.mcu_width_px, frame.mcu_height_px, frame.interval_mcus)
        _usual_places = (frame.size_at, frame.scan_at)
    return frame


def _walk(data: bytes) -> Frame:
    if data[:2] != b"\xff\xd8":
        raise JpegError("not a JPEG (no SOI marker)")
    at, interval, frame = 2, 0, None
    while at + 4 <= len(data):
        if data[at] != 0xFF:
            raise JpegError(f"damaged JPEG: no marker at byte {at}")
        marker = data[at + 1]
        if marker == 0xFF or marker in _PARAMETERLESS:  # fill byte, or a marker without a length
            at += 1 if marker == 0xFF else 2
            continue
        length = int.from_bytes(data[at + 2 : at + 4], "big")
        if marker == 0xD9 or length < 2 or at + 2 + length > len(data):
            break
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            frame = _frame(data, at, length, marker)
        elif marker == 0xDD and length >= 4:
            interval = int.from_bytes(data[at + 4 : at + 6], "big")
        elif marker == 0xDA and length > 2 and frame is not None:
            whole = frame.scan_at and data[at + 4] == data[frame.size_at + 4]  # all components in this one scan
            return frame._replace(scan_at=at + 2 + length if whole else 0, interval_mcus=interval)
        at += 2 + length
    raise JpegError("damaged JPEG: it ends before its picture starts")


def _frame(data: bytes, at: int, length: int, marker: int) -> Frame:
    components = data[at + 9] if length >= 8 else 0
    height, width = int.from_bytes(data[at + 5 : at + 7], "big"), int.from_bytes(data[at + 7 : at + 9], "big")
    if not (components and width and height) or length < 8 + 3 * components:
        raise JpegError(f"damaged JPEG: a frame of {width}x{height} px with {components} components")
    if width * height > MOST_PX:
        raise JpegError(f"{width}x{height} px are more than the limit of {MOST_PX:,}")
    factors = [data[at + 11 + 3 * number] for number in range(components)]
    across, down = (max(f >> 4 for f in factors), max(f & 15 for f in factors)) if components > 1 else (1, 1)
    if not (1 <= across <= 4 and 1 <= down <= 4):
        raise JpegError(f"damaged JPEG: sampling factors {across}x{down}")
    readable = marker in _BASELINE and data[at + 4] == 8
    return Frame(width, height, 8 * across, 8 * down, at + 5, int(readable), 0)


def is_crop_addressable(data: bytes) -> bool:
    """Whether `cut` can leave anything out."""
    return _tiles(data, parse(data)) is not None


def _tiles(data: bytes, frame: Frame) -> npt.NDArray[np.int64] | None:
    """Where each tile starts, and the file's end; None when the scan holds anything but a grid of tiles, each with
    the marker behind it that belongs there."""
    per_row = -(-frame.width_px // frame.mcu_width_px)
    if not (frame.scan_at and frame.interval_mcus) or per_row % frame.interval_mcus:
        return None
    rows = -(-frame.height_px // frame.mcu_height_px)
    count = rows * (per_row // frame.interval_mcus)
    scan = np.frombuffer(data, np.uint8, offset=frame.scan_at)
    marks = (scan[:-1] == 0xFF).nonzero()[0]  # half the time of a regular expression
    kinds = scan.take(marks + 1)
    marks, kinds = marks.compress(kinds), kinds.compress(kinds)  # FF 00 is a byte of the picture, not a marker
    if len(marks) != count or kinds[-1] != EOI[1] or (kinds[:-1] != restart_numbers(count - 1)).any():
        return None
    tiles = np.empty(count + 1, np.int64)
    tiles[0] = frame.scan_at
    np.add(marks, frame.scan_at + 2, out=tiles[1:])
    return tiles


_NUMBERS = np.tile(np.arange(0xD0, 0xD8, dtype=np.uint8), 512)


def restart_numbers(count: int) -> Pixels:
    """The second bytes of the first `count` restart markers: D0 … D7, D0 …"""
    return _NUMBERS[:count] if count <= len(_NUMBERS) else np.resize(_NUMBERS, count)


def cut(data: bytes, left_px: int, top_px: int, width_px: int, height_px: int, *, border_px: int = 0,
        frame: Frame | None = None) -> Cut:  # fmt: skip
    """The smallest run of tiles that holds the region, as a JPEG of its own.

    Its pixels equal a full decode's but for the cut's outermost column and row, where the decoder has no neighbour
    for smooth chroma upsampling; `border_px` takes that many more pixels around the region where it matters.
    `frame` is what `parse` says of the file, for who has asked already.
    Raises JpegError when the bytes are no JPEG or the region is not inside it.
    """
    frame = frame or parse(data)
    if left_px < 0 or top_px < 0 or width_px < 1 or height_px < 1:
        raise JpegError(f"a region of {width_px}x{height_px} px at ({left_px}, {top_px}) cannot be cut")
    if left_px + width_px > frame.width_px or top_px + height_px > frame.height_px:
        raise JpegError(f"a region reaches outside a JPEG of {frame.width_px}x{frame.height_px} px")
    tiles = _tiles(data, frame)
    if tiles is None:
        return Cut(data, left_px, top_px)
    tile_px, row_px = frame.interval_mcus * frame.mcu_width_px, frame.mcu_height_px
    across = -(-frame.width_px // tile_px)
    first_column = max(left_px - border_px, 0) // tile_px
    end_column = min(-(-(left_px + width_px + border_px) // tile_px), across)
    first_row = max(top_px - border_px, 0) // row_px
    end_row = min(-(-(top_px + height_px + border_px) // row_px), -(-frame.height_px // row_px))
    width = min(end_column * tile_px, frame.width_px) - first_column * tile_px
    height = min(end_row * row_px, frame.height_px) - first_row * row_px
    head = b"".join((data[: frame.size_at], _SIZE.pack(height, width), data[frame.size_at + 4 : frame.scan_at]))
    # a row's tiles lie side by side in the file, each with its marker behind it: one copy a row, then every marker
    # gets its new number
    begins = tiles[:-1].reshape(-1, across)[first_row:end_row, first_column]
    ends = tiles[1:].reshape(-1, across)[first_row:end_row, first_column:end_column]
    lasts = ends[:, -1]
    copied = [data[begin:end] for begin, end in zip(begins.tolist(), lasts.tolist(), strict=True)]
    out = bytearray().join((head, *copied))
    shifts = (lasts - begins).cumsum()
    shifts += len(head) - 1
    shifts -= lasts  # from a place in the file to the byte before the same place in `out`
    pixels = np.frombuffer(out, np.uint8)
    pixels[(ends + shifts[:, None]).ravel()] = restart_numbers(ends.size)
    pixels[-1] = EOI[1]
    return Cut(bytes(out), left_px - first_column * tile_px, top_px - first_row * row_px)


def shorten(data: bytes, bottom_px: int, frame: Frame) -> bytes:
    """For a file without tiles: the same bytes, but the frame says that the picture ends below `bottom_px`, so that
    a decoder stops there. What cannot be shortened comes back as it is."""
    height_px = -(-bottom_px // frame.mcu_height_px) * frame.mcu_height_px
    at = frame.size_at
    four_colours = data[at + 4] == 4  # CMYK is left to Pillow
    if not frame.scan_at or frame.interval_mcus or four_colours or height_px >= frame.height_px:
        return data
    return b"".join((data[:at], height_px.to_bytes(2, "big"), data[at + 2 :]))
