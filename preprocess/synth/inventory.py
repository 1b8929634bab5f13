"""What a synthetic ImageNet consists of: classes, files, sizes and oddities. Pure; the same seed, the same set.

As in ILSVRC 2012: labels are ranks of sorted wnids; the devkit's IDs are in another order; classes differ in size; a
file's number within its class is neither consecutive nor of fixed width; tars are not in alphabetical order.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, cycle, islice
from typing import Any, Literal

import numpy as np

from feedline.pipeline.base.errors import UsageError
from feedline.preprocess.synth.pictures import CLASSES_MAX, TYPICAL_LONG_SIDE_PX, Picture

Layout = Literal["ilsvrc", "folder"]
VERSION = 1
MOST_IMAGES = 10**9
"""Of the pictures and their arrangement: another one makes another set from the same seed."""
ODDITIES = ("cmyk", "png", "grey", "orientation", "bad exif", "truncated", "empty")
SAMPLES_PER_ODDITY = 10_000
WNID_RANGE = (1_440_764, 15_075_142)
QUALITY_WORDS = (
    "common great spotted red-backed striped crested horned golden northern lesser ringed banded grey mountain river "
    "giant dwarf desert speckled black-footed silver arctic pied marbled tufted"
)
THING_WORDS = (
    "tench finch terrapin gecko newt owl heron plover setter terrier spaniel lynx weevil beetle mantis urchin conch "
    "crane kite hornbill cricket wallaby otter badger marmot gibbon tapir ibex gazelle bagel teapot lantern trolley "
    "barrow spindle loom anvil bellows churn dulcimer sextant thimble abacus gondola"
)
QUALITIES = QUALITY_WORDS.split()
THINGS = THING_WORDS.split()


@dataclass(frozen=True, kw_only=True)
class SynthConfig:
    """Everything that decides the bytes, and where they go."""

    out: str
    """Folder that becomes the dataset; must not exist, be empty, or hold this very set."""
    images: int = 2_000
    """Images in all, train and val together."""
    classes: int = 10
    """Classes."""
    layout: Layout = "ilsvrc"
    """ilsvrc: the three archives as published; folder: train/ and val/ of class folders."""
    oddities: bool = False
    """Also CMYK, PNG named .JPEG, grey, EXIF, truncated and empty files."""
    seed: int = 0
    """The same seed gives the same bytes."""
    val_fraction: float = 0.1
    """Share of the images that are val, equally many of each class."""
    long_side_px: int = TYPICAL_LONG_SIDE_PX
    """Pixels of the usual long side; ImageNet's is 500."""
    num_workers: int | None = None
    """Processes that draw (one per core); never changes the result."""

    def __post_init__(self) -> None:
        check(self.layout in ("ilsvrc", "folder"), f"layout {self.layout!r} is neither ilsvrc nor folder")
        check(1 <= self.classes <= CLASSES_MAX, f"{self.classes} classes: 1 to {CLASSES_MAX} can be told apart")
        check(0 < self.val_fraction < 1, f"val fraction {self.val_fraction} is not between 0 and 1")
        check(16 <= self.long_side_px <= 4096, f"long side of {self.long_side_px} px is not within 16 to 4096")
        check(self.seed >= 0, f"seed {self.seed} is negative")
        check(self.num_workers is None or self.num_workers >= 0, f"{self.num_workers} workers: give 0 or more")
        least = max(2 * self.classes, self.classes + len(ODDITIES) if self.oddities else 0)
        check(self.images >= least, f"{self.images} images: {self.classes} classes need at least {least}")
        check(self.images <= MOST_IMAGES, f"{self.images} images: at most {MOST_IMAGES:,}")

    def settings(self) -> dict[str, Any]:
        """What decides the bytes, for the stamp."""
        names = ("images", "classes", "layout", "oddities", "seed", "val_fraction", "long_side_px")
        return {"version": VERSION} | {name: getattr(self, name) for name in names}


def check(holds: bool, complaint: str) -> None:
    if not holds:
        raise UsageError(complaint)


@dataclass(frozen=True, kw_only=True)
class Synset:
    wnid: str
    words: str
    ident: int
    """The devkit's ILSVRC2012_ID."""


@dataclass(frozen=True, kw_only=True)
class SynthFile:
    name: str
    picture: Picture


