"""Parquet as dataset hubs publish it: a struct (or binary) column with the image file, an integer or string label.

Column chunks are compressed, so nothing in them can be addressed: samples are unpacked into staging tars, in row
order. Class names come from the hub's own metadata where there is some; files that number them differently are
brought together by name.
"""

import json
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from feedline.pipeline.base.errors import UsageError
from feedline.preprocess.sources.base import Found, IndexTask, OnProgress, Part, Source, SourceError, SourceOptions
from feedline.preprocess.sources.listing import Listed, expand, is_pattern, split_of
from feedline.preprocess.sources.staging import StagingWriter, Unpacked, stamp, stamped
from feedline.preprocess.sources.webdataset import ShardsSource

IMAGE_NAMES = ("image", "img", "jpg", "picture", "pixels")
LABEL_NAMES = ("label", "labels", "cls", "class", "target", "fine_label", "coarse_label")
ROWS_PER_BATCH = 64


@dataclass(frozen=True, kw_only=True)
class Columns:
    image: str
    label: str


@dataclass(kw_only=True)
class ParquetSource(Source):
    where: str
    files: list[Listed]
    options: SourceOptions = field(default_factory=SourceOptions)
    kind = "parquet"
    needs_staging = True

    def __post_init__(self) -> None:
        self.first = next((file for file in self.files if file.split == "train"), self.files[0])
        with opened(self.first.path, self.options) as file:
            schema = file.schema_arrow
        self.columns = find_columns(schema, self.where, self.options)
        self.names = hub_names(schema, self.columns.label) if self.options.labels != "numbers" else None

    def stage(self, folder: Path, on_progress: OnProgress | None = None) -> Source:
        files = [self._identity(file) for file in self.files]
        made_from = {"files": files, "columns": vars(self.columns), "names": self.names}
        said = stamped(folder, made_from)
        if said is None:
            said = {"tars": self._unpack(folder, on_progress or (lambda *_: None))}
            stamp(folder, made_from, said["tars"])
        return ShardsSource(
            where=self.where,
            tars=[Listed(path=str(folder / name), under=split, split=split) for split, name in said["tars"]],
            classes=None if self.names is None else [{"name": name} for name in self.names],
            if_empty="it has no rows",
            labels=self.options.labels,
            notes=[f"columns: image {self.columns.image!r}, label {self.columns.label!r}"],
        )

    def tasks(self) -> Sequence[IndexTask]:
        raise RuntimeError("stage() comes first")

    def finish(self, parts: Sequence[Part]) -> Found:
        raise RuntimeError("stage() comes first")

    def _identity(self, file: Listed) -> list[Any]:
        if "://" in file.path:
            return [file.path]
        stat = Path(file.path).stat()
        return [file.path, stat.st_size, stat.st_mtime_ns]

    def _unpack(self, folder: Path, on_progress: OnProgress) -> list[tuple[str, str]]:
        writer = StagingWriter(folder)
        self.labels_by_path = self._labels_by_path()
        for split in dict.fromkeys(file.split for file in self.files):
            writer.write(split, self._samples(split, on_progress))
        return writer.tars

    def _labels_by_path(self) -> dict[str, list[int]]:
        """Label by the file's own class number, where a file numbers the classes differently. Raises SourceError."""
        found: dict[str, list[int]] = {}
        for file in self.files if self.options.labels != "numbers" else []:
            with opened(file.path, self.options) as parquet:
                names = hub_names(parquet.schema_arrow, self.columns.label)
            if names == self.names:
                continue
            if not names or not self.names or sorted(names) != sorted(self.names) or len(set(names)) < len(names):
                raise SourceError(
                    f"{file.path} names other classes than {self.first.path}, or none: prepare them apart, or say "
                    "--source-option labels=numbers to take the numbers for labels whatever their names"
                )
            found[file.path] = [self.names.index(name) for name in names]
        return found

    def _samples(self, split: str, on_progress: OnProgress) -> Iterator[Unpacked]:
        row = 0
        for file in self.files:
            if file.split != split:
                continue
            with opened(file.path, self.options) as parquet:
                label_of = self.labels_by_path.get(file.path, [])
                for image, said in rows_of(parquet, self.columns, file.path):
                    known = isinstance(said, int) and 0 <= said < len(label_of)
                    label = "" if said is None else str(label_of[said] if known else said)
                    yield Unpacked(split=split, key=f"{row:08d}", data=image, label=label)
                    row += 1
                    on_progress(row, None)


