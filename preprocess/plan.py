"""The exact assignment of descriptors to shard positions. Pure: the same descriptors and settings, the same plan.

Samples are ordered by a keyed hash of their key: a seeded global shuffle that does not depend on how the source
happens to be listed, at about a microsecond a sample. Then cut into shards that differ by at most one sample.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from feedline.pipeline.base.errors import UsageError
from feedline.pipeline.format.shard_tar import balanced_sizes
from feedline.preprocess.config import PrepareConfig
from feedline.preprocess.picture import Output
from feedline.preprocess.write_shard import ShardTask, is_staged

MIN_SHARDS = 64
MIN_SAMPLES_PER_SHARD = 32
HEADERS_BYTES = 2048  # two members' headers, the label and the padding of one sample
TYPICAL_RATIO = 4 / 3  # of a photograph's sides


@dataclass(frozen=True, kw_only=True)
class Columns:
    """All descriptors as columns; a million of them are some 100 MB."""

    keys: list[str]
    labels_N: npt.NDArray[np.int32]
    splits_N: npt.NDArray[np.int8]
    """Number of the split in `split_names`."""
    split_names: list[str]
    paths: list[str]
    path_N: npt.NDArray[np.int32]
    offsets_N: npt.NDArray[np.int64]
    lengths_N: npt.NDArray[np.int64]
    troubles: dict[int, str]
    """Row -> why it must go to quarantine."""
    crc32_N: npt.NDArray[np.uint32] | None = None
    """Of the samples' bytes, where the source knows them."""

    def __len__(self) -> int:
        return len(self.keys)


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

    def planned(self, shard: int) -> int:
        return self.starts[shard + 1] - self.starts[shard]


@dataclass(frozen=True, kw_only=True)
class Plan:
    hash: str
    columns: Columns
    splits: list[SplitPlan]
    stats_P2: npt.NDArray[np.int64] | None = None
    """Size and time of the columns' paths, which must stay so; None watches nothing."""

    def task(self, split: SplitPlan, shard: int, mended: dict[int, str] | None = None) -> ShardTask:
        """The descriptors of one shard, with only the paths it needs."""
        rows = split.rows_N[split.starts[shard] : split.starts[shard + 1]]
        used, path_N = np.unique(self.columns.path_N[rows], return_inverse=True)
        listed = rows.tolist()
        troubles = self.columns.troubles
        return ShardTask(
            split=split.split,
            shard=shard,
            keys=[self.columns.keys[row] for row in listed],
            labels_N=self.columns.labels_N[rows],
            paths=[self.columns.paths[path] for path in used.tolist()],
            path_N=path_N.astype(np.int32),
            offsets_N=self.columns.offsets_N[rows],
            lengths_N=self.columns.lengths_N[rows],
            troubles={position: troubles[row] for position, row in enumerate(listed) if row in troubles},
            mended=mended or {},
            crc32_N=None if self.columns.crc32_N is None else self.columns.crc32_N[rows],
            stats_P2=None if self.stats_P2 is None else self.stats_P2[used],
        )


def make_plan(
    columns: Columns,
    config: PrepareConfig,
    classes: Sequence[dict[str, Any]],
    fingerprint: str,
    *,
    stats_P2: npt.NDArray[np.int64] | None = None,
    staging: str = "",
) -> Plan:
    """`staging` is the folder of what was unpacked, "" for none. Raises UsageError when there are no samples."""
    if not len(columns):
        raise UsageError(f"{config.source} has no samples")
    ranks_N = keyed_ranks(columns.keys, config.seed, "shuffle")
    splits = [
        plan_split(columns, number, name, ranks_N, config)
        for number, name in enumerate(columns.split_names)
        if bool(np.any(columns.splits_N == number))
    ]
    identity = plan_hash(columns, splits, config, classes, fingerprint, staging)
    return Plan(hash=identity, columns=columns, splits=splits, stats_P2=stats_P2)


def plan_split(
    columns: Columns, number: int, name: str, ranks_N: npt.NDArray[np.uint64], config: PrepareConfig
) -> SplitPlan:
    members = np.flatnonzero(columns.splits_N == number)
    rows_N = members[np.argsort(ranks_N[members], kind="stable")]
    rows_N = break_ties(rows_N, ranks_N, columns.keys)
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


