"""Any map-style torchvision classification dataset by name: `torchvision:CIFAR10:ROOT`, from files already there.

One that comes in several forms, each with train and test, is named with its form: `torchvision:EMNIST/letters:ROOT`.
torchvision is imported here, in the driver, and only while unpacking: every picture becomes a PNG in a staging tar.
"""

import difflib
import inspect
import io
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from feedline.pipeline.base.errors import UsageError
from feedline.preprocess.sources.base import (
    Classes,
    Found,
    IndexTask,
    OnProgress,
    Part,
    Source,
    SourceError,
    SourceOptions,
)
from feedline.preprocess.sources.listing import Listed
from feedline.preprocess.sources.staging import StagingWriter, Unpacked, stamp, stamped
from feedline.preprocess.sources.webdataset import ShardsSource

PREFIX = "torchvision:"
SPLIT_WORDS = {"train": ("train", "trainval", "train-standard"), "val": ("val", "valid", "validation", "test")}
"""Our split -> what datasets with a `split` argument may call it; the first that exists is taken."""


@dataclass(kw_only=True)
class TorchvisionSource(Source):
    where: str
    name: str
    root: str
    options: SourceOptions = field(default_factory=SourceOptions)
    kind = "torchvision"
    needs_staging = True

    def stage(self, folder: Path, on_progress: OnProgress | None = None) -> Source:
        made_from = {"dataset": self.name, "root": self.root, "splits": self.options.splits, "files": self._files()}
        made_from["torchvision"] = installed_version()
        said = stamped(folder, made_from)
        if said is None:
            said = self._unpack(folder, on_progress or (lambda *_: None))
            stamp(folder, made_from, said["tars"], classes=said["classes"])
        tars = [Listed(path=str(folder / name), under=name, split=split) for split, name in said["tars"]]
        return ShardsSource(where=self.where, tars=tars, classes=said["classes"])

    def tasks(self) -> Sequence[IndexTask]:
        raise RuntimeError("stage() comes first")

    def finish(self, parts: Sequence[Part]) -> Found:
        raise RuntimeError("stage() comes first")

    def _files(self) -> list[list[Any]]:
        """What the root's own files are now; another download is another source."""
        found = sorted(path for path in Path(self.root).rglob("*") if path.is_file())[:1000]
        return [[str(path), path.stat().st_size, path.stat().st_mtime_ns] for path in found]

    def _unpack(self, folder: Path, on_progress: OnProgress) -> dict[str, Any]:
        writer = StagingWriter(folder)
        classes: Classes | None = None
        for split, dataset in datasets_of(self.name, self.root, self.options):
            writer.write(split, samples_of(dataset, split, self.where, on_progress))
            names = getattr(dataset, "classes", None)
            if isinstance(names, list | tuple) and classes is None:
                classes = [{"name": name if isinstance(name, str) else ", ".join(name)} for name in names]
        return {"tars": writer.tars, "classes": classes}


UNSAFE = frozenset({"LSUN", "LSUNClass"})
"""The only ones that unpickle a file without checking it first: CIFAR's must have the published checksums, the others
use `weights_only` or formats that run nothing (torchvision 0.29)."""


def installed_version() -> str:
    try:
        return version("torchvision")
    except PackageNotFoundError as error:
        raise UsageError("torchvision is not installed: pip install 'feedline[train]'") from error


