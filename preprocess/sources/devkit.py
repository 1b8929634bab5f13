"""ILSVRC's development kit and ground-truth files: which ID is which wnid, and which val image shows what.

Three numberings meet here: the devkit's `ILSVRC2012_ID` (1 to 1000, in no order of wnids), the wnid, and the label,
which is the rank of the wnid among the sorted wnids of the leaf synsets. The ground truth has one ID per val image by
*alphabetical* file name, whatever the order in the tar.
"""

import csv
import itertools
import re
import tarfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from feedline.pipeline.base.errors import SourceError, UsageError, first_line
from feedline.pipeline.base.files import refused_as
from feedline.pipeline.base.text import count_of
from feedline.preprocess.sources.base import Classes, without_extension
from feedline.preprocess.sources.labels import class_entry, class_id, label_by_name
from feedline.preprocess.sources.matfile import read_mat
from feedline.preprocess.sources.reading import open_remote

META = "meta.mat"
TRUTH = "ILSVRC2012_validation_ground_truth.txt"
NAMES = re.compile(r"(image|img|file|photo|picture)?[ _]?(name|id|path|file|image|img|photo|picture)", re.IGNORECASE)
LABELS = re.compile(r"(label|class|category|target|breed|species)[ _]?(name|id|index|idx|label)?", re.IGNORECASE)
"""What tables call their columns."""
KAGGLE = re.compile(r"(n\d{8})( +(n\d{8}|\d+))+")
"""A wnid and the box in which it is to be seen, for each that was drawn."""


@dataclass(frozen=True, kw_only=True)
class Devkit:
    where: str
    classes: Classes
    """By label, that is, by sorted wnid."""
    label_of_id: Mapping[int, int]
    truth: bytes | None
    """The ground-truth file, when the devkit has it."""


def read_devkit(where: str, options: Mapping[str, Any]) -> Devkit:
    """From the archive as downloaded, here or at an address, or its folder. Raises UsageError or SourceError."""
    path, files = Path(where), dict[str, bytes]()
    if "://" not in where and not path.exists():
        raise UsageError(f"devkit {where} does not exist")
    if path.is_dir():
        files = {file.name: file.read_bytes() for name in (META, TRUTH) for file in sorted(path.rglob(name))[:1]}
    else:
        try:
            with (
                open_remote(where, options) if "://" in where else path.open("rb") as opened,
                tarfile.open(fileobj=opened) as archive,
            ):
                for member in archive:
                    name = member.name.rpartition("/")[2]
                    if name in (META, TRUTH) and member.isfile() and (file := archive.extractfile(member)):
                        files[name] = file.read()
        except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
            why = first_line(error).rstrip(":")
            raise SourceError(f"devkit {where} cannot be read ({why}): download it again") from error
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
    try:
        synsets = read_mat(meta)["synsets"]
        rows = [
            (int(synset["ILSVRC2012_ID"][0]), str(synset["WNID"]), str(synset["words"]))
            for synset in synsets
            if not any(synset["num_children"])
        ]
    except (ValueError, LookupError, TypeError) as error:
        raise SourceError(f"{where}: {META} cannot be read ({error}): download the devkit again") from error
    if not rows:
        raise SourceError(f"{where}: {META} lists no synset without children: download the devkit again")
    return rows


# --- ground truth -------------------------------------------------------------------------------------


Row = tuple[int, list[str], str]
"""Line number, cells, and what is between them."""


