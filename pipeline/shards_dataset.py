"""`Shards`: a prepared split for those who keep their own DataLoader.

It reads samples by number (one `pread` each) and looks like torchvision's ImageFolder: `classes`, `targets`,
`transform`. For tars that others made, `feedline index` writes the manifest that it needs.
"""

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image
from torch.utils.data import Dataset

from feedline.pipeline.base.errors import DatasetError, UsageError
from feedline.pipeline.codecs.pillow import open_rgb
from feedline.pipeline.codecs.table import CODECS
from feedline.pipeline.format.local import LocalFiles
from feedline.pipeline.format.manifest import identified, read_index, refuse_address


class Shards(Dataset[tuple[Any, int]]):
    """Map-style: `shards[n]` is (image, label). Safe in forked and in spawned DataLoader workers."""

    def __init__(self, split: str | Path, transform: Callable[[Any], Any] | None = None, decode: str = "pil") -> None:
        """`decode`: "pil" gives Pillow images as ImageFolder does, "array" uint8 HWC, "bytes" what is in the shard.

        Raises DatasetError when there is no prepared split, UsageError for an address or another `decode`.
        """
        if decode not in ("pil", "array", "bytes"):
            raise UsageError(f"decode must be pil, array or bytes, not {decode!r}")
        self.folder, self.transform, self._decode = Path(split), transform, decode
        refuse_address(self.folder)
        self.manifest, self._identity = identified(self.folder)
        self.__setstate__({})

    @property
    def classes(self) -> list[str]:
        """As ImageFolder has them: the folders' names, so ImageNet's are wnids."""
        return [str(entry.get("wnid") or entry["name"]) for entry in self.manifest.classes]

    @property
    def targets(self) -> npt.NDArray[np.int32]:
        return self._index.labels_N

    def __len__(self) -> int:
        return len(self._index)

    def __getitem__(self, sample: int) -> tuple[Any, int]:
        """Raises IndexError, or DatasetError with the shard's name: also for bytes that are not those that the index
        knows, which each process checks once."""
        if not -len(self) <= sample < len(self):
            raise IndexError(f"sample {sample} of {len(self)}")
        data = self._files.read(*self._index.place(sample))
        if not self._checked[sample]:
            if zlib.crc32(data) != self._index.crc32_N[sample]:
                shard = self.folder / self.manifest.shards[int(self._index.shards_N[sample])].name
                what = "its bytes are not those that were written (wrong CRC): damaged, or prepared anew meanwhile"
                raise DatasetError(f"{shard}: sample {self._index.key(sample)!r}: {what}")
            self._checked[sample] = 1
        image = self._decoded(data)
        return self.transform(image) if self.transform else image, int(self._index.labels_N[sample])

    def _decoded(self, data: bytes) -> Any:
        codec = CODECS[self.manifest.codec]
        if self._decode == "bytes":
            return data
        if self._decode == "pil" and codec.image_file:
            return open_rgb(data)
        pixels_HWC = codec.pixels(data)
        return Image.fromarray(pixels_HWC) if self._decode == "pil" else np.require(pixels_HWC, requirements="W")

    def __getstate__(self) -> dict[str, Any]:
        """The index is read again over there instead of being pickled to every worker."""
        return {name: value for name, value in self.__dict__.items() if name not in ("_index", "_files", "_checked")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._index = read_index(self.folder, self.manifest)
        self._files = LocalFiles(self.folder, self.manifest.shard_names, identity=self._identity)
        self._checked = bytearray(len(self._index))
