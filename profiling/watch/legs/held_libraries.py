"""Libraries that open what they write by themselves, in C or C++: their functions are patched as they are imported,
and handed a path in the scratch folder (`elsewhere`)."""

import functools
import os
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from feedline.profiling.watch.legs.elsewhere import Elsewhere

if TYPE_CHECKING:
    from feedline.profiling.watch.hooks import Hooks

C_WRITERS: dict[str, tuple[tuple[str, int, str], ...]] = {
    "cv2": (("imwrite", 0, "filename"), ("imwritemulti", 0, "filename")),
    "torch.jit._script": (("RecursiveScriptModule.save", 1, "f"),),
    "torch.jit._serialization": (("save", 1, "f"),),
    "safetensors": (("serialize_file", 1, "filename"),),
    "pyarrow": (("output_stream", 0, "source"),),
    "pyarrow.ipc": (("RecordBatchFileWriter.__init__", 1, "sink"), ("RecordBatchStreamWriter.__init__", 1, "sink")),
    "pyarrow.feather": (("write_feather", 1, "dest"),),
    "pyarrow.csv": (("write_csv", 1, "output_file"),),
    "pyarrow.parquet.core": (("ParquetWriter.__init__", 1, "where"),),
}
"""Module -> (function, which of its arguments is the path, and that one's name)."""


class Libraries:
    def __init__(self, files: Elsewhere) -> None:
        self._files = files

    def hook(self, hooks: "Hooks") -> None:
        """Modules that open files by themselves, patched as they are imported."""
        hooks.targets["torch.utils.tensorboard.writer"] = lambda module: hooks.replace(
            module.FileWriter, "__init__", self._log_folder
        )
        for name in ("sqlite3.dbapi2", "sqlite3"):  # the second takes its functions from the first: twice is harmless
            hooks.targets[name] = lambda module: hooks.replace(module, "connect", self._database)
        hooks.targets["h5py._hl.files"] = lambda module: hooks.replace(module.File, "__init__", self._hdf5)
        for name in C_WRITERS:
            hooks.targets[name] = functools.partial(self._hook_writers, hooks)

    def _hook_writers(self, hooks: "Hooks", module: ModuleType) -> None:
        for name, position, keyword in C_WRITERS[module.__name__]:
            owner, _, function = name.rpartition(".")
            hooks.replace(
                getattr(module, owner) if owner else module,
                function,
                functools.partial(self._argument, position=position, keyword=keyword),
            )

    def _argument(self, original: Any, *, position: int, keyword: str) -> Any:
        def there(value: Any) -> Any:
            return self._files.divert(value, keep=False) if isinstance(value, str | os.PathLike) else value

        @functools.wraps(original)
        def write(*args: Any, **kwargs: Any) -> Any:
            if keyword in kwargs:
                kwargs[keyword] = there(kwargs[keyword])
            diverted = [there(value) if number == position else value for number, value in enumerate(args)]
            return original(*diverted, **kwargs)

        return write

    def torch_save(self, original: Any) -> Any:
        return self._argument(original, position=1, keyword="f")

    def _log_folder(self, original: Callable[..., None]) -> Any:
        @functools.wraps(original)
        def __init__(writer: Any, log_dir: Any, *args: Any, **kwargs: Any) -> None:
            target = str(self._files.divert(os.path.join(log_dir, "events"), keep=False))  # noqa: PTH118
            original(writer, os.path.dirname(target), *args, **kwargs)  # noqa: PTH120

        return __init__

    def _hdf5(self, original: Callable[..., None]) -> Any:
        @functools.wraps(original)
        def __init__(file: Any, name: Any, mode: str = "r", *args: Any, **kwargs: Any) -> None:
            if isinstance(name, str | bytes | os.PathLike):
                keep = mode in ("a", "r+")
                name = self._files.seen(name) if mode == "r" else self._files.divert(name, keep=keep)
            original(file, name, mode, *args, **kwargs)

        return __init__

    def _database(self, original: Any) -> Any:
        @functools.wraps(original)
        def connect(database: Any, *args: Any, **kwargs: Any) -> Any:
            memory = isinstance(database, str) and (database == ":memory:" or database.startswith("file:"))
            return original(database if memory else self._files.divert(database, keep=True), *args, **kwargs)

        return connect
