"""The on-disk format of a prepared split, and its one owner.

A split is a folder: `manifest.json` (the only truth, written last), `index.parquet` (one row per sample) and plain
WebDataset tars (`shard_tar`). This module writes and reads the first two. A sample is one range read at (shard,
offset, length). It imports neither torch nor Spark.
"""

import errno
import hashlib
import io
import json
import os
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from feedline.pipeline.base.errors import DatasetError, UsageError, first_line
from feedline.pipeline.base.files import open_regular, read_bounded
from feedline.pipeline.base.text import count_of, is_printable
from feedline.pipeline.codecs.table import CODECS
from feedline.pipeline.format.local import MANIFEST as MANIFEST

FORMAT_VERSION = 2
INDEX = "index.parquet"
MANIFEST_BYTES = 256 << 20
"""ImageNet's has 0.3 MB; what is larger than this is none."""
INDEX_ROW_BYTES = 1024
"""ImageNet's index has 24 a sample; one with more than so many, and than a MiB, is none."""
_DEEPEST = 8  # a manifest has three levels; Python's own recursion must not be what ends a reader


# --- the manifest -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ShardInfo:
    name: str
    """File name inside the split's folder."""
    samples: int
    planned_samples: int
    """As planned; `planned_samples - samples` were quarantined."""
    bytes: int
    sha256: str
    fingerprint: str = ""
    """Of the encoder that made it; "" where that is not known (shards of others)."""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    split: str
    samples: int
    classes: list[dict[str, Any]]
    """By label: {"name": …} and, for ImageNet, {"wnid": …, "names": […]}."""
    shards: list[ShardInfo]
    settings: dict[str, Any]
    """The exact settings of the job; always has `codec` and, where it applies, `size_px`, `resize`, `quality`."""
    seed: int
    plan_hash: str
    index_sha256: str = ""
    """Of the index file: labels and places of all samples are only as sure as it is."""
    versions: dict[str, str] = field(default_factory=dict)
    formats: dict[str, str] = field(default_factory=dict)
    """Those that not every build of Pillow reads, where this was prepared: what a small file of each was read as."""
    format_version: int = FORMAT_VERSION

    @property
    def codec(self) -> str:
        """A name of `codecs.table.CODECS`."""
        return self.settings["codec"]

    @property
    def shard_names(self) -> list[str]:
        return [shard.name for shard in self.shards]

    def shows(self, *, whole: bool) -> bool:
        """Whether its pictures can be what a script shows: all of each, stretched to a square, or crops."""
        return self.settings.get("resize") not in (("square", "crop") if whole else ("stretch",))

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1, sort_keys=True) + "\n"

    @classmethod
    def from_json(cls, text: str, where: str) -> "Manifest":
        """Raises DatasetError for anything that is not a manifest of this version."""
        try:
            fields = json.loads(text)
            if not isinstance(fields, dict):
                raise ValueError("it is no JSON object")
            version = fields["format_version"]
            if version != FORMAT_VERSION:
                read = f"this feedline reads {FORMAT_VERSION}: prepare the dataset again"
                raise DatasetError(f"{where}: format version {version!r}, {read}")
            _check_depth(fields)
            fields["shards"] = [ShardInfo(**shard) for shard in fields["shards"]]
            manifest = cls(**fields)
            manifest._check_types()
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            why = "nested too deep" if isinstance(error, RecursionError) else error
            what = f"{where} is not a feedline manifest ({why}): prepare the dataset again"
            raise DatasetError(what) from error
        for name in manifest.shard_names:
            if Path(name).name != name or "\0" in name or name == "..":
                raise DatasetError(f"{where}: shard name {name!r} points outside its folder")
        return manifest

    def _check_types(self) -> None:
        """Raises TypeError, KeyError or ValueError where JSON brought what the fields do not declare."""
        if not isinstance(self.versions, dict) or not isinstance(self.formats, dict):
            raise ValueError("versions and formats are no objects")
        if not isinstance(self.classes, list) or not all(isinstance(entry, dict) for entry in self.classes):
            raise ValueError("classes is no list of objects")
        counts = [self.samples]
        texts: list[Any] = [self.split, self.plan_hash, self.index_sha256, *self.formats, *self.formats.values()]
        for shard in self.shards:
            counts += (shard.samples, shard.planned_samples, shard.bytes)
            texts += (shard.name, shard.sha256, shard.fingerprint)
        for entry in self.classes:
            texts += (entry["name"], entry.get("wnid", ""), *(entry.get("names") or []))
        if not all(type(count) is int and 0 <= count < 1 << 63 for count in counts) or type(self.seed) is not int:
            raise ValueError("a count is not a whole number")
        if not all(isinstance(text, str) and is_printable(text) for text in texts):
            raise ValueError("a name is not a printable text")
        if self.codec not in CODECS:
            raise ValueError(f"codec {self.codec!r}")