@dataclass(frozen=True, kw_only=True)
class Truth:
    """What each val image shows, in the words of the truth file."""

    where: str
    rows: list[tuple[str, str]]
    """(image name without extension, label word); names are "" when the file is by alphabetical order."""

    @classmethod
    def read(cls, path: str) -> "Truth":
        with refused_as(UsageError, f"ground truth {path} cannot be read"):
            return cls.parse(Path(path).read_bytes(), path)

    @classmethod
    def parse(cls, data: bytes, where: str) -> "Truth":
        """`LABEL` a line; or `FILE LABEL`, `FILE,LABEL` (also Kaggle's LOC_val_solution.csv), with tabs too, with or
        without a header, which says where a table of more columns has its labels. Raises SourceError."""
        try:
            lines = [line.strip(" \r") for line in data.decode("utf-8-sig").splitlines()]
        except UnicodeDecodeError as error:
            raise SourceError(f"{where} is not a text file ({error.reason} at byte {error.start})") from error
        table = [(number, *cls._cells(line)) for number, line in enumerate(lines, 1) if line.strip()]
        columns, table = cls._columns(table, where)
        rows: list[tuple[str, str]] = []
        said: dict[str, str] = {}
        for number, cells, joint in table:
            name, label = cells[columns[0]], joint.join(cells[columns[1] :][: columns[2]]).strip()
            seen = KAGGLE.fullmatch(label)
            label = seen[1] if seen and joint == "," else label
            if not label or (joint and not name):
                raise SourceError(
                    f"{where}: line {number} lacks its {'label' if name else 'image'}: mend or remove it"
                )
            rows.append((name := bare(name), label))
            if name and said.setdefault(name, label) != label:
                raise SourceError(f"{where} says {said[name]!r} and {label!r} of image {name!r}: leave one of them")
        if len({bool(name) for name, _ in rows}) > 1:
            raise SourceError(f"{where}: some lines name their image and some do not")
        return cls(where=where, rows=rows)

    @staticmethod
    def _cells(line: str) -> tuple[list[str], str]:
        """And what is between them in a table; "" where it is none."""
        for joint in (",", "\t"):
            if joint in line:
                cells = next(csv.reader([line], delimiter=joint, skipinitialspace=True))
                return [cell.strip() for cell in cells], joint
        return (line.rsplit(None, 1) if len(line.split()) > 1 else ["", line]), ""

    @staticmethod
    def _columns(table: list[Row], where: str) -> tuple[tuple[int, int, int | None], list[Row]]:
        """Where the image is, where the label begins, of how many cells (None: the rest, in which it has a joint of
        its own); and the rows without their header. Raises SourceError where that cannot be told."""
        usual = (0, 1, None)
        if not table:
            return usual, table
        _, first, joint = table[0]
        named = [at for at, cell in enumerate(first) if LABELS.fullmatch(cell)]
        plain = "." not in first[0] and "/" not in first[0]  # no file's name
        if not (NAMES.fullmatch(first[0]) and (joint or named)) and not (plain and named and (first[0] or joint)):
            wide = {len(cells) for _, cells, _ in table}
            if joint and len(table) > 1 and min(wide) > 2 and len(wide) == 1:
                what = f"{where} has {min(wide)} columns, and no header says which of them is the label"
                raise SourceError(f"{what}: leave two, image and label (quote a label that has commas)")
            return usual, table
        if len(first) == 2:
            return ((1, 0, 1) if named == [0] else usual), table[1:]
        if len(named) != 1:
            names, which = ", ".join(first), "none of them is" if not named else "several may be"
            raise SourceError(f"{where}: of its columns ({names}) {which} the label: leave two, image and label")
        odd = next((number for number, cells, _ in table if len(cells) != len(first)), None)
        if odd:
            raise SourceError(f"{where}: line {odd} has not the {len(first)} columns of its header: mend it")
        names = [at for at, cell in enumerate(first) if at != named[0] and NAMES.fullmatch(cell)]
        image = min(names, key=lambda at: first[at].lower() in ("id", "index"), default=0)
        return (image, named[0], 1), table[1:]

    def labels(self, names: Sequence[str], classes: Classes, label_of_id: Mapping[int, int]) -> list[str]:
        """The images' classes by `class_id`: from wnids, class names, devkit IDs (by order), or label numbers (by
        name). Raises SourceError when an image has none.
        """
        names = [bare(name) for name in names]
        by_name = any(name for name, _ in self.rows)
        twice = next((name for name, following in itertools.pairwise(sorted(names)) if name == following), None)
        if twice is not None:
            raise SourceError(f"val image {twice!r} is there twice, so that its truth cannot be told")
        word_of = dict(self.rows) if by_name else self._by_rank(names)
        without = next((name for name in sorted(names) if name not in word_of), None)
        if without is not None:
            raise SourceError(f"val image {without!r} has no truth in {self.where}: add its line or remove it")
        known = label_by_name(classes)
        numbers = {label: label for label in range(len(classes))} if by_name else label_of_id
        labels: list[str] = []
        for word in (word_of[name] for name in names):
            is_number = word.isascii() and word.isdigit()
            label = known.get(word, numbers.get(int(word)) if is_number else None)
            if label is None and is_number and not numbers:
                raise SourceError(f"{self.where} has numbers only: give the devkit that says which classes they are")
            if label is None:
                span = f"; numbers go from {min(numbers)} to {max(numbers)}" if numbers else ""
                raise SourceError(f"{self.where} says {word!r}, which is none of the {len(classes)} classes{span}")
            labels.append(class_id(classes[label]))
        return labels

    def _by_rank(self, names: Sequence[str]) -> dict[str, str]:
        count = len(names) - len(self.rows)
        if count:
            more = "without truth" if count > 0 else "missing"
            official = {f"ILSVRC2012_val_{number:08d}" for number in range(1, len(self.rows) + 1)}
            odd = sorted({*names} - official if count > 0 else official - {*names})
            first = f" (first: {odd[0]})" if len(odd) == abs(count) else ""
            raise SourceError(
                f"{count_of(len(names), 'val image')}, but {self.where} has {count_of(len(self.rows), 'line')}: "
                f"{abs(count):,} {more}{first}"
            )
        return {name: word for name, (_, word) in zip(sorted(names), self.rows, strict=True)}


def bare(name: str) -> str:
    return without_extension(name.rpartition("/")[2])