def datasets_of(name: str, root: str, options: SourceOptions) -> list[tuple[str, Any]]:
    """(split, dataset). Raises UsageError when there is no such dataset, or its files are not in the root."""
    from torchvision import datasets

    name, _, form = name.partition("/")
    kind = getattr(datasets, name, None)
    if not inspect.isclass(kind) or not hasattr(kind, "__getitem__"):
        near = difflib.get_close_matches(name, [n for n in dir(datasets) if n[0].isupper()], 1)
        raise UsageError(f"torchvision has no dataset {name!r}{f': did you mean {near[0]}?' if near else ''}")
    if name in UNSAFE:
        raise UsageError(
            f"torchvision's {name} unpickles whatever lies in its cache: export it to an image folder first"
        )
    known = arguments_of(kind)
    common: dict[str, Any] = ({"root": root} if "root" in known else {}) | (
        {"download": False} if "download" in known else {}
    )
    if form or {"train", "split"} <= known:
        common["split"] = checked_form(kind, form)
    wanted = [split for split in SPLIT_WORDS if options.wants(split)]
    if "train" in known:
        return [(split, made(kind, common | {"train": split == "train"}, root)) for split in wanted]
    if "split" in known:
        return [(split, made_by_word(kind, common, split, root)) for split in wanted]
    return [("train", made(kind, common, root))]


def arguments_of(kind: Any) -> set[str]:
    """By name; where it passes others on, those of the classes it is made from too."""
    said = inspect.signature(kind).parameters
    passes_on = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in said.values())
    others = [inspect.signature(base.__init__).parameters for base in kind.__mro__[1:]] if passes_on else []
    return {name for parameters in (said, *others) for name in parameters}


def checked_form(kind: Any, form: str) -> str:
    forms = tuple(getattr(kind, "splits", ())) if {"train", "split"} <= arguments_of(kind) else ()
    if not forms:
        raise UsageError(f"torchvision's {kind.__name__} has no forms: say torchvision:{kind.__name__}:ROOT")
    if form not in forms:
        raise UsageError(f"torchvision's {kind.__name__} has the forms {', '.join(forms)}: say which, like "
                         f"torchvision:{kind.__name__}/{forms[0]}:ROOT")  # fmt: skip
    return form


def made(kind: Any, arguments: dict[str, Any], root: str) -> Any:
    try:
        return kind(**arguments)
    except (RuntimeError, OSError, ModuleNotFoundError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UsageError(
            f"torchvision's {kind.__name__} cannot be opened in {root} ({first}): download it there first, with "
            f"torchvision.datasets.{kind.__name__}({root!r}, download=True)"
        ) from error


def made_by_word(kind: Any, common: dict[str, Any], split: str, root: str) -> Any:
    for word in SPLIT_WORDS[split]:
        with suppress(ValueError):  # how torchvision says that it has no such split
            return made(kind, common | {"split": word}, root)
    raise UsageError(f"torchvision's {kind.__name__} has no {split} split: say --source-option splits=…")


def samples_of(dataset: Any, split: str, where: str, on_progress: OnProgress) -> Iterator[Unpacked]:
    """Raises SourceError for an item that is not (image, label)."""
    for row in range(len(dataset)):
        item = dataset[row]
        if not isinstance(item, tuple) or len(item) != 2 or not hasattr(item[1], "__index__"):
            raise SourceError(f"{where} does not give (image, integer label): it is no classification dataset")
        yield Unpacked(split=split, key=f"{row:08d}", data=png(item[0], where), label=str(int(item[1])))
        on_progress(row + 1, len(dataset))


def png(image: Any, where: str) -> bytes:
    from PIL import Image

    if not isinstance(image, Image.Image):
        if not (hasattr(image, "ndim") and image.ndim == 3 and image.shape[0] in (1, 3)):
            raise SourceError(f"{where} gives {type(image).__name__}, not pictures")
        from torchvision.transforms.functional import to_pil_image

        image = to_pil_image(image)
    buffer = io.BytesIO()
    image.save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def recognise(path: str, options: SourceOptions) -> Source | None:
    if not path.startswith(PREFIX):
        return None
    name, _, root = path.removeprefix(PREFIX).partition(":")
    if not name or not root:
        raise UsageError(f"{path!r} is not torchvision:NAME:ROOT, like torchvision:CIFAR10:/data")
    if not Path(root).is_dir():
        raise UsageError(f"{root} does not exist: {path!r} must end with the folder the dataset was downloaded to")
    return TorchvisionSource(where=path, name=name, root=str(Path(root)), options=options)