def class_name(entry: Mapping[str, Any]) -> str:
    """What people call one of `Manifest.classes`; two may be called the same."""
    names = entry.get("names") or []
    return f"{entry['name']} ({names[0]})" if names and names[0] != entry["name"] else str(entry["name"])


def _check_depth(value: Any, levels: int = _DEEPEST) -> None:
    if levels == 0:
        raise ValueError(f"nested more than {_DEEPEST} levels deep")
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _check_depth(inner, levels - 1)


NOT_IN_PLACE = ".new.0.tmp"
"""Marks a folder of a new dataset, which is put in place of an old one, until all its folders are in their places."""
UNFINISHED = ".feedline/plan.json"
"""Lies in a place while a dataset is being prepared there."""
HALF_EXCHANGED = "a prepare ended while it put a new dataset in place of the old: run its command again"


def read_manifest(split_folder: Path) -> Manifest:
    """Raises DatasetError for what is no prepared split, or of a dataset of which only a part is in its place."""
    return identified(split_folder)[0]


def manifest_hash(split_folder: Path) -> str:
    """SHA-256 of the manifest's bytes: the identity of the dataset. Raises DatasetError as `read_manifest`."""
    return identified(split_folder)[1]


def identified(split_folder: Path) -> tuple[Manifest, str]:
    """Both, of the same bytes."""
    path = split_folder / MANIFEST
    if (split_folder / NOT_IN_PLACE).exists():
        raise DatasetError(f"{split_folder}: {HALF_EXCHANGED}")
    try:
        data = read_bounded(path, MANIFEST_BYTES)
        text = data.decode()
    except FileNotFoundError:
        what = f"{split_folder} is not a prepared split (no {MANIFEST})"
        for folder in (split_folder, split_folder.parent):
            _refuse_unfinished(folder)
        there = prepared_splits(split_folder) if split_folder.is_dir() else ()
        remedy = f"give {' or '.join(map(str, there))}" if there else "run `feedline prepare` first"
        raise DatasetError(f"{what}: {remedy}") from None
    except (OSError, ValueError) as error:
        what = getattr(error, "strerror", None) or "it is no text"
        raise DatasetError(f"{path} cannot be read: {what}") from error
    return Manifest.from_json(text, str(path)), hashlib.sha256(data).hexdigest()


# --- the index ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class SampleRow:
    """Where one sample's image bytes are, and what they should be."""

    key: str
    label: int
    shard: int
    offset: int
    length: int
    width: int
    height: int
    crc32: int


_TYPES = (pa.string(), pa.int32(), pa.int32(), pa.int64(), pa.int64(), pa.int32(), pa.int32(), pa.uint32())
INDEX_SCHEMA = pa.schema(list(zip(SampleRow.__dataclass_fields__, _TYPES, strict=True)))


