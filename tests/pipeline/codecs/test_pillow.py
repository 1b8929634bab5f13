"""Only what photographs come in is opened, whatever it is called and however much it says it holds."""

import io
import struct
import zlib

import pytest
from PIL import Image

from feedline.pipeline.base.errors import DatasetError
from feedline.pipeline.codecs.pillow import NAMES, START, open_rgb


def test_the_usual_formats_become_rgb() -> None:
    Image.init()
    for kind in [kind for kind in NAMES if kind in Image.SAVE]:  # Pillow may be built without WebP
        file = io.BytesIO()
        Image.new("RGB", (5, 4), (200, 10, 30)).save(file, kind)
        assert START.match(file.getvalue()[:16])
        assert open_rgb(file.getvalue()).size == (5, 4)
        assert open_rgb(file.getvalue()).mode == "RGB"


@pytest.mark.parametrize("kind", ["EPS", "TGA", "ICO", "PCX", "PDF"])
def test_others_are_not_opened(kind: str) -> None:
    file = io.BytesIO()
    Image.new("RGB", (5, 4)).save(file, kind)
    with pytest.raises(DatasetError, match="no image"):
        open_rgb(file.getvalue())


def test_a_bomb_is_refused_before_it_is_unpacked() -> None:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 13_400, 13_400, 8, 2, 0, 0, 0)
    bomb = (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(99))) + chunk(b"IEND", b"")
    )
    with pytest.raises(DatasetError, match="exceeds limit"):
        open_rgb(bomb)
