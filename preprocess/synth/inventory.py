"""What a synthetic ImageNet consists of: classes, files, sizes, oddities, devkit. Pure; the same seed, the same set.

As in ILSVRC 2012: labels are ranks of sorted wnids; the devkit's IDs are in another order, and synsets with children
follow the leaves; classes differ in size; a file's number within its class is neither consecutive nor of fixed width;
tars are not in alphabetical order.
"""

import gzip
import io
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, Literal, NamedTuple

import numpy as np

from feedline.pipeline.base.errors import UsageError
from feedline.pipeline.base.settings import check_limits, limited
from feedline.pipeline.base.text import count_of
from feedline.preprocess.sources.staging import add
from feedline.preprocess.synth.mat_writer import write_mat
from feedline.preprocess.synth.pictures import CLASSES_MAX, ODDITIES, TYPICAL_LONG_SIDE_PX, Picture

Layout = Literal["ilsvrc", "folder"]
VERSION = 2
"""Of the pictures and their arrangement: another one makes another set from the same seed."""
SAMPLES_PER_ODDITY = 10_000
WNID_RANGE = (1_440_764, 15_075_142)
QUALITIES = (
    "common great spotted red-backed striped crested horned golden northern lesser ringed banded grey mountain river "
    "giant dwarf desert speckled black-footed silver arctic pied marbled tufted"
)
THINGS = (
    "tench finch terrapin gecko newt owl heron plover setter terrier spaniel lynx weevil beetle mantis urchin conch "
    "crane kite hornbill cricket wallaby otter badger marmot gibbon tapir ibex gazelle bagel teapot lantern trolley "
    "barrow spindle loom anvil bellows churn dulcimer sextant thimble abacus gondola"
)
LEAVES_PER_PARENT = 4
SYNSET_FIELDS = "ILSVRC2012_ID WNID words gloss num_children children wordnet_height num_train_images"
DEVKIT_FOLDER = "ILSVRC2012_devkit_t12"


@dataclass(frozen=True, kw_only=True)
class SynthConfig:
    """Everything that decides the bytes, and where they go."""

    out: str
    """Folder that becomes the dataset; must not exist, be empty, or hold this very set."""
    images: int = limited(2_000)
    """Images in all, train and val together."""
    classes: int = 10
    """Classes."""
    layout: Layout = "ilsvrc"
    """ilsvrc: the three archives as published; folder: train/ and val/ of class folders."""
    oddities: bool = False
    """Also CMYK, PNG named .JPEG, grey, EXIF, truncated and empty files."""
    seed: int = limited(0, 0, 1 << 62)
    """The same seed gives the same bytes."""
    val_fraction: float = 0.1
    """Share of the images that are val, equally many of each class."""
    long_side_px: int = limited(TYPICAL_LONG_SIDE_PX, 16, 4096)
    """Pixels of the usual long side; ImageNet's is 500."""
    num_workers: int | None = limited(None)
    """Processes that draw (one per core); never changes the result."""

    def __post_init__(self) -> None:
        check_limits(self)
        classes = count_of(self.classes, "class")
        least = max(2 * self.classes, self.classes + len(ODDITIES) if self.oddities else 0)
        for holds, complaint in (
            (self.layout in ("ilsvrc", "folder"), f"layout {self.layout!r} is neither ilsvrc nor folder"),
            (1 <= self.classes <= CLASSES_MAX, f"{self.classes} classes: 1 to {CLASSES_MAX} can be told apart"),
            (0 < self.val_fraction < 1, f"val fraction {self.val_fraction} is not between 0 and 1"),
            (self.images >= least, f"{count_of(self.images, 'image')} for {classes}: give at least {least:,}"),
        ):
            if not holds:
                raise UsageError(complaint)

    def settings(self) -> dict[str, Any]:
        """What decides the bytes, for the stamp."""
        names = ("images", "classes", "layout", "oddities", "seed", "val_fraction", "long_side_px")
        return {"version": VERSION} | {name: getattr(self, name) for name in names}


class Synset(NamedTuple):
    wnid: str
    words: str
    ident: int
    """The devkit's ILSVRC2012_ID."""


class SynthFile(NamedTuple):
    name: str
    picture: Picture