@contextmanager
def opened(path: str, options: SourceOptions) -> Generator[pq.ParquetFile]:
    """Raises UsageError when there is nothing to open, SourceError when it is no Parquet, or a damaged one."""
    import fsspec

    remote: Any = fsspec.open(path, "rb", **options.storage_options) if "://" in path else None
    try:
        with (
            remote if remote is not None else nullcontext(path) as file,  # Arrow's own: its threads want no GIL
            pq.ParquetFile(file, page_checksum_verification=True) as parquet,
        ):
            yield parquet
    except (pa.ArrowInvalid, pa.ArrowException) as error:
        first = str(error).strip().splitlines()[0]
        raise SourceError(f"{path} is not a whole Parquet file ({first}): copy or download it again") from error
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {str(error).strip() or type(error).__name__}") from error


def rows_of(parquet: pq.ParquetFile, columns: Columns, path: str) -> Iterator[tuple[bytes, Any]]:
    """(image file, label or None); an image that is null is empty."""
    names = [columns.image, columns.label]
    missing = next((name for name in names if name not in parquet.schema_arrow.names), None)
    if missing is not None:
        raise SourceError(f"{path} has no column {missing!r}, which other files have")
    for batch in parquet.iter_batches(batch_size=ROWS_PER_BATCH, columns=names):
        images: pa.Array = batch.column(columns.image)
        if pa.types.is_struct(images.type) and not images.null_count:
            images = images.field("bytes")  # without an object for each path
        for image, label in zip(images, batch.column(columns.label), strict=True):
            value: Any = image.as_py()
            data = value.get("bytes") if isinstance(value, dict) else value
            yield data or b"", label.as_py()


# --- columns and classes ------------------------------------------------------------------------------


def find_columns(schema: pa.Schema, where: str, options: SourceOptions) -> Columns:
    """Raises UsageError when it cannot be told which columns are meant."""
    images = [column.name for column in schema if is_image_type(column.type)]
    labels = [column.name for column in schema if is_label_type(column.type)]
    usual_images = IMAGE_NAMES if len(images) > 1 else images
    named = [name for name in labels if hub_names(schema, name)]
    usual_labels = (*LABEL_NAMES, *(named if len(named) == 1 else ()))
    image = chosen("image", options.image_column, images, usual_images, schema, where)
    label = chosen("label", options.label_column, labels, usual_labels, schema, where)
    return Columns(image=image, label=label)


def is_image_type(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return any(kind.field(n).name == "bytes" and is_binary(kind.field(n).type) for n in range(kind.num_fields))
    return is_binary(kind)


def is_binary(kind: pa.DataType) -> bool:
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind)


def is_label_type(kind: pa.DataType) -> bool:
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    return pa.types.is_integer(value) or pa.types.is_string(value) or pa.types.is_large_string(value)


def chosen(
    what: str, asked: str | None, fitting: Sequence[str], usual: Sequence[str], schema: pa.Schema, where: str
) -> str:
    if asked is not None:
        if asked in fitting:
            return asked
        reason = "cannot be one" if asked in schema.names else "does not exist"
        raise UsageError(f"{where}: {what} column {asked!r} {reason}; the columns are {', '.join(schema.names)}")
    named = next((name for name in usual if name in fitting), None)
    if named is not None:
        return named
    if unfit := next((name for name in usual if name in schema.names), None):
        remedy = "store integers or text" if what == "label" else "store the files' bytes"
        raise UsageError(f"{where}: {what} column {unfit!r} is of {schema.field(unfit).type}: {remedy}")
    raise UsageError(
        f"{where}: which column is the {what}? Say --source-option {what}_column=NAME; there are "
        f"{', '.join(schema.names)}"
    )


def hub_names(schema: pa.Schema, label: str) -> list[str] | None:
    """Class names that a dataset hub keeps in the schema's metadata."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        names = features[label]["names"]
    except (KeyError, ValueError, TypeError, RecursionError):
        return None
    return names if isinstance(names, list) and names and all(isinstance(name, str) for name in names) else None


# --- recognising --------------------------------------------------------------------------------------


def recognise(path: str, options: SourceOptions) -> Source | None:
    if path.startswith("torchvision:") or not (path.endswith(".parquet") or looks_inside(path)):
        return None
    files = [replace(file, split=split_of(file)) for file in expand(path, (".parquet",), options.storage_options)]
    files = [file for file in files if Path(file.path).name != "index.parquet"]  # a prepared dataset's
    wanted = [file for file in files if options.wants(file.split)]
    return ParquetSource(where=path, files=wanted, options=options) if wanted else None


def looks_inside(path: str) -> bool:
    """A folder, local or not, that is not given as a tar."""
    return not path.endswith((".tar", ".tar.gz", ".tgz")) and (
        is_pattern(path) or "://" in path or Path(path).is_dir()
    )
