"""Every promise of a prepared dataset, checked.

Always: manifests, counts, balance, labels, index against manifest, SHA-256 of every shard, quarantine, strays; some
samples of every shard decoded. `full`: every byte of every tar against what the index says should be there, every
sample decoded, every JPEG cut and compared. A wrong byte is named by shard and sample in either mode.
"""

import hashlib
import io
import os
import tarfile
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import simplejpeg

from feedline.pipeline import jpeg
from feedline.pipeline.errors import DatasetError
from feedline.pipeline.shards import (
    BLOCK_BYTES,
    INDEX,
    MANIFEST,
    Index,
    Manifest,
    ShardInfo,
    member_header,
    padding_bytes,
    read_index,
)
from feedline.preprocess import commit
from feedline.preprocess.claim import PLAN, prepared_folders
from feedline.preprocess.resize import BadImage, Kernel, Output
from feedline.preprocess.store import LocalStore, ObjectStore, open_store
from feedline.preprocess.work import QUARANTINE

OnProgress = Callable[[int, int], None]
SAMPLES_DECODED = 4  # of each shard, when not all are
MAX_PROBLEMS_PER_SHARD = 20
CUT_TOLERANCE = 2.0  # mean difference of a cut's inside from the full decode, of 255; chroma differs at its border


@dataclass(frozen=True, kw_only=True)
class Problem:
    shard: str
    """Path of the shard or file, relative to the dataset."""
    key: str
    """The sample, or "" where no single one is meant."""
    what: str


@dataclass(frozen=True)
class Split:
    folder: str
    manifest: Manifest
    index: Index
    keys: list[str]


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
    splits = [found for folder in folders_of(store) if (found := load(store, folder, problems)) is not None]
    if not any(store.size(f"{folder}/{MANIFEST}" if folder else MANIFEST) for folder in folders_of(store)):
        raise DatasetError(no_dataset(store))
    for split in splits:
        problems += manifest_problems(split) + index_problems(split) + stray_problems(store, split)
    problems += agreement_problems(splits) + quarantine_problems(store, splits)
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
    text = store.read(f"{place}{MANIFEST}")
    if text is None:
        problems.append(Problem(shard=f"{place}{MANIFEST}", key="", what="missing: the split was never finished"))
        return None
    try:
        manifest = Manifest.from_json(text.decode("utf-8", "replace"), f"{place}{MANIFEST}")
        with store.local_copy(f"{place}{INDEX}") as path:
            index = read_index(path.parent)
            keys = index.keys
    except DatasetError as error:
        problems.append(Problem(shard=f"{place}{INDEX}", key="", what=str(error)))
        return None
    return Split(folder, manifest, index, keys)


# --- what needs no shard ------------------------------------------------------------------------------


def manifest_problems(split: Split) -> list[Problem]:
    manifest = split.manifest
    where = file_in(split, MANIFEST)
    found: list[str] = []
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
    for row in bad_labels.tolist()[:MAX_PROBLEMS_PER_SHARD]:
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
    """Several outputs of one pass hold the same samples in the same order."""
    first: dict[str, Split] = {}
    found: list[Problem] = []
    for split in splits:
        other = first.setdefault(split.manifest.split, split)
        if split is other:
            continue
        if split.manifest.plan_hash != other.manifest.plan_hash:
            found.append(Problem(shard=file_in(split, MANIFEST), key="", what=f"another plan than {other.folder}"))
        elif split.keys != other.keys or not np.array_equal(split.index.labels_N, other.index.labels_N):
            found.append(Problem(shard=file_in(split, INDEX), key="", what=f"other samples than {other.folder}"))
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


def file_in(split: Split, name: str) -> str:
    return f"{split.folder}/{name}" if split.folder else name


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


