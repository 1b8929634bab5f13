"""Where prepared files go: a local folder, or anything fsspec speaks.

Both publish whole files or nothing. A folder does it with an attempt-unique name in the work folder, fsync, rename.
An object store cannot rename (a copy is not atomic): objects appear whole, shards under a name that carries their
content's hash, so two attempts either write the same object or never meet.
"""

import errno
import os
import re
import shutil
import stat
import tempfile
import uuid
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from feedline.pipeline.base.errors import UsageError, first_line, redacted
from feedline.pipeline.base.files import sync_folder, write_atomically, write_error
from feedline.pipeline.base.scratch import scratch_folder

WORK = ".feedline"
"""The folder beside the splits that a running job keeps its plan, receipts and attempts in; gone when it is done."""
TEMPORARY_FILE = re.compile(r"\..+\.\d+\.tmp")
"""What `write` leaves in a folder when its process is killed."""
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
                raise write_error(error, f"making the folder {self.root / folder}") from error
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

    def read(self, name: str) -> bytes | None:
        """None when it is not there. Raises OSError when it cannot be read."""
        path = self.root / name
        try:
            if not stat.S_ISREG(path.stat().st_mode):  # a pipe would be waited for
                raise OSError(errno.EINVAL, "it is no file")
            return path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

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
    """The same, method by method, for objects."""

    address: str
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        import fsspec

        try:
            self._fs, self._root = fsspec.core.url_to_fs(self.address, **self.options)
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
        try:
            self.write(name, b"")
            self.delete(name)
        except (OSError, NotImplementedError) as error:
            raise UsageError(f"{self.address} cannot be written: {first_line(error)}") from error

    @contextmanager
    def attempt(self, run: str) -> Generator[BinaryIO]:
        with tempfile.TemporaryFile(prefix=f"feedline-{run}-") as file:
            yield file

    def publish(self, attempt: BinaryIO, folder: str, name: str, sha256: str) -> str:
        """Streams the file; the object appears when all of it has arrived."""
        stem, dot, extension = name.rpartition(".")
        name = f"{stem}-{sha256[:16]}{dot}{extension}"
        attempt.flush()
        attempt.seek(0)
        with self._fs.open(self._path(f"{folder}/{name}"), "wb", block_size=1 << 25) as target:
            shutil.copyfileobj(attempt, target, 1 << 22)
        self._forget(f"{folder}/{name}")
        return name

    def write(self, name: str, data: bytes) -> None:
        self._fs.pipe_file(self._path(name), data)
        self._forget(name)

    def read(self, name: str) -> bytes | None:
        return self._ask(name, self._fs.cat_file)

    def size(self, name: str) -> int | None:
        info = self._ask(name, self._fs.info)
        return None if info is None else int(info["size"])

    def list(self, folder: str) -> list[str]:
        entries = self._ask(folder, lambda path: self._fs.ls(path, detail=True)) or ()
        names = (PurePosixPath(e["name"]).name + "/" * (e["type"] == "directory") for e in entries)
        return sorted(name for name in names if name)

    @contextmanager
    def local_copy(self, name: str) -> Generator[Path]:
        with scratch_folder("copy") as folder:
            path = folder / PurePosixPath(name).name
            data = self.read(name)
            if data is not None:
                path.write_bytes(data)
            yield path

    def delete(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self._fs.rm_file(self._path(name))

    def delete_tree(self, folder: str) -> None:
        with suppress(FileNotFoundError):
            self._fs.rm(self._path(folder), recursive=True)

    def delete_folder_if_empty(self, folder: str) -> None:
        """Nothing: a folder here is only a name's beginning."""

    def _ask(self, name: str, ask: Callable[[str], Any]) -> Any:
        """None when it is not there. Every transport has its own kinds of errors; all become an OSError that names
        the address."""
        self._forget(name)
        try:
            return ask(self._path(name))
        except FileNotFoundError:
            return None
        except Exception as error:
            what = redacted(f"{type(error).__name__}: {first_line(error)}")
            number = getattr(error, "errno", None) or errno.EIO
            raise OSError(number, what, redacted(f"{self.address}/{name}".rstrip("/"))) from error

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    def _forget(self, name: str) -> None:
        """Executors write here too: a listing kept from before their objects says that these do not exist."""
        path = self._path(name)
        for listed in (path, path.rpartition("/")[0]):  # some stores forget the name alone, not its folder's listing
            self._fs.invalidate_cache(listed)


Store = LocalStore | ObjectStore


def open_store(where: str, options: dict[str, Any] | None = None) -> Store:
    """A `LocalStore` for paths and file:// addresses, an `ObjectStore` for every other scheme."""
    if "://" in where.removeprefix("file://"):
        return ObjectStore(where.rstrip("/"), options or {})
    return LocalStore(Path(where.removeprefix("file://")).absolute())