@dataclass(frozen=True)
class Index:
    """All samples of a split in shard order: the columns of INDEX_SCHEMA; keys are read only when asked for."""

    labels_N: npt.NDArray[np.int32]
    shards_N: npt.NDArray[np.int32]
    offsets_N: npt.NDArray[np.int64]
    lengths_N: npt.NDArray[np.int64]
    widths_N: npt.NDArray[np.int32]
    heights_N: npt.NDArray[np.int32]
    crc32_N: npt.NDArray[np.uint32]
    path: Path

    def __len__(self) -> int:
        return len(self.labels_N)

    def place(self, sample: int) -> tuple[int, int, int]:
        """(shard, offset, length): what `LocalFiles.read` takes."""
        return int(self.shards_N[sample]), int(self.offsets_N[sample]), int(self.lengths_N[sample])

    @cached_property
    def _key_column(self) -> pa.ChunkedArray:
        with _unreadable(self.path):
            file = pq.ParquetFile(self.path)
            _check_rows(self.path, file.metadata, len(self))
            column = file.read(columns=["key"])["key"]
            if len(column) != len(self) or column.null_count:
                raise DatasetError(f"{self.path} has {len(self)} samples and {len(column)} keys: prepare it again")
            column.validate(full=True)  # no offset outside its buffer, and text that is text
            return column

    @cached_property
    def keys(self) -> list[str]:
        """Raises DatasetError, as `key` does, when that column cannot be read: it is only then looked at."""
        return self._key_column.to_pylist()

    def key(self, sample: int) -> str:
        """One key costs no list of them all: a tenth of the time and memory at 1.28 M samples."""
        return self._key_column[sample].as_py()

    def check(self, manifest: Manifest) -> None:
        """Raises DatasetError for a row that points outside its shard or has a label of no class."""
        inside = (self.shards_N >= 0) & (self.shards_N < len(manifest.shards))
        if inside.all() and len(self):
            sizes_N = np.array([shard.bytes for shard in manifest.shards], np.int64)[self.shards_N]
            ends_fit = self.lengths_N <= sizes_N - self.offsets_N  # no sum: it could overflow
            inside = (self.offsets_N >= 0) & (self.lengths_N >= 0) & ends_fit
        if not inside.all():
            raise DatasetError(
                f"{self.path}: row {int(np.argmin(inside))} points outside its shard: prepare it again"
            )
        known = (self.labels_N >= 0) & (self.labels_N < len(manifest.classes))
        if not known.all():
            row = int(np.argmin(known))
            raise DatasetError(f"{self.path}: row {row} has label {self.labels_N[row]}, {MANIFEST} has "
                               f"{count_of(len(manifest.classes), 'class')}: prepare it again")  # fmt: skip


def most_index_bytes(manifest: Manifest) -> int:
    """Before one is fetched that a stranger has laid there."""
    return (1 << 20) + INDEX_ROW_BYTES * manifest.samples


@contextmanager
def _unreadable(path: Path) -> Generator[None]:
    """What Arrow says of a damaged file, as a DatasetError of one line."""
    try:
        yield
    except (OSError, pa.ArrowException, BufferError, ValueError, KeyError) as error:
        number = getattr(error, "errno", None)
        why = getattr(error, "strerror", None) or first_line(error)
        remedy = ": copy it again, or prepare the dataset again" if number in (None, errno.ENOENT) else ""
        raise DatasetError(f"{path} cannot be read ({why}){remedy}") from error


def index_bytes(rows: Iterable[SampleRow]) -> bytes:
    """The index file's bytes; the same rows give the same bytes."""
    return index_table_bytes(pa.Table.from_pylist([vars(row) for row in rows], schema=INDEX_SCHEMA))


def index_table_bytes(table: pa.Table) -> bytes:
    """The same from a table of `INDEX_SCHEMA`, however it is chunked: a million rows never become objects."""
    buffer = io.BytesIO()
    pq.write_table(table.combine_chunks(), buffer, compression="zstd")
    return buffer.getvalue()


