"""ILSVRC's development kit and ground-truth files: which ID is which wnid, and which val image shows what.

Three numberings meet here: the devkit's `ILSVRC2012_ID` (1 to 1000, in no order of wnids), the wnid, and the label,
which is the rank of the wnid among the sorted wnids of the leaf synsets. The ground truth has one ID per val image by
*alphabetical* file name, whatever the order in the tar.
"""

import io
import re
import tarfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from feedline.pipeline.base.errors import UsageError
from feedline.preprocess.sources.base import Classes, SourceError, without_extension

META = "meta.mat"
TRUTH = "ILSVRC2012_validation_ground_truth.txt"
KAGGLE_HEADER = "ImageId,"
WNID = re.compile(r"n\d{8}")


@dataclass(frozen=True, kw_only=True)
class Devkit:
    where: str
    classes: Classes
    """By label, that is, by sorted wnid."""
    label_of_id: Mapping[int, int]
    truth: list[str] | None
    """The ground-truth file's lines, when the devkit has it."""


def read_devkit(path: Path) -> Devkit:
    """From the archive as downloaded, or its folder. Raises SourceError."""
    files = read_folder(path) if path.is_dir() else read_archive(path)
    if META not in files:
        raise SourceError(f"{path} has no data/{META}: give the devkit as downloaded (ILSVRC2012_devkit_t12.tar.gz)")
    synsets = leaf_synsets(files[META], str(path))
    ordered = sorted(synsets, key=lambda synset: synset[1])
    label_of_wnid = {wnid: label for label, (_, wnid, _) in enumerate(ordered)}
    if len(label_of_wnid) != len(synsets):
        raise SourceError(f"{path}: two synsets of {META} have the same wnid")
    truth = files.get(TRUTH)
    return Devkit(
        where=str(path),
        classes=[class_entry(wnid, words) for _, wnid, words in ordered],
        label_of_id={ident: label_of_wnid[wnid] for ident, wnid, _ in synsets},
        truth=None if truth is None else text_lines(truth, f"{path}: {TRUTH}"),
    )


def class_entry(wnid: str, words: str = "") -> dict[str, Any]:
    names = [name.strip() for name in words.split(",") if name.strip()]
    entry: dict[str, Any] = {"name": names[0] if names else wnid}
    if WNID.fullmatch(wnid):
        entry["wnid"] = wnid
    return entry | ({"names": names} if names else {})


def class_id(entry: Mapping[str, Any]) -> str:
    """What the source's folders and archives call the class."""
    return str(entry.get("wnid", entry["name"]))


def read_folder(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for name in (META, TRUTH) for file in sorted(path.rglob(name))[:1]}


def read_archive(path: Path) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                name = member.name.rpartition("/")[2]
                if name in (META, TRUTH) and member.isfile():
                    file = archive.extractfile(member)
                    found[name] = file.read() if file else b""
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0].rstrip(":")
        raise SourceError(f"devkit {path} cannot be read ({first}): download it again") from error
    return found


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


def text_lines(data: bytes, where: str) -> list[str]:
    try:
        lines = data.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise SourceError(f"{where} is not a text file ({error.reason} at byte {error.start})") from error
    return [line.strip() for line in lines if line.strip()]


def read_truth(path: str) -> list[str]:
    try:
        return text_lines(Path(path).read_bytes(), path)
    except OSError as error:
        raise UsageError(f"ground truth {path} cannot be read: {error.strerror}") from error


# --- ground truth -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Truth:
    """What each val image shows, in the words of the truth file."""

    where: str
    by_name: dict[str, str] | None
    """Image name without extension -> label word; None when the file is by alphabetical order."""
    in_order: list[str]

    @classmethod
    def parse(cls, lines: Sequence[str], where: str) -> "Truth":
        """`LABEL` a line; or `FILE LABEL`, `FILE,LABEL` (also Kaggle's LOC_val_solution.csv)."""
        rows = [split_row(line) for line in lines if not line.startswith(KAGGLE_HEADER)]
        named = [row for row in rows if row[0]]
        if named and len(named) < len(rows):
            raise SourceError(f"{where}: some lines name their image and some do not")
        by_name = {without_extension(name.rpartition("/")[2]): label for name, label in named} if named else None
        return cls(where=where, by_name=by_name, in_order=[label for _, label in rows])

    def words(self, names: Sequence[str]) -> list[str]:
        """The label word of each image. Raises SourceError when an image has none."""
        bare = [without_extension(name.rpartition("/")[2]) for name in names]
        if self.by_name is not None:
            without = next((name for name in sorted(bare) if name not in self.by_name), None)
            if without is not None:
                raise SourceError(f"val image {without!r} has no truth in {self.where}: add its line or remove it")
            return [self.by_name[name] for name in bare]
        self._check_count(bare)
        rank = {name: place for place, name in enumerate(sorted(bare))}
        return [self.in_order[rank[name]] for name in bare]

    def _check_count(self, bare: Sequence[str]) -> None:
        distinct = set(bare)
        if len(distinct) < len(bare):
            twice = next(name for place, name in enumerate(bare) if name in bare[:place])
            raise SourceError(f"val image {twice!r} is there twice, so that its truth cannot be told")
        if len(bare) != len(self.in_order):
            more = "val images without truth" if len(bare) > len(self.in_order) else "val images are missing"
            raise SourceError(
                f"{len(bare)} val images, but {self.where} has {len(self.in_order)} lines: "
                f"{abs(len(bare) - len(self.in_order))} {more}{self._example(distinct)}"
            )

    def _example(self, names: set[str]) -> str:
        """The first image that official names show to be missing or too many."""
        official = {f"ILSVRC2012_val_{number:08d}" for number in range(1, len(self.in_order) + 1)}
        odd = sorted(names - official) if len(names) > len(official) else sorted(official - names)
        plain = len(names ^ official) == abs(len(names) - len(official))
        return f" (first: {odd[0]})" if plain and odd else ""


def split_row(line: str) -> tuple[str, str]:
    """(image name or "", label word)."""
    if "," in line:
        name, _, rest = line.partition(",")
        words = rest.split()
        return name.strip(), words[0] if words else ""
    words = line.rsplit(None, 1)
    return (words[0], words[1]) if len(words) == 2 else ("", line)


def labels_of_words(
    words: Sequence[str], truth: Truth, classes: Classes, label_of_id: Mapping[int, int] | None
) -> npt.NDArray[np.int32]:
    """Labels from wnids, class names, devkit IDs (by order), or label numbers (by name). Raises SourceError."""
    known: dict[str, int] = {}
    for label, entry in enumerate(classes):
        for word in (entry.get("wnid"), entry["name"]):
            known.setdefault(str(word), label)
    numbers = label_of_id if truth.by_name is None else {label: label for label in range(len(classes))}
    labels = [label_of_word(word, known, numbers) for word in words]
    wrong = next((place for place, label in enumerate(labels) if label is None), None)
    if wrong is not None:
        if numbers is None and words[wrong].isdigit():
            raise SourceError(f"{truth.where} has numbers only: give the devkit that says which classes they are")
        span = f"; numbers go from {min(numbers)} to {max(numbers)}" if numbers else ""
        raise SourceError(f"{truth.where} says {words[wrong]!r}, which is none of the {len(classes)} classes{span}")
    return np.array(labels, np.int32)


def label_of_word(word: str, known: Mapping[str, int], numbers: Mapping[int, int] | None) -> int | None:
    if word in known:
        return known[word]
    return numbers.get(int(word)) if numbers is not None and word.isascii() and word.isdigit() else None
