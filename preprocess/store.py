"""Where prepared files go: a local folder, or anything fsspec speaks.

Both publish whole files or nothing. A folder does it with an attempt-unique name in the work folder, fsync, rename.
An object store cannot rename (a copy is not atomic): objects appear whole, shards under a name that carries their
content's hash, so two attempts either write the same object or never meet.
"""

import errno
import io
import os
import shutil
import tempfile
import uuid
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from feedline.pipeline.base.errors import UsageError, first_line, redacted
from feedline.pipeline.base.files import open_regular, refused_as, sync_folder, write_atomically, write_error
from feedline.pipeline.base.scratch import scratch_folder
from feedline.pipeline.format.shard_tar import hashed_name
from feedline.preprocess.sources.reading import reached

WORK = ".feedline"
"""The folder beside the splits that a running job keeps its plan, receipts and attempts in; gone when it is done."""
DELETIONS = 3


@dataclass(frozen=True)
class LocalStore:
    root: Path

    @property
    def address(self) -> str:
        return str(self.root)

    def prepare(self, folders: list[str]) -> None:
        """Makes the folders. Raises UsageError when the place cannot be written."""
        for folder in folders:
            try:
                (self.root / folder).mkdir(parents=True, exist_ok=True)
            except (FileExistsError, NotADirectoryError) as error:
                raise UsageError(f"{error.filename} is not a folder: choose another place for OUT") from error
            except OSError as error:
                instead = ": choose another place for OUT"
                raise write_error(error, f"making the folder {self.root / folder}", instead) from error
        if not os.access(self.root, os.W_OK | os.X_OK):
            raise UsageError(f"{self.root} cannot be written: choose another folder or its permissions")

    @contextmanager
    def attempt(self, run: str) -> Generator[BinaryIO]:
        """A file that nobody sees until it is published.

        Fails when the run's folder is gone: a straggler of an older run must not bring anything back.
        """
        path = self.root / WORK / f"attempts-{run}" / f"{uuid.uuid4().hex}.tmp"
        file = path.open("xb", buffering=1 << 20)
        try:
            yield file
        finally:
            with suppress(OSError):  # on a full disk closing fails too; what is published was flushed before
                file.close()
            path.unlink(missing_ok=True)

    def publish(self, attempt: BinaryIO, folder: str, name: str, sha256: str) -> str:
        """Makes the attempt's file visible, durably; returns the name it got in `folder`."""
        attempt.flush()
        os.fsync(attempt.fileno())
        Path(attempt.name).replace(self.root / folder / name)
        sync_folder(self.root / folder)
        return name

    def write(self, name: str, data: bytes) -> None:
        write_atomically(self.root / name, data)

    def open(self, name: str) -> io.BufferedIOBase | None:
        """To read from; None when it is not there. Raises OSError when it cannot be read."""
        try:
            return os.fdopen(open_regular(self.root / name), "rb")
        except (FileNotFoundError, NotADirectoryError):
            return None

    def read(self, name: str) -> bytes | None:
        """None when it is not there. Raises OSError when it cannot be read."""
        file = self.open(name)
        if file is None:
            return None
        with file:
            return file.read()

    def size(self, name: str) -> int | None:
        try:
            return (self.root / name).stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            return None

    def list(self, folder: str) -> list[str]:
        """Names in a folder, sorted; folders among them end with a slash; none when it is not there."""
        with suppress(FileNotFoundError, NotADirectoryError):
            entries = os.scandir(self.root / folder)
            return sorted(entry.name + "/" * entry.is_dir(follow_symlinks=False) for entry in entries)
        return []

    @contextmanager
    def local_copy(self, name: str) -> Generator[Path]:
        """A local file of the same name; absent when there is none."""
        yield self.root / name

    def delete(self, name: str) -> None:
        (self.root / name).unlink(missing_ok=True)

    def delete_tree(self, folder: str) -> None:
        """More than once when somebody still writes in it; what cannot be deleted stays."""
        for _ in range(DELETIONS):
            shutil.rmtree(self.root / folder, ignore_errors=True)
            if not (self.root / folder).exists():
                return

    def delete_folder_if_empty(self, folder: str) -> None:
        with suppress(OSError):
            (self.root / folder).rmdir()