def read_index(split_folder: Path, manifest: Manifest | None = None, most_rows: int | None = None) -> Index:
    """1,281,167 rows take 0.1 s. Raises DatasetError when the file cannot be read or has more than `most_rows` (the
    manifest's samples), and with `manifest` also when the two do not fit, so that no row points outside its shard."""
    path = split_folder / INDEX
    names = INDEX_SCHEMA.names[1:]
    with _unreadable(path):
        data = _native_bytes(path)
        if manifest is not None:
            # Parquet has no checksum of its own that covers everything; 30 MB (ImageNet's) take 20 ms
            if manifest.index_sha256 and hashlib.sha256(data).hexdigest() != manifest.index_sha256:
                raise DatasetError(
                    f"{path} is not the index that {MANIFEST} names: copy both again, or run `feedline verify`"
                )
            most_rows = manifest.samples
        file = pq.ParquetFile(pa.BufferReader(data))
        if most_rows is not None:
            _check_rows(path, file.metadata, most_rows)
        table = file.read(columns=names)
        if manifest is not None and table.num_rows != manifest.samples:
            raise DatasetError(f"{path} has {count_of(table.num_rows, 'sample')}, {MANIFEST} says {manifest.samples}")
        if not file.schema_arrow.equals(INDEX_SCHEMA):
            raise DatasetError(f"{path} has other columns than this feedline reads: prepare the dataset again")
        if any(table[name].null_count for name in names):
            raise DatasetError(f"{path} has empty cells: prepare the dataset again")
        # neither pq.read_table nor to_numpy: both import pandas, 1.2 s of a loader's 1.5 to its first batch
        columns: list[Any] = [np.from_dlpack(table[name].combine_chunks()) for name in names]
    index = Index(*columns, path=path)
    if manifest is not None:
        index.check(manifest)
    return index


def _native_bytes(path: Path) -> pa.Buffer:
    """The file in Arrow's own memory. A thread of Arrow's may be the last to let go of a reader: if that frees memory
    of Python's while the interpreter ends, the process aborts ("terminate called without an active exception")."""
    with open(open_regular(path), "rb") as file:  # noqa: PTH123 a descriptor, which waits for no pipe
        data = pa.allocate_buffer(os.fstat(file.fileno()).st_size)
        file.readinto(data)
        return data


def _check_rows(path: Path, metadata: pq.FileMetaData, most: int) -> None:
    """Before anything is read: repeated values cost a file nothing, but 50 M rows take gigabytes. How many are read
    is what the columns say of themselves, so everything that the footer says is looked at."""
    groups = [metadata.row_group(group) for group in range(metadata.num_row_groups)]
    columns = range(metadata.num_columns)
    rows = max([metadata.num_rows, *(sum(group.column(n).num_values for group in groups) for n in columns)])
    if rows > most:
        raise DatasetError(f"{path} has {count_of(rows, 'sample')}, {MANIFEST} says {most}")


# --- finding splits -----------------------------------------------------------------------------------


def _refuse_unfinished(folder: Path) -> None:
    if (folder / UNFINISHED).exists():
        raise DatasetError(f"{folder} holds an unfinished prepare: run its command again to resume")


def prepared_splits(folder: Path) -> Sequence[Path]:
    """The splits under a prepared folder (or the folder itself), train first. Empty when there are none. Raises
    UsageError for an address, and for what does not exist, DatasetError for an unfinished prepare."""
    refuse_address(folder)
    refuse_missing(folder)
    if (folder / MANIFEST).exists():
        return [folder]
    manifests = list(folder.glob(f"*/{MANIFEST}")) or list(folder.glob(f"*/*/{MANIFEST}"))
    if not manifests:
        _refuse_unfinished(folder)
    splits = [path.parent for path in manifests]
    return sorted(splits, key=lambda path: (path.parent, path.name != "train", path.name))


def refuse_missing(folder: Path) -> None:
    """Raises UsageError."""
    if not folder.exists():
        raise UsageError(f"{folder} does not exist: give a folder that `feedline prepare` made")


def refuse_address(folder: Path) -> None:
    """Raises UsageError for an http://… or the like, of which a Path has lost a slash: those that can read one take
    words, not paths."""
    scheme, colon, rest = str(folder).partition(":/")
    if colon and scheme.isalnum() and not folder.exists():
        address = f"{scheme}://{rest.lstrip('/')}"
        raise UsageError(f"{address} is an address, and this reads local folders only: copy it to one")
