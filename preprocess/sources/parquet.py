"""Parquet as dataset hubs publish it: a struct (or binary) column with the image file, an integer or string label.

Column chunks are compressed, so nothing in them can be addressed: samples are unpacked into staging tars, in row
order. Class names come from the hub's own metadata where there is some, and must be the same in all files. Labels
stored as floats are `1.0`, of which `preprocess.sources.labels` says what they are.
"""

import json
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from feedline.pipeline.base.errors import SourceError, UsageError, first_line
from feedline.pipeline.format.manifest import INDEX
from feedline.preprocess.sources.base import OnProgress, Source, SourceOptions
from feedline.preprocess.sources.listing import Listed, expand, is_pattern
from feedline.preprocess.sources.reading import open_remote, what_happened
from feedline.preprocess.sources.staging import Unpacked, identity, staged
from feedline.preprocess.sources.webdataset import ShardsSource

IMAGE_NAMES = ("image", "img", "jpg", "picture", "pixels")
LABEL_NAMES = ("label", "labels", "cls", "class", "target", "fine_label", "coarse_label")
ROWS_PER_BATCH = 64


@dataclass(kw_only=True)
class ParquetSource(Source):
    where: str
    files: list[Listed]
    options: SourceOptions
    kind = "parquet"

    def __post_init__(self) -> None:
        self.first = next((file for file in self.files if file.split == "train"), self.files[0])
        schema = self._schema(self.first)
        images = fitting(schema, "image", self.options)
        self.image = self._chosen("image", images, IMAGE_NAMES if len(images) > 1 else images, schema)
        labels = fitting(schema, "label", self.options)
        named = [name for name in labels if hub_names(schema, name)]
        self.label = self._chosen("label", labels, (*LABEL_NAMES, *(named if len(named) == 1 else ())), schema)
        # what the user says of labels goes before what the hub says
        self.names = hub_names(schema, self.label) if self.options.labels is None else None

    def stage(self, folder: Path, on_progress: OnProgress = lambda _: None) -> Source:
        made_from = {
            "files": [identity(file.path, self.options.storage_options) for file in self.files],
            "columns": {"image": self.image, "label": self.label},
            "names": self.names,
        }
        tars, _ = staged(folder, made_from, self._samples(on_progress), [])
        return ShardsSource(
            where=self.where,
            tars=tars,
            classes=None if self.names is None else [{"name": name} for name in self.names],
            if_empty="it has no rows",
            if_unlabelled=f"its column {self.label!r} holds no label: say --source-option label_column=NAME",
            options=SourceOptions(labels=self.options.labels),
            notes=[f"columns: image {self.image!r}, label {self.label!r}"],
        )

    def _schema(self, file: Listed) -> pa.Schema:
        with opened(file.path, self.options) as parquet:
            return parquet.schema_arrow

    def _chosen(self, what: str, columns: Sequence[str], usual: Sequence[str], schema: pa.Schema) -> str:
        """Raises UsageError when it cannot be told which column is meant."""
        asked = self.options.image_column if what == "image" else self.options.label_column
        names = ", ".join(schema.names)
        if asked is not None and asked not in columns:
            reason = "cannot be one" if asked in schema.names else "does not exist"
            raise UsageError(f"{self.where}: {what} column {asked!r} {reason}; the columns are {names}")
        column = asked or next((name for name in usual if name in columns), None)
        unfit = next((name for name in usual if name in schema.names), None)
        if column is None and unfit is not None:
            raise self._unfit(what, unfit, schema)
        if column is None:
            option = f"--source-option {what}_column=NAME"
            raise UsageError(f"{self.where}: which column is the {what}? Say {option}; there are {names}")
        return column

    def _unfit(self, what: str, column: str, schema: pa.Schema) -> UsageError:
        remedy = "store integers or text" if what == "label" else "store the files' bytes"
        if pa.types.is_floating(schema.field(column).type):
            remedy += ", or say --source-option labels=numbers if whole ones are the classes' numbers"
        return UsageError(f"{self.where}: {what} column {column!r} is of {schema.field(column).type}: {remedy}")

    def _samples(self, on_progress: OnProgress) -> Iterator[Unpacked]:
        """Raises SourceError or UsageError, before the first, for a file that does not fit the others."""
        for file in self.files:
            schema = self._schema(file)
            for what, column in (("image", self.image), ("label", self.label)):
                if column not in schema.names:
                    raise SourceError(f"{file.path} has no column {column!r}, which other files have")
                if schema.names.count(column) > 1:
                    raise SourceError(f"{file.path} has two columns {column!r}: write it anew with one of them")
                if column not in fitting(schema, what, self.options):
                    raise self._unfit(what, column, schema)
            if self.options.labels is None and hub_names(schema, self.label) != self.names:
                raise SourceError(
                    f"{file.path} names other classes than {self.first.path}, or in another order: prepare them "
                    "apart, or say --source-option labels=numbers to take the numbers whatever their names"
                )
        for split in dict.fromkeys(file.split for file in self.files):
            row = 0
            for path in [file.path for file in self.files if file.split == split]:
                with opened(path, self.options) as parquet:
                    for image, label in rows_of(parquet, self.image, self.label):
                        yield Unpacked(split, f"{row:08d}", image, "" if label is None else str(label))
                        row += 1
                        on_progress(row)


