"""A model that trains on batches handed out again and again is no model: from the first window on none is saved.

Savers that are known do nothing, whoever calls them: a `finally`, an exit handler, a framework that catches what ends
its loop. They are wrapped as they are imported, so that names taken from a module are wrapped too. What a script
opens, renames or removes by itself is announced by the interpreter (an audit hook): where that is a model file, by
its suffix, the script is ended there before the file is touched.
"""

import functools
import io
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from feedline.profiling.watch.capture import Finished
from feedline.profiling.watch.patches import Patches

LIGHTNING, FABRIC = ("lightning.pytorch", "pytorch_lightning"), ("lightning.fabric", "lightning_fabric")
CALLBACKS = ("_save_checkpoint", "_remove_checkpoint", "_link_checkpoint")
FILES = ("TorchCheckpointIO.save_checkpoint", "TorchCheckpointIO.remove_checkpoint")
SAVERS: dict[str, tuple[str, ...]] = {
    "torch": ("save", "serialization.save"),
    "torch.jit._serialization": ("save",),
    "torch.jit._script": ("RecursiveScriptModule.save",),
    "torch.distributed.checkpoint.state_dict_saver": ("save", "async_save"),
    "safetensors": ("serialize_file",),
    "accelerate.accelerator": ("Accelerator.save_state", "Accelerator.save_model", "Accelerator.save"),
    "transformers.trainer": ("Trainer._save_checkpoint", "Trainer.save_model", "Trainer._rotate_checkpoints"),
    "transformers.modeling_utils": ("PreTrainedModel.save_pretrained",),
    "ignite.handlers.checkpoint": ("DiskSaver.__call__", "DiskSaver.remove"),
    "feedline.train.checkpoint": ("Checkpoints.save",),
    "deepspeed.runtime.engine": ("DeepSpeedEngine.save_checkpoint",),
    **{f"{one}.trainer.trainer": ("Trainer.save_checkpoint",) for one in LIGHTNING},
    **{f"{one}.callbacks.model_checkpoint": tuple(f"ModelCheckpoint.{n}" for n in CALLBACKS) for one in LIGHTNING},
    **{f"{one}.plugins.io.torch_io": FILES for one in FABRIC},
    **{f"{one}.utilities.cloud_io": ("_atomic_save",) for one in FABRIC},
}
"""Module -> its functions that write or remove model files."""
SUFFIXES = (
    ".pt", ".pth", ".pth.tar", ".ckpt", ".safetensors", ".bin", ".distcp", ".onnx", ".pkl", ".pickle", ".joblib",
    ".npz", ".h5", ".hdf5", ".keras", ".weights",
)  # fmt: skip
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CHANGING = {"os.remove": 1, "os.rename": 2, "os.truncate": 1, "os.link": 2, "os.symlink": 2}
"""Audit events -> how many of their arguments are paths."""
_holding: list["Saves"] = []  # what an audit hook asks, which cannot be removed: one for the life of the process
_hooked = False


def _hear(event: str, args: tuple[Any, ...]) -> None:
    for saves in _holding:
        saves.hear(event, args)


class Saves:
    def __init__(self, patches: Patches) -> None:
        self._held = False
        patches.on_remove(self._release)
        self._refused: Callable[[str], None] = lambda _: None
        for module, names in SAVERS.items():
            patches.after_import(module, functools.partial(self._wrap, patches, names))

    def hold(self, refused: Callable[[str], None]) -> None:
        """From here on, until the patches are removed. `refused` is told why the script is ended."""
        global _hooked
        if self._held:
            return
        self._held = True
        self._refused = refused
        self._pid = os.getpid()
        _holding.append(self)
        if not _hooked:
            sys.addaudithook(_hear)
        _hooked = True
        self._ignored = ignored = sys.unraisablehook

        def unraisable(what: Any) -> None:
            if not isinstance(what.exc_value, Finished):  # an exit handler that was refused
                ignored(what)

        sys.unraisablehook = unraisable

    def _release(self) -> None:
        if self._held:
            self._held = False
            _holding.remove(self)
            sys.unraisablehook = self._ignored

    def _wrap(self, patches: Patches, names: tuple[str, ...], module: ModuleType) -> None:
        for name in names:
            owner_name, _, function = name.rpartition(".")
            owner = getattr(module, owner_name, None) if owner_name else module
            static = owner is not None and isinstance(vars(owner).get(function), staticmethod)
            patches.replace(owner, function, functools.partial(self._holding, static=static))

    def _holding(self, original: Any, *, static: bool) -> Any:
        @functools.wraps(original)
        def save(*args: Any, **kwargs: Any) -> Any:
            held = self._held and os.getpid() == self._pid and not _into_memory(*args, **kwargs)
            return None if held else original(*args, **kwargs)

        return staticmethod(save) if static else save

    def hear(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            mode, flags = (*args, None, 0)[1:3]
            writes = any(letter in mode for letter in "wax+") if isinstance(mode, str) else (flags or 0) & WRITING
            paths = args[:1] if writes else ()
        else:
            paths = args[: CHANGING.get(event, 0)]
        if event == "shutil.rmtree":  # an old checkpoint's folder, of which a part might go
            paths = (file for _, _, files in os.walk(args[0]) for file in files)
        model = next((path for path in paths if is_model(path)), None)
        if model is not None and os.getpid() == self._pid:
            self._refused(f"the script was about to change {Path(os.fsdecode(model)).name} by itself")
            raise Finished


def _into_memory(*args: Any, **kwargs: Any) -> bool:
    """As `torch.save(state, io.BytesIO())` does, of which a script makes a copy: nothing of it is on a disk."""
    return any(isinstance(one, io.BytesIO) for one in (*args, *kwargs.values()))


def is_model(path: Any) -> bool:
    return isinstance(path, str | bytes | os.PathLike) and os.fsdecode(path).lower().endswith(SUFFIXES)