def break_ties(
    rows_N: npt.NDArray[np.int64], ranks_N: npt.NDArray[np.uint64], keys: Sequence[str]
) -> npt.NDArray[np.int64]:
    """Equal ranks (duplicate keys; a collision once in 10^7 ImageNets) are ordered by key, then as listed."""
    ordered = ranks_N[rows_N]
    if not bool(np.any(ordered[1:] == ordered[:-1])):
        return rows_N
    return np.array(sorted(rows_N.tolist(), key=lambda row: (int(ranks_N[row]), keys[row], row)), np.int64)


# --- how many shards ----------------------------------------------------------------------------------


def estimated_bytes(output: Output, mean_bytes_in: float) -> float:
    """About how long one sample becomes in its shard."""
    side = output.size_px
    square = output.resize in ("square", "stretch", "crop")
    pixels = side * side * (1.0 if square else TYPICAL_RATIO) if output.resizes else 500 * 375
    return output.form.estimate_bytes(pixels, output.quality, mean_bytes_in) + HEADERS_BYTES


def round_counts(limit: int) -> list[int]:
    """1, 2, 3, 4, 6, 8, 12, 16, 24 …: numbers that many rank × worker counts divide."""
    return sorted({n for power in range(40) for n in (1 << power, 3 << power) if n <= limit})


def choose_shards(samples: int, bytes_per_sample: float, config: PrepareConfig) -> tuple[int, str]:
    """The number of shards and the reason, in words. Never depends on the machine."""
    if config.shards is not None:
        if config.shards > samples:
            raise UsageError(f"{config.shards} shards for {samples} samples: at most one shard per sample")
        return config.shards, "as asked"
    by_size = samples * bytes_per_sample / config.shard_bytes
    by_readers = min(MIN_SHARDS, samples // MIN_SAMPLES_PER_SHARD)
    wanted = max(by_size, by_readers, 1)
    counts = round_counts(samples)
    # Never under the readers' need; by size, the nearest in ratio.
    fitting = [count for count in counts if count >= by_readers] if by_readers >= MIN_SHARDS else counts
    count = min(fitting, key=lambda count: abs(np.log(count / wanted)))
    why = f"about {samples * bytes_per_sample / count / 2**20:.3g} MiB and {samples / count:.0f} samples each; "
    reason = why + f"divides evenly over {readers(count)} readers (ranks x workers)"
    return count, reason


def readers(count: int) -> str:
    """The reader counts that a job of up to 8 ranks × 8 workers would have and that divide `count`."""
    common = [n for n in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64) if count % n == 0]
    return ", ".join(map(str, common))


# --- identity -----------------------------------------------------------------------------------------


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
    said = {
        "outputs": [output.settings() for output in config.outputs],
        "seed": config.seed,
        "max_pixels": config.max_pixels,
        "metadata": config.metadata,
        "classes": list(classes),
        "encoder": fingerprint,
    }
    digest = hashlib.sha256(json.dumps(said, sort_keys=True).encode())
    for split in splits:
        rows = split.rows_N.tolist()
        troubles = {columns.keys[row]: columns.troubles[row] for row in rows if row in columns.troubles}
        digest.update(json.dumps([split.split, split.starts, troubles]).encode())
        digest.update("\0".join([columns.keys[row] for row in rows]).encode("utf-8", "surrogateescape"))
        for column in (columns.labels_N[split.rows_N], columns.lengths_N[split.rows_N]):
            digest.update(np.ascontiguousarray(column, np.int64).tobytes())
        if config.metadata:
            digest.update(origins(columns, split.rows_N, config.source, staging))
    return digest.hexdigest()


def origins(columns: Columns, rows_N: npt.NDArray[np.int64], source: str, staging: str) -> bytes:
    """Where KEY.json says that the rows came from, as `ShardTask.origin` has it."""
    staged_P = np.array([is_staged(path, staging) for path in columns.paths], bool)
    said = [source if staged else path for path, staged in zip(columns.paths, staged_P.tolist(), strict=True)]
    path_N = columns.path_N[rows_N]
    offsets_N = np.where(staged_P[path_N], -1, columns.offsets_N[rows_N])
    paths = "\0".join([said[path] for path in path_N.tolist()])
    return paths.encode("utf-8", "surrogateescape") + offsets_N.astype(np.int64).tobytes()