class SynthPlan:
    """All files, in the order in which they are written."""

    def __init__(self, config: SynthConfig) -> None:
        self.config = config
        rng = np.random.default_rng([config.seed, 7])
        self.synsets = draw_synsets(rng, config.classes)
        """By label."""
        wanted = max(1, round(config.images * config.val_fraction / config.classes))
        self.val_per_class = min(wanted, config.images // config.classes - 1)
        self.train_sizes = class_sizes(rng, config.images - self.val_per_class * config.classes, config.classes)
        self.class_order: list[int] = rng.permutation(config.classes).tolist()
        """Of the train tar."""
        self._odd: dict[tuple[str, int], str] = {}
        if config.oddities:
            train = sum(self.train_sizes)
            count = len(ODDITIES) * -(-train // SAMPLES_PER_ODDITY)
            places = rng.choice(train, min(count, train), replace=False).tolist()
            self._odd = {("train", place): ODDITIES[n % len(ODDITIES)] for n, place in enumerate(places)}
            self._odd["val", int(rng.integers(self.val_per_class * config.classes))] = "cmyk"

    def train(self) -> Iterator[tuple[int, list[SynthFile]]]:
        """(label, its files), in the order of the tar; made as they are asked for."""
        for label in self.class_order:
            rng = np.random.default_rng([self.config.seed, 9, label])
            count, before = self.train_sizes[label], sum(self.train_sizes[:label])
            numbers = sorted(rng.choice(20 * count + 10, count, replace=False).tolist())
            files = [
                self._file(f"{self.synsets[label].wnid}_{number}.JPEG", "train", label, place, before + place)
                for place, number in enumerate(numbers)
            ]
            yield label, [files[place] for place in rng.permutation(count).tolist()]

    @cached_property
    def val(self) -> list[SynthFile]:
        """In the order of the tar, which is not alphabetical."""
        labels = np.repeat(np.arange(self.config.classes), self.val_per_class)
        rng = np.random.default_rng([self.config.seed, 8])
        rng.shuffle(labels)
        places = {label: iter(range(self.val_per_class)) for label in range(self.config.classes)}
        files = [
            self._file(f"ILSVRC2012_val_{rank + 1:08d}.JPEG", "val", label, next(places[label]), rank)
            for rank, label in enumerate(labels.tolist())
        ]
        return [files[place] for place in rng.permutation(len(files)).tolist()]

    def files(self) -> Iterator[SynthFile]:
        """Train, then val."""
        return chain((file for _, files in self.train() for file in files), self.val)

    def _file(self, name: str, split: str, label: int, number: int, place: int) -> SynthFile:
        odd = self._odd.get((split, place), "")
        return SynthFile(name, Picture(seed=self.config.seed, split=split, label=label, number=number, oddity=odd))

    def devkit(self) -> bytes:
        """ILSVRC2012_devkit_t12.tar.gz, the same bytes each time."""
        truth = [self.synsets[file.picture.label].ident for file in sorted(self.val, key=lambda file: file.name)]
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as tar:
            for name, data in (
                ("readme.txt", b"A synthetic ImageNet made by `feedline synth`, in the layout of ILSVRC 2012.\n"),
                ("data/meta.mat", self._meta_mat()),
                ("data/ILSVRC2012_validation_ground_truth.txt", "".join(f"{ident}\n" for ident in truth).encode()),
            ):
                add(tar, f"{DEVKIT_FOLDER}/{name}", data)
        return gzip.compress(packed.getvalue(), mtime=0)

    def _meta_mat(self) -> bytes:
        leaves = sorted(zip(self.synsets, self.train_sizes, strict=True), key=lambda pair: pair[0].ident)
        rows: list[tuple[int | str | list[int], ...]] = [
            (s.ident, s.wnid, s.words, f"a synthetic {s.words.partition(',')[0]}", 0, [], 0, size)
            for s, size in leaves
        ]
        for number, start in enumerate(range(0, len(leaves), LEAVES_PER_PARENT)):
            children = [synset.ident for synset, _ in leaves[start : start + LEAVES_PER_PARENT]]
            # A wnid below and between those of the leaves: whoever forgets `num_children` gets other labels.
            wnid = f"n{int(self.synsets[number % len(self.synsets)].wnid[1:]) - 1 - number:08d}"
            ident, kind = len(leaves) + 1 + number, f"kind {number + 1}"
            rows.append((ident, wnid, kind, "a synset above others", len(children), children, 1, 0))
        fields = SYNSET_FIELDS.split()
        text = b"MATLAB 5.0 MAT-file, Platform: feedline synth, Created on: Thu Jan  1 00:00:00 1970"
        return write_mat(text, "synsets", [dict(zip(fields, row, strict=True)) for row in rows])


def draw_synsets(rng: np.random.Generator, classes: int) -> list[Synset]:
    """Words are like WordNet's: a name, then another for the same thing."""
    numbers = sorted(rng.choice(WNID_RANGE[1] - WNID_RANGE[0], classes, replace=False).tolist())
    idents = (rng.permutation(classes) + 1).tolist()
    pairs = [(quality, thing) for quality in QUALITIES.split() for thing in THINGS.split()]
    synsets: list[Synset] = []
    names = rng.choice(len(pairs), classes, replace=classes > len(pairs)).tolist()
    for number, ident, name in zip(numbers, idents, names, strict=True):
        quality, thing = pairs[name]
        words = f"{quality} {thing}, {thing.title()} {quality.replace('-', '')}us"
        synsets.append(Synset(f"n{number + WNID_RANGE[0]:08d}", words, ident))
    return synsets


def class_sizes(rng: np.random.Generator, images: int, classes: int) -> list[int]:
    """Most classes have the full number, the others down to 56 % of it (732 of 1300), at least one each."""
    weights = np.where(rng.random(classes) < 0.7, 1.0, rng.uniform(732 / 1300, 1.0, classes))
    exact = (images - classes) * weights / weights.sum()
    sizes = 1 + np.floor(exact).astype(int)
    short = images - int(sizes.sum())
    sizes[np.argsort(-(exact - np.floor(exact)), kind="stable")[:short]] += 1
    return sizes.tolist()
