"""Any map-style torchvision classification dataset by name: `torchvision:CIFAR10:ROOT`, from files already there.

torchvision is imported here, in the driver, and only while unpacking: every picture becomes a PNG in a staging tar.
"""

import difflib
import importlib.util
import inspect
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from feedline.pipeline.base.errors import SourceError, UsageError, first_line
from feedline.preprocess.sources.base import TORCHVISION, Classes, OnProgress, Source, SourceOptions
from feedline.preprocess.sources.staging import Unpacked, identity, staged
from feedline.preprocess.sources.webdataset import ShardsSource

SPLIT_WORDS = {
    "train": ("train", "trainval", "train-standard"),
    "val": ("val", "valid", "validation", "test"),
    "test": ("test",),
}
"""Our split -> what datasets with a `split` argument may call it; the first that exists is taken, once."""
REFUSED = {
    "EMNIST": "is six datasets in one",
    # The only ones that unpickle a file without checking it first: CIFAR's must have the published checksums, the
    # others use `weights_only` or formats that run nothing (torchvision 0.29).
    "LSUN": "unpickles whatever lies in its cache",
    "LSUNClass": "unpickles whatever lies in its cache",
}


@dataclass(kw_only=True)
class TorchvisionSource(Source):
    where: str
    name: str
    root: str
    options: SourceOptions
    kind = "torchvision"

    def stage(self, folder: Path, on_progress: OnProgress = lambda _: None) -> Source:
        files = sorted(path for path in Path(self.root).rglob("*") if path.is_file())[:1000]
        made_from = {
            "dataset": self.name,
            "root": self.root,
            "splits": self.options.splits,
            "files": [identity(str(path), {}) for path in files],
        }
        classes: Classes = []
        tars, classes = staged(folder, made_from, self._samples(classes, on_progress), classes)
        return ShardsSource(where=self.where, tars=tars, options=SourceOptions(), classes=classes or None)

    def _samples(self, classes: Classes, on_progress: OnProgress) -> Iterator[Unpacked]:
        """Every picture as a PNG; fills `classes`. Raises SourceError for an item that is not (image, label)."""
        if importlib.util.find_spec("torchvision") is None:
            raise UsageError("torchvision is not installed: pip install 'feedline[train]'")
        from PIL import Image
        from torchvision.transforms.functional import to_pil_image

        for split, dataset in datasets_of(self.name, self.root, self.options):
            names = getattr(dataset, "classes", None)
            if isinstance(names, list | tuple) and not classes:
                classes += [{"name": name if isinstance(name, str) else ", ".join(name)} for name in names]
            for row in range(len(dataset)):
                try:
                    item = dataset[row]
                except Exception as error:  # Pillow's parsers raise anything on damaged files
                    what = f"item {row} of {split} cannot be read ({first_line(error)})"
                    raise SourceError(f"{self.where}: {what}: mend it") from error
                if not isinstance(item, tuple) or len(item) != 2 or not hasattr(item[1], "__index__"):
                    raise SourceError(
                        f"{self.where} does not give (image, integer label): it is no classification dataset"
                    )
                try:
                    image = item[0] if isinstance(item[0], Image.Image) else to_pil_image(item[0])
                except (TypeError, ValueError) as error:
                    raise SourceError(f"{self.where} gives {type(item[0]).__name__}, not pictures") from error
                buffer = io.BytesIO()
                image.save(buffer, "PNG", compress_level=1)
                yield Unpacked(split, f"{row:08d}", buffer.getvalue(), str(int(item[1])))
                on_progress(row + 1)


def datasets_of(name: str, root: str, options: SourceOptions) -> list[tuple[str, Any]]:
    """(split, dataset). Raises UsageError when there is no such dataset, or its files are not in the root."""
    from torchvision import datasets

    kind = getattr(datasets, name, None)
    if not inspect.isclass(kind) or not hasattr(kind, "__getitem__"):
        near = difflib.get_close_matches(name, [n for n in dir(datasets) if n[0].isupper()], 1)
        raise UsageError(f"torchvision has no dataset {name!r}{f': did you mean {near[0]}?' if near else ''}")
    if name in REFUSED:
        raise UsageError(f"torchvision's {name} {REFUSED[name]}: export it to an image folder first")
    known = inspect.signature(kind).parameters
    found: list[tuple[str, Any]] = []
    taken: set[str] = set()
    for split in [split for split in SPLIT_WORDS if options.wants(split)]:
        if split == "test" and options.splits is None:  # it may lack labels, or not be there
            continue
        choices = [{"split": word} for word in SPLIT_WORDS[split] if word not in taken] if "split" in known else [{}]
        if "train" in known:
            choices = [{"train": split == "train"}] if split != "test" else []
        elif "split" not in known and split != "train":
            continue
        if (one := opened(kind, root, choices)) is not None:
            taken |= {*one[0].values()}
            found.append((split, one[1]))
        else:
            raise UsageError(f"torchvision's {name} has no {split} split: say --source-option splits=…")
    return found


def opened(kind: Any, root: str, choices: list[dict[str, Any]]) -> tuple[dict[str, Any], Any] | None:
    """The first of these choices that it has, and its dataset."""
    known, name = inspect.signature(kind).parameters, kind.__name__
    common = {key: value for key, value in {"root": root, "download": False}.items() if key in known}
    for choice in choices:
        try:
            return choice, kind(**common, **choice)
        except ValueError:  # how torchvision says that it has no such split
            continue
        except (RuntimeError, TypeError, OSError, ModuleNotFoundError) as error:
            raise UsageError(
                f"torchvision's {name} cannot be opened in {root} ({first_line(error)}): download it there first, "
                f"with torchvision.datasets.{name}({root!r}, download=True)"
            ) from error
    return None


def recognise(path: str, options: SourceOptions) -> Source | None:
    if not path.startswith(TORCHVISION):
        return None
    name, _, root = path.removeprefix(TORCHVISION).partition(":")
    if not name or not root:
        raise UsageError(f"{path!r} is not torchvision:NAME:ROOT, like torchvision:CIFAR10:/data")
    if not Path(root).is_dir():
        raise UsageError(f"{root} does not exist: {path!r} must end with the folder the dataset was downloaded to")
    return TorchvisionSource(where=path, name=name, root=str(Path(root)), options=options)
