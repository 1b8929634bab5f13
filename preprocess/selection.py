"""Which samples take part, and with which label and split: pure steps between a source and the plan."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from feedline.pipeline.base.errors import UsageError
from feedline.pipeline.base.text import printable
from feedline.pipeline.format.shard_tar import safe_key
from feedline.preprocess.plan import Columns, keyed_ranks

Classes = list[dict[str, Any]]


def with_safe_keys(columns: Columns) -> Columns:
    """Keys that WebDataset readers cut where we mean, and that leave no folder; later duplicates are troubles."""
    keys = [safe_key(key) for key in columns.keys]
    troubles = dict(columns.troubles)
    seen: set[tuple[int, str]] = set()
    for row, here in enumerate(zip(columns.splits_N.tolist(), keys, strict=True)):
        if here in seen:
            troubles.setdefault(row, "duplicate key")
        seen.add(here)
    return replace(columns, keys=keys, troubles=troubles)


def with_safe_names(classes: Classes) -> Classes:
    """Class names that a terminal and a manifest take, whatever the folders are called."""
    return [entry | {"name": printable(str(entry["name"]))} for entry in classes]


def with_checked_labels(columns: Columns, classes: int) -> Columns:
    """A label that no class has is a trouble, not an error: the sample goes to quarantine."""
    wrong = np.flatnonzero((columns.labels_N < 0) | (columns.labels_N >= classes))
    troubles = dict(columns.troubles)
    for row in wrong.tolist():
        troubles.setdefault(row, "no label" if columns.labels_N[row] < 0 else "label out of range")
    return replace(columns, troubles=troubles)


def in_class_order(columns: Columns, classes: Classes, order: Sequence[str]) -> tuple[Columns, Classes]:
    """Labels renumbered as the user lists the class names. Raises UsageError for unknown or missing names."""
    names = [str(entry["name"]) for entry in classes]
    by_name = {name: label for label, name in enumerate(names)}
    by_name |= {str(entry["wnid"]): label for label, entry in enumerate(classes) if "wnid" in entry}
    unknown = [name for name in order if name not in by_name]
    if unknown:
        raise UsageError(f"class order names {unknown[0]!r}, which the source does not have")
    listed = [by_name[name] for name in order]
    missing = sorted(set(range(len(classes))) - set(listed))
    if missing or len(set(listed)) != len(listed):
        what = f"leaves out {names[missing[0]]!r}" if missing else "names a class twice"
        raise UsageError(f"class order {what}: it must list each class once")
    return relabelled(columns, classes, listed)


def seeded_subset(columns: Columns, classes: Classes, count: int, seed: int) -> tuple[Columns, Classes]:
    """`count` classes chosen by the seed; their labels keep the order they had. Other samples are left out."""
    if count > len(classes):
        raise UsageError(f"{count} classes asked for, the source has {len(classes)}")
    ranks = keyed_ranks([str(entry.get("wnid", entry["name"])) for entry in classes], seed, "classes")
    chosen = sorted(np.argsort(ranks, kind="stable")[:count].tolist())
    kept = np.flatnonzero(np.isin(columns.labels_N, chosen))
    return relabelled(rows_of(columns, kept), classes, chosen)


def relabelled(columns: Columns, classes: Classes, listed: Sequence[int]) -> tuple[Columns, Classes]:
    """New label n is old label listed[n]; labels outside stay outside."""
    new_of_old = np.full(len(classes), len(listed), np.int32)
    new_of_old[list(listed)] = np.arange(len(listed), dtype=np.int32)
    labels_N = columns.labels_N.copy()
    known = (labels_N >= 0) & (labels_N < len(classes))
    labels_N[known] = new_of_old[labels_N[known]]
    return replace(columns, labels_N=labels_N), [classes[old] for old in listed]


def rows_of(columns: Columns, rows_N: npt.NDArray[np.int64]) -> Columns:
    listed = rows_N.tolist()
    return replace(
        columns,
        keys=[columns.keys[row] for row in listed],
        labels_N=columns.labels_N[rows_N],
        splits_N=columns.splits_N[rows_N],
        path_N=columns.path_N[rows_N],
        offsets_N=columns.offsets_N[rows_N],
        lengths_N=columns.lengths_N[rows_N],
        crc32_N=None if columns.crc32_N is None else columns.crc32_N[rows_N],
        troubles={n: columns.troubles[row] for n, row in enumerate(listed) if row in columns.troubles},
    )


def with_val_split(columns: Columns, fraction: float, seed: int) -> Columns:
    """Moves a share of each class from train to a new val, by keyed hash. Raises UsageError if there is a val, or
    when a split would be empty. A test split stays as it is.
    """
    if "val" in columns.split_names and bool(np.any(columns.splits_N == columns.split_names.index("val"))):
        raise UsageError("the source has a val split already: leave --val-fraction out")
    if "train" not in columns.split_names:
        raise UsageError("the source has no train split to take a val from: leave --val-fraction out")
    train = np.flatnonzero(columns.splits_N == columns.split_names.index("train"))
    ranks_N = keyed_ranks([columns.keys[row] for row in train.tolist()], seed, "val")
    order = train[np.lexsort((ranks_N, columns.labels_N[train]))]
    ordered = columns.labels_N[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    sizes = np.diff(np.append(starts, len(ordered)))
    place_in_class = np.arange(len(ordered)) - np.repeat(starts, sizes)
    taken = place_in_class < np.repeat(np.rint(sizes * fraction), sizes)
    if not taken.any() or taken.all():
        raise UsageError(f"val fraction {fraction:g} would leave {'train' if taken.any() else 'val'} empty")
    names = [*(name for name in columns.split_names if name != "val"), "val"]
    splits_N = np.array([names.index(name) for name in columns.split_names], np.int8)[columns.splits_N]
    splits_N[order[taken]] = names.index("val")
    return replace(columns, splits_N=splits_N, split_names=names)
