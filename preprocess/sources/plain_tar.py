"""Writing plain tars of bytes, also tars inside tars whose size is known only afterwards."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from feedline.pipeline.format.shard_tar import BLOCK_BYTES, RECORD_BYTES, member_header, padding_bytes


class TarWriter:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    @property
    def size_bytes(self) -> int:
        return self._file.tell()

    def add(self, name: str, data: bytes) -> None:
        self._file.write(member_header(name, len(data)))
        self._file.write(data)
        self._file.write(bytes(padding_bytes(len(data))))

    @contextmanager
    def inner(self, name: str) -> Generator[None]:
        """What is added meanwhile becomes a tar of that name; its header is patched when its size is known."""
        header_at = self._file.tell()
        self._file.write(member_header(name, 0))
        start = self._file.tell()
        yield
        self.end(start)
        end = self._file.tell()
        self._file.seek(header_at)
        self._file.write(member_header(name, end - start))
        self._file.seek(end)

    def end(self, start: int) -> None:
        marks = 2 * BLOCK_BYTES
        length = self._file.tell() - start + marks
        self._file.write(bytes(marks + padding_bytes(length, RECORD_BYTES)))


@contextmanager
def tar_file(path: Path) -> Generator[TarWriter]:
    """Ends the archive when left without an error."""
    with path.open("wb", buffering=1 << 20) as file:
        tar = TarWriter(file)
        yield tar
        tar.end(0)
