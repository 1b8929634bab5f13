"""Which samples take part, and the exact assignment of them to shard positions. Pure: the same descriptors and
settings, the same plan.

Samples are ordered by a keyed hash of their key: a seeded global shuffle that does not depend on how the source
happens to be listed, at about a microsecond a sample. Then cut into shards that differ by at most one sample.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from feedline.pipeline.base.errors import UsageError
from feedline.pipeline.base.text import count_of, printable
from feedline.pipeline.format.shard_tar import balanced_sizes
from feedline.preprocess.config import PrepareConfig
from feedline.preprocess.picture import Output
from feedline.preprocess.sources.base import Classes, Columns
from feedline.preprocess.sources.labels import class_id, label_by_name
from feedline.preprocess.sources.reading import Stat, Where

MIN_SHARDS = 64
MIN_SAMPLES_PER_SHARD = 32
HEADERS_BYTES = 2048  # two members' headers, the label and the padding of one sample
TYPICAL_RATIO = 4 / 3  # of a photograph's sides
READERS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # of a job of up to 8 ranks × 8 workers


@dataclass(frozen=True, kw_only=True)
class ShardTask(Columns):
    """The descriptors of one shard, in the order they are written."""

    split: str
    shard: int
    mended: dict[int, str] = field(default_factory=dict[int, str])
    """Position -> file in quarantine to read instead (a sample to be tried again)."""
    stats_P2: npt.NDArray[np.int64] | None = None
    """Size and time (ns) of each path when the plan was made, -1 where that is not known; None watches nothing."""
    stamp: str = ""
    """`Plan.stamp` of it."""

    def where(self) -> list[Where]:
        rows = zip(self.path_N.tolist(), self.offsets_N.tolist(), self.lengths_N.tolist(), self.keys, strict=True)
        return [Where(self.paths[path], offset, length, key) for path, offset, length, key in rows]

    def stats(self) -> dict[str, Stat]:
        rows = [] if self.stats_P2 is None else self.stats_P2.tolist()
        pairs = zip(self.paths, rows, strict=bool(rows))
        return {path: (size, mtime_ns) for path, (size, mtime_ns) in pairs if size >= 0}


@dataclass(frozen=True, kw_only=True)
class SplitPlan:
    split: str
    rows_N: npt.NDArray[np.int64]
    """Rows of the descriptors, in the order they are written."""
    starts: list[int]
    """Where each shard begins in `rows_N`, and the end of the last."""
    reason: str
    """Why this number of shards."""

    @property
    def shards(self) -> int:
        return len(self.starts) - 1


@dataclass(frozen=True, kw_only=True)
class Plan:
    hash: str
    columns: Columns
    splits: list[SplitPlan]
    stats_P2: npt.NDArray[np.int64] | None = None
    """Size and time of the columns' paths, which must stay so; None watches nothing."""
    unpacked_P: npt.NDArray[np.bool_] | None = None
    """Which paths were unpacked for this job."""
    unpacked_anew: bool = False
    """By each run of it: their times tell nothing."""

    def stamp(self, split: SplitPlan, shard: int) -> str:
        """Of the sizes and times of the files that a shard is made of: another one, and what was made of them is not
        what would be made now."""
        paths_N = self.columns.path_N[split.rows_N[split.starts[shard] : split.starts[shard + 1]]]
        return self._stamp(paths_N, without=self.unpacked_anew)

    def source_stamp(self) -> str:
        """Of all files that were not unpacked."""
        return self._stamp(np.unique(self.columns.path_N), without=True)

    def _stamp(self, paths_N: npt.NDArray[Any], *, without: bool) -> str:
        if self.stats_P2 is None:
            return ""
        stats_N2 = self.stats_P2[paths_N]
        if without and self.unpacked_P is not None:
            stats_N2 = stats_N2[~self.unpacked_P[paths_N]]
        return hashlib.sha256(stats_N2.tobytes()).hexdigest()[:16]

    def task(self, split: SplitPlan, shard: int, mended: dict[int, str] | None = None) -> ShardTask:
        """The descriptors of one shard, with only the paths it needs."""
        rows = rows_of(self.columns, split.rows_N[split.starts[shard] : split.starts[shard + 1]])
        used, path_N = np.unique(rows.path_N, return_inverse=True)
        paths = [rows.paths[path] for path in used.tolist()]
        return ShardTask(
            **vars(replace(rows, paths=paths, path_N=path_N.astype(np.int32))),
            split=split.split,
            shard=shard,
            mended=mended or {},
            stats_P2=None if self.stats_P2 is None else self.stats_P2[used],
            stamp=self.stamp(split, shard),
        )