@contextmanager
def opened(path: str, options: SourceOptions) -> Generator[pq.ParquetFile]:
    """Raises UsageError when there is nothing to open, SourceError when it is no Parquet, or a damaged one."""
    try:
        with (
            # Arrow's own for local files: its threads want no GIL
            open_remote(path, options.storage_options) if "://" in path else nullcontext(path) as file,
            pq.ParquetFile(file, page_checksum_verification=True) as parquet,
        ):
            yield parquet
    except (pa.ArrowInvalid, pa.ArrowException) as error:
        raise SourceError(
            f"{path} is not a whole Parquet file ({first_line(error)}): copy or download it again"
        ) from error
    except Exception as error:
        if not isinstance(error, OSError | ValueError) and not type(error).__module__.startswith("aiohttp"):
            raise
        raise UsageError(f"{path} cannot be read: {what_happened(error)}") from error


def rows_of(parquet: pq.ParquetFile, image: str, label: str) -> Iterator[tuple[bytes, Any]]:
    """(image file, label or None); an image that is null is empty."""
    for batch in parquet.iter_batches(batch_size=ROWS_PER_BATCH, columns=[image, label]):
        images: pa.Array = batch.column(image)
        if pa.types.is_struct(images.type) and not images.null_count:
            images = images.field("bytes")  # without an object for each path
        for cell, label_cell in zip(images, batch.column(label), strict=True):
            value: Any = cell.as_py()
            data = value.get("bytes") if isinstance(value, dict) else value
            yield data or b"", label_cell.as_py()


def fitting(schema: pa.Schema, what: str, options: SourceOptions) -> list[str]:
    """Columns whose type an image, or a label, may have."""
    types = pa.types

    def fits(kind: pa.DataType) -> bool:
        if what == "image":
            if types.is_struct(kind):
                kind = next((field.type for field in kind if field.name == "bytes"), pa.null())
            return types.is_binary(kind) or types.is_large_binary(kind)
        kind = kind.value_type if types.is_dictionary(kind) else kind
        if types.is_floating(kind):
            return options.labels is not None
        return types.is_integer(kind) or types.is_string(kind) or types.is_large_string(kind)

    return [column.name for column in schema if fits(column.type)]


def hub_names(schema: pa.Schema, label: str) -> list[str] | None:
    """Class names that a dataset hub keeps in the schema's metadata."""
    try:
        names = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"][label]["names"]
    except (KeyError, ValueError, TypeError, RecursionError):
        return None
    return names if isinstance(names, list) and names and all(isinstance(name, str) for name in names) else None


def recognise(path: str, options: SourceOptions) -> Source | None:
    is_folder = is_pattern(path) or "://" in path or Path(path).is_dir()
    if not path.endswith(".parquet") and (path.endswith((".tar", ".tar.gz", ".tgz")) or not is_folder):
        return None
    files = expand(path, (".parquet",), options.storage_options)
    wanted = [file for file in files if options.wants(file.split) and Path(file.path).name != INDEX]
    return ParquetSource(where=path, files=wanted, options=options) if wanted else None
