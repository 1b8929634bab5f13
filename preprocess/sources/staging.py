"""Staging tars: where samples go whose bytes cannot be addressed in their source. Deterministic, atomic, reused.

One WebDataset tar after another with `KEY.jpg` (or `.png`) and `KEY.cls`. A finished set is stamped with what it was
made from, so that a resumed job does not unpack again. Also how members are written, and tars inside tars.
"""

import io
import json
import os
import tarfile
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from feedline.pipeline.base.files import write_atomically, write_error
from feedline.pipeline.format.shard_tar import BLOCK_BYTES, member_header, shard_name
from feedline.preprocess.sources.base import Classes
from feedline.preprocess.sources.listing import Listed
from feedline.preprocess.sources.reading import about_remote

STAMP = "staged.json"
TAR_BYTES = 1 << 30
PNG_START = b"\x89PNG"
WHICH = "size ETag etag md5Hash blob_id mtime LastModified last_modified updated created"
"""What fsspec's file systems call that which changes with a file."""


class Unpacked(NamedTuple):
    """One sample on its way into a staging tar."""

    split: str
    key: str
    data: bytes
    label: str
    """A number or a word; "" for none."""


def identity(path: str, options: Mapping[str, Any]) -> list[Any]:
    """What a source file is now, for `made_from`: another download is another source. At an address, what its store
    says of it (`options` are fsspec's). Raises UsageError where the store cannot be asked."""
    if "://" in path:
        said = about_remote(path, options)
        return [path, *(f"{name} {said[name]}" for name in WHICH.split() if said.get(name) is not None)]
    stat = Path(path).stat()
    return [path, stat.st_size, stat.st_mtime_ns]


def staged(
    folder: Path, made_from: dict[str, Any], samples: Iterable[Unpacked], classes: Classes
) -> tuple[list[Listed], Classes]:
    """The tars in `folder`, and their classes: those of an earlier run on the very same source, or written now.

    `samples` come split by split, and are only asked for if they are needed; `classes` may be filled until their end.
    Raises FeedlineError when they cannot be written.
    """
    made_from = json.loads(json.dumps(made_from))
    stamp: dict[str, Any] | None = None
    with suppress(OSError, ValueError, TypeError, KeyError, RecursionError):  # none, damaged, or of another version
        found = json.loads((folder / STAMP).read_text())
        same = found["made_from"] == made_from and all((folder / name).exists() for _, name in found["tars"])
        stamp = {name: found[name] for name in ("tars", "classes")} if same else None
    if stamp is None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / STAMP).unlink(missing_ok=True)  # of another source, whose tars are written over
            tars = list(write_tars(folder, samples))
            stamp = {"made_from": made_from, "tars": tars, "classes": classes}
            write_atomically(folder / STAMP, (json.dumps(stamp, sort_keys=True) + "\n").encode())
        except OSError as error:
            raise write_error(error, f"unpacking into {folder}") from error
    listed = [Listed(path=str(folder / name), under=split, split=split) for split, name in stamp["tars"]]
    return listed, stamp["classes"] or []


def write_tars(folder: Path, samples: Iterable[Unpacked]) -> Iterator[tuple[str, str]]:
    """Rolls from tar to tar; (split, file name) of each."""
    arriving = iter(samples)
    sample = next(arriving, None)
    numbers = Counter[str]()
    while sample is not None:
        split = sample.split
        name = shard_name(split, numbers[split])
        numbers[split] += 1
        partial = folder / f".{name}.partial"
        with partial.open("wb") as file:
            with tarfile.open(fileobj=file, mode="w") as tar:
                while sample is not None and sample.split == split and tar.offset < TAR_BYTES:
                    add(tar, f"{sample.key}.{'png' if sample.data.startswith(PNG_START) else 'jpg'}", sample.data)
                    if sample.label:
                        add(tar, f"{sample.key}.cls", sample.label.encode())
                    sample = next(arriving, None)
            file.flush()
            os.fsync(file.fileno())  # before the stamp says that it is whole
        partial.replace(folder / name)
        yield split, name


def add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    """A member of fixed time, owner and mode: equal content gives equal bytes."""
    info = tarfile.TarInfo(name)
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))


@contextmanager
def inner_tar(outer: tarfile.TarFile, name: str) -> Generator[tarfile.TarFile]:
    """A tar that is the next member of `outer`; the member's header is written when its size is known."""
    file: Any = outer.fileobj
    header_at = file.tell()
    file.write(bytes(BLOCK_BYTES))
    with tarfile.open(fileobj=file, mode="w") as inner:
        inner.offset = 0  # by which it is padded at its end
        yield inner
    outer.offset = file.tell()
    file.seek(header_at)
    file.write(member_header(name, outer.offset - header_at - BLOCK_BYTES))
    file.seek(outer.offset)
