"""Every promise of a prepared dataset, checked.

Always: manifests, counts, balance, every label (index against tar; of foreign shards the index alone), index against
manifest, SHA-256 of every shard, quarantine, strays; four samples of every shard decoded. `full`: every byte of every
tar against what the index says should be there, every sample decoded, every JPEG cut and compared. A wrong byte is
named by shard and sample in either mode.
"""

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

import numpy as np

from feedline.pipeline.base.errors import DatasetError
from feedline.pipeline.format.manifest import INDEX, MANIFEST, Manifest, read_index
from feedline.preprocess import commit
from feedline.preprocess.output import PLAN, SPLITS, is_exchanging, prepared_folders
from feedline.preprocess.store import LocalStore, ObjectStore, open_store
from feedline.preprocess.verify_shard import Problem, ShardCheck, Split, file_in
from feedline.preprocess.write_shard import QUARANTINE

OnProgress = Callable[[int, int], None]
MAX_LABELS_NAMED = 20


def verify(
    out: str,
    *,
    full: bool = False,
    storage_options: dict[str, Any] | None = None,
    on_progress: OnProgress | None = None,
) -> dict[str, Any]:
    """`ok`, `checked_samples`, `problems` and what was looked at. Raises DatasetError when there is no dataset."""
    store = open_store(out, storage_options)
    problems: list[Problem] = []
    if is_exchanging(store):
        what = "a prepare ended while it put a new dataset in place of the old: run its command again"
        problems.append(Problem(shard=PLAN, key="", what=what))
    splits = [found for folder in folders_of(store) if (found := load(store, folder, problems)) is not None]
    if not any(store.size(f"{folder}/{MANIFEST}" if folder else MANIFEST) for folder in folders_of(store)):
        raise DatasetError(no_dataset(store))
    for split in splits:
        problems += manifest_problems(split) + index_problems(split) + stray_problems(store, split)
    problems += agreement_problems(splits) + mixture_problems(splits) + quarantine_problems(store, splits)
    checked, found = shard_problems(store, splits, full, on_progress or (lambda *_: None))
    problems += found
    return {
        "ok": not problems,
        "checked_samples": checked,
        "samples": sum(split.manifest.samples for split in splits),
        "shards": sum(len(split.manifest.shards) for split in splits),
        "full": full,
        "splits": {split.folder or ".": split.manifest.samples for split in splits},
        "problems": [asdict(problem) for problem in problems],
    }


def folders_of(store: LocalStore | ObjectStore) -> list[str]:
    if store.size(MANIFEST) is not None:
        return [""]
    return sorted(prepared_folders(store), key=lambda folder: (folder.rpartition("/")[0], folder))


def no_dataset(store: LocalStore | ObjectStore) -> str:
    if store.read(PLAN) is not None:
        return f"{store.address} holds an unfinished prepare: run its command again to resume"
    return f"{store.address} is not a prepared dataset (no {MANIFEST}): run `feedline prepare` first"


def load(store: LocalStore | ObjectStore, folder: str, problems: list[Problem]) -> Split | None:
    place = f"{folder}/" if folder else ""
    where = f"{place}{MANIFEST}"
    try:
        text = store.read(where)
        if text is None:
            raise DatasetError("missing: the split was never finished")
        manifest = Manifest.from_json(text.decode("utf-8", "replace"), where)
        where = f"{place}{INDEX}"
        with store.local_copy(where) as path:
            planned = sum(shard.planned_samples for shard in manifest.shards)
            index = read_index(path.parent, most_rows=max(manifest.samples, planned))
            keys = index.keys
            found = hashlib.sha256(path.read_bytes()).hexdigest()
        if manifest.index_sha256 not in ("", found):
            problems.append(Problem(shard=where, key="", what="not the index that the manifest names (SHA-256)"))
    except (DatasetError, OSError) as error:
        problems.append(Problem(shard=where, key="", what=str(error)))
        return None
    return Split(folder, manifest, index, keys)


# --- what needs no shard ------------------------------------------------------------------------------


def manifest_problems(split: Split) -> list[Problem]:
    manifest = split.manifest
    where = file_in(split, MANIFEST)
    found: list[str] = []
    name = split.folder.rpartition("/")[2]
    if name in SPLITS and manifest.split != name:
        found.append(f"is of split {manifest.split!r}: was the folder renamed?")
    total = sum(shard.samples for shard in manifest.shards)
    if total != manifest.samples:
        found.append(f"says {manifest.samples} samples, its shards add up to {total}")
    planned = [shard.planned_samples for shard in manifest.shards]
    foreign = manifest.settings.get("foreign", False)
    if planned and max(planned) - min(planned) > 1 and not foreign:
        found.append(f"shards are not balanced: planned {min(planned)} to {max(planned)} samples")
    names = [shard.name for shard in manifest.shards]
    if len(set(names)) != len(names):
        found.append("names a shard twice")
    return [Problem(shard=where, key="", what=what) for what in found]