@dataclass
class ObjectStore:
    """The same, method by method, for objects. Every transport has its own kinds of errors; whatever it is, a method
    raises an OSError that names the address."""

    address: str
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        try:
            self._fs, self._root = reached(self.address, self.options)
        except (ImportError, ValueError) as error:
            raise UsageError(f"{self.address} cannot be opened: {error}") from error

    def check_reachable(self) -> None:
        """Raises UsageError when it is not, whatever the store's own library says of it."""
        try:
            self._fs.ls(self._root)
        except FileNotFoundError:
            return  # nothing there yet, or no bucket: writing will say
        except Exception as error:
            raise UsageError(f"{self.address} cannot be reached: {first_line(error)}") from error

    def prepare(self, folders: list[str]) -> None:
        """Object stores have no folders; writing one small object shows whether we may."""
        name = f"{WORK}/writable"
        with refused_as(UsageError, f"{self.address} cannot be written"):
            self.write(name, b"")
            self.delete(name)

    @contextmanager
    def attempt(self, run: str) -> Generator[BinaryIO]:
        with tempfile.TemporaryFile(prefix=f"feedline-{run}-") as file:
            yield file

    def publish(self, attempt: BinaryIO, folder: str, name: str, sha256: str) -> str:
        """Streams the file; the object appears when all of it has arrived."""
        name = hashed_name(name, sha256)
        attempt.flush()
        attempt.seek(0)
        with self._asking(f"{folder}/{name}") as path:
            target: Any = self._fs.open(path, "wb", block_size=1 << 25)
            try:
                shutil.copyfileobj(attempt, target, 1 << 22)
                target.close()
            except BaseException:
                with suppress(Exception):  # else it finishes the object when it is closed, at the latest by itself
                    target.closed = True
                    target.discard()
                raise
        self._forget(f"{folder}/{name}")
        return name

    def write(self, name: str, data: bytes) -> None:
        with self._asking(name) as path:
            self._fs.pipe_file(path, data)
        self._forget(name)

    def open(self, name: str) -> io.BufferedIOBase | None:
        """All of it is in memory."""
        data = self.read(name)
        return None if data is None else io.BytesIO(data)

    def read(self, name: str) -> bytes | None:
        with suppress(FileNotFoundError), self._asking(name) as path:
            return self._fs.cat_file(path)
        return None

    def size(self, name: str) -> int | None:
        with suppress(FileNotFoundError), self._asking(name) as path:
            return int(self._fs.info(path)["size"])
        return None

    def list(self, folder: str) -> list[str]:
        with suppress(FileNotFoundError), self._asking(folder) as path:
            entries = self._fs.ls(path, detail=True)
            names = (PurePosixPath(e["name"]).name + "/" * (e["type"] == "directory") for e in entries)
            return sorted(name for name in names if name)
        return []

    @contextmanager
    def local_copy(self, name: str) -> Generator[Path]:
        with scratch_folder("copy") as folder:
            path = folder / PurePosixPath(name).name
            data = self.read(name)
            if data is not None:
                path.write_bytes(data)
            yield path

    def delete(self, name: str) -> None:
        with suppress(FileNotFoundError), self._asking(name) as path:
            self._fs.rm_file(path)

    def delete_tree(self, folder: str) -> None:
        with suppress(FileNotFoundError), self._asking(folder) as path:
            self._fs.rm(path, recursive=True)

    def delete_folder_if_empty(self, folder: str) -> None:
        """Nothing: a folder here is only a name's beginning."""

    @contextmanager
    def _asking(self, name: str) -> Generator[str]:
        """The path to ask the transport for. Raises OSError, FileNotFoundError where there is no such object."""
        self._forget(name)
        try:
            yield f"{self._root}/{name}" if name else self._root
        except Exception as error:
            what = redacted(f"{type(error).__name__}: {first_line(error)}")
            missing = isinstance(error, FileNotFoundError)
            number = errno.ENOENT if missing else getattr(error, "errno", None) or errno.EIO
            raise OSError(number, what, redacted(f"{self.address}/{name}".rstrip("/"))) from error

    def _forget(self, name: str) -> None:
        """Executors write here too: a listing kept from before their objects says that these do not exist."""
        path = f"{self._root}/{name}".rstrip("/")
        for listed in (path, path.rpartition("/")[0]):  # some stores forget the name alone, not its folder's listing
            self._fs.invalidate_cache(listed)


Store = LocalStore | ObjectStore


def open_store(where: str, options: dict[str, Any] | None = None) -> Store:
    """A `LocalStore` for paths and file:// addresses, an `ObjectStore` for every other scheme."""
    if "://" in where.removeprefix("file://"):
        return ObjectStore(where.rstrip("/"), options or {})
    return LocalStore(Path(where.removeprefix("file://")).absolute())