def make_plan(
    columns: Columns,
    config: PrepareConfig,
    classes: Sequence[dict[str, Any]],
    fingerprint: str,
    *,
    stats_P2: npt.NDArray[np.int64] | None = None,
    staging: str = "",
    staging_stays: bool = True,
) -> Plan:
    """`staging` is the folder of what was unpacked, "" for none; `staging_stays`: for the next run of the job, too.
    Raises UsageError when there are no samples.
    """
    if not len(columns):
        raise UsageError(f"{config.source} has no samples")
    ranks_N = keyed_ranks(columns.keys, config.seed, "shuffle")
    splits = [
        plan_split(columns, number, name, ranks_N, config)
        for number, name in enumerate(columns.split_names)
        if bool(np.any(columns.splits_N == number))
    ]
    identity = plan_hash(columns, splits, config, classes, fingerprint, staging)
    return Plan(
        hash=identity,
        columns=columns,
        splits=splits,
        stats_P2=stats_P2,
        unpacked_P=np.array([is_staged(path, staging) for path in columns.paths], bool),
        unpacked_anew=not staging_stays,
    )


def plan_split(
    columns: Columns, number: int, name: str, ranks_N: npt.NDArray[np.uint64], config: PrepareConfig
) -> SplitPlan:
    members = np.flatnonzero(columns.splits_N == number)
    rows_N = members[np.argsort(ranks_N[members], kind="stable")]
    ordered = ranks_N[rows_N]
    if bool(np.any(ordered[1:] == ordered[:-1])):
        # Equal ranks (duplicate keys; a collision once in 10^7 ImageNets) are ordered by key, then as listed.
        listed = sorted(rows_N.tolist(), key=lambda row: (int(ranks_N[row]), columns.keys[row], row))
        rows_N = np.array(listed, np.int64)
    mean_bytes = float(np.maximum(columns.lengths_N[members], 0).mean())
    count, reason = choose_shards(len(rows_N), estimated_bytes(config.outputs[0], mean_bytes), config)
    starts = np.concatenate([[0], np.cumsum(balanced_sizes(len(rows_N), count))])
    return SplitPlan(split=name, rows_N=rows_N, starts=starts.tolist(), reason=reason)


def keyed_ranks(keys: Sequence[str], seed: int, purpose: str) -> npt.NDArray[np.uint64]:
    """64 bits per key that look random, from (seed, purpose, key) only."""
    keyed = hashlib.blake2b(key=f"feedline {purpose} {seed}".encode()[:64], digest_size=8)

    def digest(key: str) -> bytes:
        one = keyed.copy()
        one.update(key.encode("utf-8", "surrogateescape"))
        return one.digest()

    return np.frombuffer(b"".join(map(digest, keys)), ">u8").astype(np.uint64)


def estimated_bytes(output: Output, mean_bytes_in: float) -> float:
    """About how long one sample becomes in its shard."""
    side = output.size_px
    square = output.resize in ("square", "stretch", "crop")
    pixels = side * side * (1.0 if square else TYPICAL_RATIO) if output.resizes else 500 * 375
    return output.form.estimate_bytes(pixels, output.quality, mean_bytes_in) + HEADERS_BYTES