def index_problems(split: Split) -> list[Problem]:
    index, manifest = split.index, split.manifest
    where = file_in(split, INDEX)
    if len(index) != manifest.samples:
        return [Problem(shard=where, key="", what=f"{len(index)} rows for {manifest.samples} samples")]
    found = [Problem(shard=where, key=key, what="key appears twice") for key in duplicates(split.keys)]
    bad_labels = np.flatnonzero((index.labels_N < 0) | (index.labels_N >= len(manifest.classes)))
    for row in bad_labels.tolist()[:MAX_LABELS_NAMED]:
        what = f"label {index.labels_N[row]} is not one of {len(manifest.classes)} classes"
        found.append(Problem(shard=where, key=split.keys[row], what=what))
    counts = Counter(index.shards_N.tolist())
    for number, shard in enumerate(manifest.shards):
        if counts[number] != shard.samples:
            what = f"{counts[number]} rows for shard {shard.name}, which has {shard.samples} samples"
            found.append(Problem(shard=where, key="", what=what))
    if bool(np.any(np.diff(index.shards_N) < 0)) or set(counts) - set(range(len(manifest.shards))):
        found.append(Problem(shard=where, key="", what="rows are not in shard order"))
    return found


def duplicates(keys: Sequence[str]) -> list[str]:
    if len(set(keys)) == len(keys):
        return []
    return [key for key, times in Counter(keys).items() if times > 1]


def stray_problems(store: LocalStore | ObjectStore, split: Split) -> list[Problem]:
    known = {shard.name for shard in split.manifest.shards} | {MANIFEST, INDEX}
    if split.manifest.settings.get("foreign", False) or not split.folder:
        return []
    strays = [name for name in store.list(split.folder) if name not in known]
    return [
        Problem(shard=file_in(split, name), key="", what="a file that the manifest does not name") for name in strays
    ]


def agreement_problems(splits: Sequence[Split]) -> list[Problem]:
    """All splits know the same classes; several outputs of one pass hold the same samples in the same order."""
    first: dict[str, Split] = {}
    found: list[Problem] = []
    for split in splits:
        if split.manifest.classes != splits[0].manifest.classes:
            what = f"other classes than {splits[0].folder}"
            found.append(Problem(shard=file_in(split, MANIFEST), key="", what=what))
        other = first.setdefault(split.manifest.split, split)
        if split is other:
            continue
        if split.manifest.plan_hash != other.manifest.plan_hash:
            found.append(Problem(shard=file_in(split, MANIFEST), key="", what=f"another plan than {other.folder}"))
        elif split.keys != other.keys or not np.array_equal(split.index.labels_N, other.index.labels_N):
            found.append(Problem(shard=file_in(split, INDEX), key="", what=f"other samples than {other.folder}"))
    return found


def mixture_problems(splits: Sequence[Split]) -> list[Problem]:
    """All shards of a plan were made by one encoder."""
    first: dict[str, tuple[str, str]] = {}
    found: list[Problem] = []
    for split in splits:
        for shard in split.manifest.shards:
            where = file_in(split, shard.name)
            expected, there = first.setdefault(split.manifest.plan_hash, (shard.fingerprint, where))
            if shard.fingerprint != expected:
                what = f"made by another encoder than {there}: prepare the dataset again, all with one Pillow"
                found.append(Problem(shard=where, key="", what=what))
    return found


def quarantine_problems(store: LocalStore | ObjectStore, splits: Sequence[Split]) -> list[Problem]:
    """Every sample a shard is short of is in quarantine, with its bytes."""
    try:
        rows = commit.read_quarantine(store)
    except DatasetError as error:
        return [Problem(shard=f"{QUARANTINE}/report.jsonl", key="", what=str(error))]
    short = Counter((row["split"], row["shard"]) for row in rows)
    found = [
        Problem(shard=f"{QUARANTINE}/{row['file']}", key=row["key"], what="quarantined bytes are missing")
        for row in rows
        if store.size(f"{QUARANTINE}/{row['file']}") is None
    ]
    for split in splits:
        if not split.folder:  # a split looked at on its own: its quarantine is elsewhere
            continue
        for number, shard in enumerate(split.manifest.shards):
            missing, known = shard.planned_samples - shard.samples, short[split.manifest.split, number]
            if missing != known:
                what = f"{missing} samples short of its plan, {known} of them in quarantine"
                found.append(Problem(shard=file_in(split, shard.name), key="", what=what))
    return found


# --- shards -------------------------------------------------------------------------------------------


def shard_problems(
    store: LocalStore | ObjectStore, splits: Sequence[Split], full: bool, on_progress: OnProgress
) -> tuple[int, list[Problem]]:
    """Samples decoded, and what was wrong, in shard order. One thread per core: the work releases the GIL."""
    jobs = [(split, number) for split in splits for number in range(len(split.manifest.shards))]
    checked = 0
    done = 0
    total = sum(split.manifest.samples for split in splits)
    found: list[Problem] = []
    pool = ThreadPoolExecutor(max(1, len(os.sched_getaffinity(0))))
    try:
        for (split, number), (decoded, problems) in zip(
            jobs, pool.map(lambda job: ShardCheck(store, job[0], job[1], full).run(), jobs), strict=True
        ):
            checked += decoded
            found += problems
            done += split.manifest.shards[number].samples
            on_progress(done, total)
    finally:
        pool.shutdown(cancel_futures=True)
    return checked, found
