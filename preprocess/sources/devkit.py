"""ILSVRC's development kit and ground-truth files: which ID is which wnid, and which val image shows what.

Three numberings meet here: the devkit's `ILSVRC2012_ID` (1 to 1000, in no order of wnids), the wnid, and the label,
which is the rank of the wnid among the sorted wnids of the leaf synsets. The ground truth has one ID per val image by
*alphabetical* file name, whatever the order in the tar.
"""

import io
import tarfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from feedline.pipeline.base.errors import UsageError
from feedline.preprocess.sources.base import Classes, SourceError, without_extension
from feedline.preprocess.sources.labels import class_entry

META = "meta.mat"
TRUTH = "ILSVRC2012_validation_ground_truth.txt"
KAGGLE_HEADER = "ImageId,"


@dataclass(frozen=True, kw_only=True)
class Devkit:
    where: str
    classes: Classes
    """By label, that is, by sorted wnid."""
    label_of_id: Mapping[int, int]
    truth: bytes | None
    """The ground-truth file, when the devkit has it."""


def read_devkit(path: Path, where: str) -> Devkit:
    """From the archive as downloaded, or its folder. Raises SourceError."""
    files: dict[str, bytes] = {}
    if path.is_dir():
        files = {file.name: file.read_bytes() for name in (META, TRUTH) for file in sorted(path.rglob(name))[:1]}
    else:
        try:
            with tarfile.open(path) as archive:
                for member in archive:
                    name = member.name.rpartition("/")[2]
                    if name in (META, TRUTH) and member.isfile() and (file := archive.extractfile(member)):
                        files[name] = file.read()
        except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
            first = (str(error).splitlines() or [type(error).__name__])[0].rstrip(":")
            raise SourceError(f"devkit {where} cannot be read ({first}): download it again") from error
    if META not in files:
        raise SourceError(f"{where} has no data/{META}: give the devkit as downloaded (ILSVRC2012_devkit_t12.tar.gz)")
    synsets = leaf_synsets(files[META], where)
    label_of_wnid = {wnid: label for label, wnid in enumerate(sorted(wnid for _, wnid, _ in synsets))}
    if len(label_of_wnid) != len(synsets):
        raise SourceError(f"{where}: two synsets of {META} have the same wnid")
    return Devkit(
        where=where,
        classes=[class_entry(wnid, words) for _, wnid, words in sorted(synsets, key=lambda synset: synset[1])],
        label_of_id={ident: label_of_wnid[wnid] for ident, wnid, _ in synsets},
        truth=files.get(TRUTH),
    )


def leaf_synsets(meta: bytes, where: str) -> list[tuple[int, str, str]]:
    """(ID, wnid, words) of the synsets without children."""
    from scipy.io import loadmat

    try:
        synsets = np.atleast_1d(loadmat(io.BytesIO(meta), squeeze_me=True)["synsets"])
        leaves = [synset for synset in synsets if int(synset["num_children"]) == 0]
        found = [(int(leaf["ILSVRC2012_ID"]), str(leaf["WNID"]), str(leaf["words"])) for leaf in leaves]
    except Exception as error:  # scipy raises anything at all on a damaged file
        raise SourceError(
            f"{where}: {META} cannot be read ({type(error).__name__}): download the devkit again"
        ) from error
    if not found:
        raise SourceError(f"{where}: {META} lists no synset without children: download the devkit again")
    return found


# --- ground truth -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Truth:
    """What each val image shows, in the words of the truth file."""

    where: str
    by_name: dict[str, str] | None
    """Image name without extension -> label word; None when the file is by alphabetical order."""
    in_order: list[str]

    @classmethod
    def read(cls, path: str) -> "Truth":
        try:
            return cls.parse(Path(path).read_bytes(), path)
        except OSError as error:
            raise UsageError(f"ground truth {path} cannot be read: {error.strerror}") from error

    @classmethod
    def parse(cls, data: bytes, where: str) -> "Truth":
        """`LABEL` a line; or `FILE LABEL`, `FILE,LABEL` (also Kaggle's LOC_val_solution.csv). Raises SourceError."""
        try:
            lines = [line.strip() for line in data.decode("utf-8-sig").splitlines()]
        except UnicodeDecodeError as error:
            raise SourceError(f"{where} is not a text file ({error.reason} at byte {error.start})") from error
        rows = [split_row(line) for line in lines if line and not line.startswith(KAGGLE_HEADER)]
        named = {without_extension(name.rpartition("/")[2]): label for name, label in rows if name}
        if named and not all(name for name, _ in rows):
            raise SourceError(f"{where}: some lines name their image and some do not")
        return cls(where=where, by_name=named or None, in_order=[label for _, label in rows])

    def labels(
        self, names: Sequence[str], classes: Classes, label_of_id: Mapping[int, int] | None
    ) -> npt.NDArray[np.int32]:
        """Of the images: from wnids, class names, devkit IDs (by order), or label numbers (by name).

        Raises SourceError when an image has none.
        """
        words = self._words([without_extension(name.rpartition("/")[2]) for name in names])
        numbers = label_of_id if self.by_name is None else {label: label for label in range(len(classes))}
        known: dict[str, int] = {}
        for label, entry in enumerate(classes):
            for word in (entry.get("wnid"), entry["name"]):
                known.setdefault(str(word), label)
        labels: list[int] = []
        for word in words:
            is_number = word.isascii() and word.isdigit()
            label = known.get(word, (numbers or {}).get(int(word)) if is_number else None)
            if label is None:
                if numbers is None and is_number:
                    raise SourceError(
                        f"{self.where} has numbers only: give the devkit that says which classes they are"
                    )
                span = f"; numbers go from {min(numbers)} to {max(numbers)}" if numbers else ""
                raise SourceError(f"{self.where} says {word!r}, which is none of the {len(classes)} classes{span}")
            labels.append(label)
        return np.array(labels, np.int32)

    def _words(self, names: Sequence[str]) -> list[str]:
        """The label word of each image."""
        if self.by_name is not None:
            without = sorted(name for name in names if name not in self.by_name)
            if without:
                raise SourceError(f"val image {without[0]!r} has no truth in {self.where}: add its line or remove it")
            return [self.by_name[name] for name in names]
        rank = {name: place for place, name in enumerate(sorted(names))}
        if len(rank) < len(names):
            twice = next(name for place, name in enumerate(names) if name in names[:place])
            raise SourceError(f"val image {twice!r} is there twice, so that its truth cannot be told")
        if len(names) != len(self.in_order):
            count = len(names) - len(self.in_order)
            more = "val images without truth" if count > 0 else "val images are missing"
            official = {f"ILSVRC2012_val_{number:08d}" for number in range(1, len(self.in_order) + 1)}
            odd = sorted(rank.keys() - official if count > 0 else official - rank.keys())
            first = f" (first: {odd[0]})" if len(odd) == abs(count) else ""
            raise SourceError(
                f"{len(names)} val images, but {self.where} has {len(self.in_order)} lines: "
                f"{abs(count)} {more}{first}"
            )
        return [self.in_order[rank[name]] for name in names]


def split_row(line: str) -> tuple[str, str]:
    """(image name or "", label word)."""
    if "," in line:
        name, _, rest = line.partition(",")
        words = rest.split()
        return name.strip(), words[0] if words else ""
    words = line.rsplit(None, 1)
    return (words[0], words[1]) if len(words) == 2 else ("", line)