class SynthPlan:
    """All files, in the order in which they are written."""

    def __init__(self, config: SynthConfig) -> None:
        self.config = config
        rng = np.random.default_rng([config.seed, 7])
        self.synsets = draw_synsets(rng, config.classes)
        """By label."""
        self.val_per_class = max(1, round(config.images * config.val_fraction / config.classes))
        self.val_per_class = min(self.val_per_class, config.images // config.classes - 1)
        self.train_sizes = class_sizes(rng, config.images - self.val_per_class * config.classes, config.classes)
        self.class_order: list[int] = rng.permutation(config.classes).tolist()
        """Of the train tar."""
        self._odd = self._draw_oddities(rng)

    def __len__(self) -> int:
        return self.config.images

    def train(self) -> Iterator[tuple[int, list[SynthFile]]]:
        """(label, its files), in the order of the tar; made as they are asked for."""
        return ((label, self._train_class(label)) for label in self.class_order)

    @cached_property
    def val(self) -> list[SynthFile]:
        """In the order of the tar, which is not alphabetical."""
        labels = np.repeat(np.arange(self.config.classes), self.val_per_class)
        rng = np.random.default_rng([self.config.seed, 8])
        rng.shuffle(labels)
        places = {label: iter(range(self.val_per_class)) for label in range(self.config.classes)}
        files = [
            SynthFile(
                name=f"ILSVRC2012_val_{rank + 1:08d}.JPEG",
                picture=self._picture("val", label, next(places[label]), rank),
            )
            for rank, label in enumerate(labels.tolist())
        ]
        return [files[place] for place in rng.permutation(len(files)).tolist()]

    def files(self) -> Iterator[SynthFile]:
        """Train, then val."""
        return chain((file for _, files in self.train() for file in files), self.val)

    def _train_class(self, label: int) -> list[SynthFile]:
        rng = np.random.default_rng([self.config.seed, 9, label])
        count = self.train_sizes[label]
        start = sum(self.train_sizes[:label])
        numbers = sorted(rng.choice(20 * count + 10, count, replace=False).tolist())
        files = [
            SynthFile(
                name=f"{self.synsets[label].wnid}_{number}.JPEG",
                picture=self._picture("train", label, place, start + place),
            )
            for place, number in enumerate(numbers)
        ]
        return [files[place] for place in rng.permutation(count).tolist()]

    def _picture(self, split: str, label: int, number: int, place: int) -> Picture:
        return Picture(
            seed=self.config.seed, split=split, label=label, number=number, oddity=self._odd.get((split, place), "")
        )

    def _draw_oddities(self, rng: np.random.Generator) -> dict[tuple[str, int], str]:
        if not self.config.oddities:
            return {}
        train = sum(self.train_sizes)
        count = len(ODDITIES) * -(-train // SAMPLES_PER_ODDITY)
        places = rng.choice(train, min(count, train), replace=False).tolist()
        odd = {("train", place): kind for place, kind in zip(places, islice(cycle(ODDITIES), count), strict=False)}
        return odd | {("val", int(rng.integers(self.val_per_class * self.config.classes))): "cmyk"}


def draw_synsets(rng: np.random.Generator, classes: int) -> list[Synset]:
    numbers = sorted(rng.choice(WNID_RANGE[1] - WNID_RANGE[0], classes, replace=False).tolist())
    idents = (rng.permutation(classes) + 1).tolist()
    names = rng.choice(len(QUALITIES) * len(THINGS), classes, replace=classes > len(QUALITIES) * len(THINGS)).tolist()
    return [
        Synset(wnid=f"n{number + WNID_RANGE[0]:08d}", words=words(name), ident=ident)
        for number, ident, name in zip(numbers, idents, names, strict=True)
    ]


def words(name: int) -> str:
    """Like WordNet's: a name, then another for the same thing."""
    quality, thing = divmod(name, len(THINGS))
    return f"{QUALITIES[quality]} {THINGS[thing]}, {THINGS[thing].title()} {QUALITIES[quality].replace('-', '')}us"


def class_sizes(rng: np.random.Generator, images: int, classes: int) -> list[int]:
    """Most classes have the full number, the others down to 56 % of it (732 of 1300), at least one each."""
    weights = np.where(rng.random(classes) < 0.7, 1.0, rng.uniform(732 / 1300, 1.0, classes))
    exact = (images - classes) * weights / weights.sum()
    sizes = 1 + np.floor(exact).astype(int)
    short = images - int(sizes.sum())
    sizes[np.argsort(-(exact - np.floor(exact)), kind="stable")[:short]] += 1
    return sizes.tolist()


def identifiers_by_name(plan: SynthPlan) -> Sequence[int]:
    """The ground truth's lines: the ID of each val image, by alphabetical file name."""
    ordered = sorted(plan.val, key=lambda file: file.name)
    return [plan.synsets[file.picture.label].ident for file in ordered]