class ShardCheck:
    """One shard's bytes against its manifest entry and its index rows."""

    def __init__(self, store: LocalStore | ObjectStore, split: Split, number: int, full: bool) -> None:
        self._store, self._split, self._full = store, split, full
        self._info: ShardInfo = split.manifest.shards[number]
        self._where = file_in(split, self._info.name)
        self._rows = np.flatnonzero(split.index.shards_N == number).tolist()
        self._problems: list[Problem] = []

    def run(self) -> tuple[int, list[Problem]]:
        """Samples decoded, problems found."""
        data = self._store.read(self._where)
        if data is None:
            self._note("", "missing")
            return 0, self._problems
        if len(data) != self._info.bytes:
            self._note(self._key_at(len(data)), f"{len(data)} bytes long, the manifest says {self._info.bytes}")
        same = hashlib.sha256(data).hexdigest() == self._info.sha256
        if not same or self._full:
            walk(data, self._split, self._rows, self._note)
        if not same and not self._problems:
            self._note("", "its SHA-256 is not the manifest's, in a place the index does not cover")
        return self._decode(data), self._problems[:MAX_PROBLEMS_PER_SHARD]

    def _note(self, key: str, what: str) -> None:
        self._problems.append(Problem(shard=self._where, key=key, what=what))

    def _key_at(self, position: int) -> str:
        """The sample whose bytes lie at or before a position."""
        before = [row for row in self._rows if self._split.index.offsets_N[row] <= position]
        return self._split.keys[before[-1] if before else self._rows[0]] if self._rows else ""

    def _decode(self, data: bytes) -> int:
        rows = self._rows
        if not self._full and len(rows) > SAMPLES_DECODED:
            rows = [rows[n * (len(rows) - 1) // (SAMPLES_DECODED - 1)] for n in range(SAMPLES_DECODED)]
        index = self._split.index
        for row in rows:
            start = int(index.offsets_N[row])
            sample = data[start : start + int(index.lengths_N[row])]
            trouble = sample_trouble(
                sample, self._split.manifest, int(index.widths_N[row]), int(index.heights_N[row])
            )
            if trouble:
                self._note(self._split.keys[row], trouble)
        return len(rows)


def walk(data: bytes, split: Split, rows: Sequence[int], note: Callable[[str, str], None]) -> None:
    """Every byte of a shard: headers and padding as the writer makes them, images by CRC, labels by the index."""
    index = split.index
    foreign = split.manifest.settings.get("foreign", False)
    cursor = 0
    for n, row in enumerate(rows):
        key = split.keys[row]
        start, length = int(index.offsets_N[row]), int(index.lengths_N[row])
        if zlib.crc32(data[start : start + length]) != int(index.crc32_N[row]):
            note(key, "image bytes are not those that were written (CRC-32)")
        if foreign:
            continue
        last = n + 1 == len(rows)
        end = len(data) if last else int(index.offsets_N[rows[n + 1]])
        cursor = walk_sample(data, cursor, key, start, length, int(index.labels_N[row]), end, last, note)
    if not foreign and any(data[cursor:]):
        note(split.keys[rows[-1]] if rows else "", "end-of-archive padding is not all zero (after the last sample)")


def walk_sample(
    data: bytes, cursor: int, key: str, start: int, length: int, label: int, end: int, last: bool,
    note: Callable[[str, str], None],
) -> int:  # fmt: skip
    """Checks one sample's members; returns where the next one begins (as the writer would have it)."""
    image = member_at(data, cursor, start)
    if (
        image is None
        or not image.name.startswith(f"{key}.")
        or data[cursor:start] != member_header(image.name, length)
    ):
        note(key, "the image's tar header is not the one that was written")
    cursor = check_padding(data, start + length, key, note)
    text = str(label).encode()
    header = member_header(f"{key}.cls", len(text))
    if data[cursor : cursor + len(header)] != header:
        note(key, "the label's tar header is not the one that was written")
    cursor += len(header)
    if data[cursor : cursor + len(text)] != text:
        note(key, f"the label in the tar is {data[cursor : cursor + len(text)]!r}, the index says {label}")
    cursor = check_padding(data, cursor + len(text), key, note)
    extra = member_at(data, cursor, end)
    if extra is not None and extra.name == f"{key}.json":
        if data[cursor : extra.offset_data] != member_header(extra.name, extra.size):
            note(key, "the metadata's tar header is not the one that was written")
        cursor = check_padding(data, extra.offset_data + extra.size, key, note)
    elif last and extra is None and any(data[cursor : cursor + BLOCK_BYTES]):
        note(key, "end-of-archive padding is not all zero (after the last sample)")
        cursor += BLOCK_BYTES
    return cursor


def member_at(data: bytes, cursor: int, end: int) -> tarfile.TarInfo | None:
    """The member whose header begins at `cursor`, with absolute offsets; None when there is none that can be read."""
    if end - cursor < BLOCK_BYTES or not data[cursor]:
        return None
    try:
        with tarfile.open(fileobj=io.BytesIO(data[cursor:end] + bytes(2 * BLOCK_BYTES))) as tar:
            member = tar.next()
    except (tarfile.TarError, ValueError, OverflowError):
        return None
    if member is not None:
        member.offset_data += cursor
    return member


def check_padding(data: bytes, position: int, key: str, note: Callable[[str, str], None]) -> int:
    end = position + padding_bytes(position)
    if any(data[position:end]):
        note(key, "tar padding is not zero")
    return end


# --- samples ------------------------------------------------------------------------------------------


def sample_trouble(data: bytes, manifest: Manifest, width: int, height: int) -> str:
    """What is wrong with one sample's image; "" when nothing is."""
    try:
        if manifest.codec == "jpeg":
            return jpeg_trouble(data, manifest, width, height)
        if manifest.codec == "keep":
            prepared = Kernel((Output(codec="keep", resize="none", size_px=0),), max_pixels=1 << 40)(data)[0]
            return size_trouble(prepared.width, prepared.height, width, height)
        array = np.load(io.BytesIO(data), allow_pickle=False)
    except (ValueError, OSError, EOFError, SyntaxError, BadImage) as error:
        return f"does not decode ({error})"
    expected = (height, width, 3) if manifest.codec == "raw" else (height * 3 // 2, width)
    if array.shape != expected or array.dtype != np.uint8:
        return f"is {array.dtype} {array.shape}, the index says uint8 {expected}"
    return ""


def size_trouble(width: int, height: int, index_width: int, index_height: int) -> str:
    same = (width, height) == (index_width, index_height)
    return "" if same else f"is {width}x{height}, the index says {index_width}x{index_height}"


def jpeg_trouble(data: bytes, manifest: Manifest, width: int, height: int) -> str:
    pixels_HWC = simplejpeg.decode_jpeg(data, "RGB")
    trouble = size_trouble(pixels_HWC.shape[1], pixels_HWC.shape[0], width, height)
    if trouble or not manifest.settings.get("crop_addressable", False):
        return trouble
    if not jpeg.is_crop_addressable(data):
        return "is not crop-addressable: it has no restart tiles"
    left, top, across, down = width // 3, height // 3, max(width // 3, 1), max(height // 3, 1)
    small, left_px, top_px = jpeg.cut(data, left, top, across, down)
    part_HWC = simplejpeg.decode_jpeg(small, "RGB")[top_px : top_px + down, left_px : left_px + across]
    whole_HWC = pixels_HWC[top : top + down, left : left + across]
    if part_HWC.shape != whole_HWC.shape:
        return f"is not crop-addressable: a cut of {across}x{down} gave {part_HWC.shape[1]}x{part_HWC.shape[0]}"
    difference = float(np.abs(part_HWC.astype(np.int16) - whole_HWC).mean())
    return "" if difference <= CUT_TOLERANCE else f"is not crop-addressable: a cut differs by {difference:.1f} of 255"
