"""Shards for those who keep their own DataLoader: `Shards` by number, `ShardStream` one after another.

`Shards` reads a prepared split at random (one `pread` a sample) and looks like torchvision's ImageFolder: `classes`,
`targets`, `transform`. `ShardStream` needs no manifest: it walks any WebDataset tars, local or through fsspec, and
deals the shards out over ranks and DataLoader workers.
"""

import os
import tarfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from feedline.pipeline.base.errors import DatasetError, UsageError
from feedline.pipeline.codecs import jpeg
from feedline.pipeline.codecs.npy import npy_view
from feedline.pipeline.codecs.pillow import open_rgb
from feedline.pipeline.draw.order import keyed_randoms
from feedline.pipeline.format.local import LocalFiles
from feedline.pipeline.format.manifest import read_index, read_manifest
from feedline.pipeline.rank import place

Transform = Callable[[Any], Any]
MOST_MEMBER_BYTES = 1 << 30
"""A compressed tar of kilobytes can hold a member of terabytes."""
IMAGE_EXTENSIONS = ("jpg", "jpeg", "png", "webp", "npy")


class Shards(Dataset[tuple[Any, int]]):
    """Map-style: `shards[n]` is (image, label). Safe in forked and in spawned DataLoader workers."""

    def __init__(self, split: str | Path, transform: Transform | None = None, decode: str = "pil") -> None:
        """`decode`: "pil" gives Pillow images as ImageFolder does, "array" uint8 HWC, "bytes" what is in the shard.

        Raises DatasetError when there is no prepared split, UsageError for another `decode`.
        """
        if decode not in ("pil", "array", "bytes"):
            raise UsageError(f"decode must be pil, array or bytes, not {decode!r}")
        self.folder, self.transform, self._decode = Path(split), transform, decode
        self.manifest = read_manifest(self.folder)
        self._open()

    def _open(self) -> None:
        self._index = read_index(self.folder, self.manifest)
        self._files = LocalFiles(self.folder, [shard.name for shard in self.manifest.shards])
        self._process = os.getpid()

    @property
    def classes(self) -> list[str]:
        return [str(entry.get("wnid") or entry.get("name")) for entry in self.manifest.classes]

    @property
    def targets(self) -> npt.NDArray[np.int32]:
        return self._index.labels_N

    def __len__(self) -> int:
        return len(self._index)

    def __getitem__(self, sample: int) -> tuple[Any, int]:
        """Raises IndexError, or DatasetError with the shard's name."""
        if not -len(self) <= sample < len(self):
            raise IndexError(f"sample {sample} of {len(self)}")
        if os.getpid() != self._process:  # forked: file positions are not used, but closing must not be shared
            self._files = LocalFiles(self.folder, [shard.name for shard in self.manifest.shards])
            self._process = os.getpid()
        index = self._index
        shard, offset, length = (int(c[sample]) for c in (index.shards_N, index.offsets_N, index.lengths_N))
        image = decode_as(self._decode, self._files.read(shard, offset, length))
        return self.transform(image) if self.transform else image, int(index.labels_N[sample])

    def __getstate__(self) -> dict[str, Any]:
        """The index is read again over there instead of being pickled to every worker."""
        return {name: value for name, value in self.__dict__.items() if name not in ("_index", "_files")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()


class ShardStream(IterableDataset[tuple[Any, int]]):
    """Every sample of stock WebDataset tars once per epoch over all ranks and workers, shards in a seeded order.

    A shard belongs to one worker; with fewer shards than workers some workers have nothing, and none hangs. Ranks can
    get unequal numbers of samples: for exact epochs run `feedline index` and use the Loader.
    """

    def __init__(self, urls: Sequence[str | Path], transform: Transform | None = None, *, decode: str = "pil",
                 shuffle: bool = True, seed: int = 0) -> None:  # fmt: skip
        """`urls`: paths, or anything fsspec opens."""
        super().__init__()
        self.urls = [str(url) for url in urls]
        self.transform, self._decode, self._shuffle, self._seed = transform, decode, shuffle, seed
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def __iter__(self) -> Iterator[tuple[Any, int]]:
        rank, world_size = place(None, None)
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        order = np.arange(len(self.urls))
        if self._shuffle:
            order = np.argsort(keyed_randoms(len(self.urls), self._seed, self._epoch, stream=4), kind="stable")
        for shard in order[rank * workers + worker :: world_size * workers]:
            for data, label in read_tar(self.urls[shard]):
                try:
                    image = decode_as(self._decode, data)
                except DatasetError as error:
                    raise DatasetError(f"{self.urls[shard]}: {error}") from error
                yield (self.transform(image) if self.transform else image), label


def read_tar(url: str) -> Iterator[tuple[bytes, int]]:
    """(image bytes, label) of each sample of a WebDataset tar, read front to back. Raises DatasetError."""
    try:
        with _open_stream(url) as file, tarfile.open(fileobj=file, mode="r|*", tarinfo=_StrictHeader) as tar:
            yield from _samples(url, tar)
            rest: Any = tar.fileobj
            while block := rest.read(1 << 20):
                if block.count(0) < len(block):
                    raise DatasetError("there is more behind its end-of-archive mark")
    except DatasetError as error:
        raise error if url in str(error) else DatasetError(f"{url} cannot be read to its end: {error}") from error
    except (OSError, ValueError, ImportError, tarfile.TarError, EOFError) as error:
        raise DatasetError(f"{url} cannot be read to its end: {error}") from error


class _StrictHeader(tarfile.TarInfo):
    """`tarfile` takes a damaged header, and the end of a file that was cut, for the end of the archive."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> "_StrictHeader":
        try:
            return super().frombuf(buf, encoding, errors)  # pyright: ignore[reportReturnType]
        except tarfile.HeaderError as error:
            if len(buf) == tarfile.BLOCKSIZE and buf.count(0) == len(buf):
                raise  # the end-of-archive mark
            raise DatasetError(f"a member's header is damaged or missing ({error})") from error


def _samples(url: str, tar: tarfile.TarFile) -> Iterator[tuple[bytes, int]]:
    """Members of one sample stand together and share a name up to its first dot."""
    key, image, label = "", b"", None
    for member in tar:
        if not member.isfile():
            continue
        folder, _, name = member.name.rpartition("/")
        stem, _, extension = name.partition(".")
        here = f"{folder}/{stem}"
        if here != key:
            if image and label is not None:
                yield image, label
            key, image, label = here, b"", None
        if member.size > MOST_MEMBER_BYTES:
            raise DatasetError(f"{url}: {member.name} of {member.size:,} bytes is no sample")
        file = tar.extractfile(member)
        data = file.read() if file else b""
        if extension.lower() in IMAGE_EXTENSIONS:
            image = data
        elif extension == "cls":
            label = _label(url, member.name, data)
    if image and label is not None:
        yield image, label


def _label(url: str, name: str, data: bytes) -> int:
    try:
        return int(data)
    except ValueError as error:
        raise DatasetError(f"{url}: {name} holds {data[:20]!r}, not a class number") from error


def _open_stream(url: str) -> Any:
    if "://" not in url:
        return open(url, "rb")  # noqa: PTH123 the caller's `with` closes it
    import fsspec

    opener: Any = fsspec.open(url, "rb")
    return opener.open()


def decode_as(kind: str, data: bytes) -> Any:
    if kind == "bytes":
        return data
    if data[:6] == b"\x93NUMPY":
        array = npy_view(data)
        return array.copy() if kind == "array" else Image.fromarray(array)
    if kind == "array" and data[:2] == b"\xff\xd8":
        return jpeg.decode(data)
    image = open_rgb(data)
    return image if kind == "pil" else np.array(image)


def collate_uint8(samples: list[tuple[Any, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """For a DataLoader over arrays or Pillow images of one size: uint8 NHWC and int64, one copy."""
    images_NHWC = torch.from_numpy(np.stack([np.asarray(image) for image, _ in samples]))
    return images_NHWC, torch.tensor([label for _, label in samples])