def choose_shards(samples: int, bytes_per_sample: float, config: PrepareConfig) -> tuple[int, str]:
    """The number of shards and the reason, in words. Never depends on the machine."""
    if config.shards is not None:
        if config.shards > samples:
            asked = f"{count_of(config.shards, 'shard')} for {count_of(samples, 'sample')}"
            raise UsageError(f"{asked}: at most one shard per sample")
        return config.shards, "as asked"
    by_size = samples * bytes_per_sample / config.shard_bytes
    by_readers = min(MIN_SHARDS, samples // MIN_SAMPLES_PER_SHARD)
    # 1, 2, 3, 4, 6, 8, 12, 16, 24 …: numbers that many rank × worker counts divide.
    counts = sorted({n for power in range(40) for n in (1 << power, 3 << power) if n <= samples})
    # Never under the readers' need; by size, the nearest in ratio.
    fitting = [count for count in counts if count >= by_readers] if by_readers >= MIN_SHARDS else counts
    count = min(fitting, key=lambda count: abs(np.log(count / max(by_size, by_readers, 1))))
    readers = ", ".join(str(n) for n in READERS if count % n == 0)
    each = count_of(round(samples / count), "sample")
    size = f"about {samples * bytes_per_sample / count / 2**20:.3g} MiB and {each} each"
    return count, f"{size}; divides evenly over {readers} reader{'s' * (readers != '1')} (ranks x workers)"


def plan_hash(
    columns: Columns,
    splits: Sequence[SplitPlan],
    config: PrepareConfig,
    classes: Sequence[dict[str, Any]],
    fingerprint: str,
    staging: str,
) -> str:
    """SHA-256 of everything that decides the prepared bytes, and of nothing else (not where the source lies, unless
    KEY.json says it)."""
    settings = {
        "outputs": [output.settings() for output in config.outputs],
        "seed": config.seed,
        "max_pixels": config.max_pixels,
        "metadata": config.metadata,
        "classes": list(classes),
        "encoder": fingerprint,
    }
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    for split in splits:
        rows = rows_of(columns, split.rows_N)
        troubles = {rows.keys[row]: trouble for row, trouble in rows.troubles.items()}
        digest.update(json.dumps([split.split, split.starts, troubles]).encode())
        digest.update("\0".join(rows.keys).encode("utf-8", "surrogateescape"))
        for column in (rows.labels_N, rows.lengths_N):
            digest.update(column.astype(np.int64).tobytes())
        if config.metadata:
            sources, offsets_N = origins(rows, config.source, staging)
            digest.update("\0".join(sources).encode("utf-8", "surrogateescape") + offsets_N.tobytes())
    return digest.hexdigest()


def origins(columns: Columns, source: str, staging: str) -> tuple[list[str], npt.NDArray[np.int64]]:
    """Where people and KEY.json are told that each sample came from, and its offset there. What was unpacked to
    `staging` is from the source at -1: its key says which."""
    staged_P = np.array([is_staged(path, staging) for path in columns.paths], bool)
    shown = [source if staged else path for path, staged in zip(columns.paths, staged_P.tolist(), strict=True)]
    offsets_N = np.where(staged_P[columns.path_N], -1, columns.offsets_N).astype(np.int64)
    return [shown[path] for path in columns.path_N.tolist()], offsets_N


def is_staged(path: str, staging: str) -> bool:
    """Whether it lies in the folder of what was unpacked; "" is none."""
    return bool(staging) and path.startswith(f"{staging}/")


def selected(columns: Columns, classes: Classes, config: PrepareConfig) -> tuple[Columns, Classes]:
    """The user's choices applied: class order, subset, val split; then keys and labels checked."""
    columns = checked(columns, len(classes))
    if config.class_order is not None:
        columns, classes = in_class_order(columns, classes, config.class_order)
    if config.classes is not None:
        columns, classes = seeded_subset(columns, classes, config.classes, config.seed)
    if config.val_fraction is not None:
        columns = with_val_split(columns, config.val_fraction, config.seed)
    return columns, with_safe_names(classes)


def checked(columns: Columns, classes: int) -> Columns:
    """A later duplicate of a key and a label that no class has are troubles, not errors: the sample goes to
    quarantine."""
    troubles = dict(columns.troubles)
    seen: set[tuple[int, str]] = set()
    for row, here in enumerate(zip(columns.splits_N.tolist(), columns.keys, strict=True)):
        if here in seen:
            troubles.setdefault(row, "duplicate key")
        seen.add(here)
    for row in np.flatnonzero(columns.labels_N < 0).tolist():
        troubles.setdefault(row, "no label")
    troubles |= dict.fromkeys(np.flatnonzero(columns.labels_N >= classes).tolist(), "label out of range")
    return replace(columns, troubles=troubles)


def with_safe_names(classes: Classes) -> Classes:
    """Class names that a terminal and a manifest take, whatever the folders are called."""
    return [entry | {"name": printable(str(entry["name"]))} for entry in classes]


def in_class_order(columns: Columns, classes: Classes, order: Sequence[str]) -> tuple[Columns, Classes]:
    """Labels renumbered as the user lists the class names. Raises UsageError for unknown or missing names."""
    by_name = label_by_name(classes)
    unknown = [name for name in order if name not in by_name]
    if unknown:
        raise UsageError(f"class order names {unknown[0]!r}, which the source does not have")
    listed = [by_name[name] for name in order]
    missing = sorted(set(range(len(classes))) - set(listed))
    if missing or len(set(listed)) != len(listed):
        what = f"leaves out {str(classes[missing[0]]['name'])!r}" if missing else "names a class twice"
        raise UsageError(f"class order {what}: it must list each class once")
    return relabelled(columns, classes, listed)


def seeded_subset(columns: Columns, classes: Classes, count: int, seed: int) -> tuple[Columns, Classes]:
    """`count` classes chosen by the seed; their labels keep the order they had. Other samples are left out."""
    if count > len(classes):
        raise UsageError(f"{count_of(count, 'class')} asked for, the source has {len(classes):,}")
    ranks = keyed_ranks([class_id(entry) for entry in classes], seed, "classes")
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
    rows = rows_N.tolist()
    arrays = {name: value[rows_N] for name, value in vars(columns).items() if isinstance(value, np.ndarray)}
    troubles = {n: columns.troubles[row] for n, row in enumerate(rows) if row in columns.troubles}
    return replace(columns, keys=[columns.keys[row] for row in rows], troubles=troubles, **arrays)


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
    classes = np.split(order, np.flatnonzero(np.diff(columns.labels_N[order])) + 1)
    taken = np.concatenate([rows[: round(len(rows) * fraction)] for rows in classes])
    if len(taken) in (0, len(train)):
        raise UsageError(f"val fraction {fraction:g} would leave {'train' if len(taken) else 'val'} empty")
    names = [*(name for name in columns.split_names if name != "val"), "val"]
    splits_N = np.array([names.index(name) for name in columns.split_names], np.int8)[columns.splits_N]
    splits_N[taken] = names.index("val")
    return replace(columns, splits_N=splits_N, split_names=names)
