"""Every promise of a prepared dataset, checked.

Always: manifests, counts, balance, every label (index against tar; of foreign shards the index alone), index against
manifest, SHA-256 of every shard, quarantine, strays; four samples of every shard decoded. `full`: every byte of every
tar against what the index says should be there, every sample decoded, every JPEG cut and compared. A wrong byte is
named by shard and sample in either mode: SHA-256 says whether there is one, then CRC-32 and the writer's own headers
say where.
"""

import hashlib
import io
import os
import re
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from feedline.pipeline.base.errors import DatasetError
from feedline.pipeline.base.process import usable_cores
from feedline.pipeline.base.status_line import status_line
from feedline.pipeline.base.text import count_of
from feedline.pipeline.codecs.table import CODECS
from feedline.pipeline.format.local import AGAIN
from feedline.pipeline.format.manifest import (
    HALF_EXCHANGED,
    INDEX,
    MANIFEST,
    NOT_IN_PLACE,
    UNFINISHED,
    Index,
    Manifest,
    read_index,
    refuse_missing,
)
from feedline.pipeline.format.shard_tar import BLOCK_BYTES, member_header, padding_bytes
from feedline.preprocess import quarantine
from feedline.preprocess.output import REPORT, is_exchanging, prepared_folders, read_fields
from feedline.preprocess.sources.base import SPLITS
from feedline.preprocess.store import LocalStore, Store, open_store

OnProgress = Callable[[int, int], None]
MAX_LABELS_NAMED = 20
MAX_PROBLEMS_PER_SHARD = 20
SAMPLES_DECODED = 4  # of each shard, when not all are
HEADER_MAX_BYTES = 4096  # an extended header with a long name, and the member's own
EXTENSION = re.compile(rb"[a-z0-9]+")


@dataclass(frozen=True)
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

    @property
    def foreign(self) -> bool:
        """Whether others wrote the shards: of their tars only the images are known."""
        return self.manifest.settings.get("foreign", False)

    def path(self, name: str) -> str:
        return f"{self.folder}/{name}" if self.folder else name


def verify(
    out: str,
    *,
    full: bool = False,
    storage_options: dict[str, Any] | None = None,
    on_progress: OnProgress | None = None,
) -> dict[str, Any]:
    """`ok`, `checked_samples`, `problems` and what was looked at. Raises DatasetError when there is no dataset,
    UsageError where there is not even a folder."""
    store = open_store(out, storage_options)
    problems: list[Problem] = []
    if is_exchanging(store) or store.size(NOT_IN_PLACE) is not None:
        problems.append(Problem(UNFINISHED, "", HALF_EXCHANGED))
    folders = sorted(prepared_folders(store, linked=True), key=lambda folder: (folder.rpartition("/")[0], folder))
    if store.size(MANIFEST) is not None:
        folders = [""]
    splits = [split for folder in folders if (split := load(store, folder, problems)) is not None]
    if not any(store.size(f"{folder}/{MANIFEST}".lstrip("/")) for folder in folders):
        if store.read(UNFINISHED) is not None:
            raise DatasetError(f"{store.address} holds an unfinished prepare: run its command again to resume")
        if isinstance(store, LocalStore):
            refuse_missing(store.root)
        raise DatasetError(f"{store.address} is not a prepared dataset (no {MANIFEST}): run `feedline prepare` first")
    for split in splits:
        problems += manifest_problems(store, split) + index_problems(split)
    problems += gone_problems(store, splits, folders) + agreement_problems(splits)
    problems += quarantine_problems(store, splits)
    checked, in_shards = shard_problems(store, splits, full, on_progress or status_line("verify"))
    problems += in_shards
    return {
        "ok": not problems,
        "checked_samples": checked,
        "samples": sum(split.manifest.samples for split in splits),
        "shards": sum(len(split.manifest.shards) for split in splits),
        "full": full,
        "splits": {split.folder or ".": split.manifest.samples for split in splits},
        "problems": [asdict(problem) for problem in problems],
    }


def load(store: Store, folder: str, problems: list[Problem]) -> Split | None:
    where = f"{folder}/{MANIFEST}".lstrip("/")
    try:
        text = store.read(where)
        if text is None:
            raise DatasetError("missing: the split was never finished")
        manifest = Manifest.from_json(text.decode("utf-8", "replace"), where)
        where = f"{folder}/{INDEX}".lstrip("/")
        with store.local_copy(where) as path:
            planned = sum(shard.planned_samples for shard in manifest.shards)
            index = read_index(path.parent, most_rows=max(manifest.samples, planned))
            keys = index.keys
            index_sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        if manifest.index_sha256 not in ("", index_sha256):
            problems.append(Problem(where, "", "not the index that the manifest names (SHA-256)"))
    except OSError as error:
        problems.append(Problem(where, "", f"cannot be read: {error.strerror or error}"))
        return None
    except DatasetError as error:
        told = str(error).partition(where.rpartition("/")[2])[2].lstrip(": ")  # the path stands before it
        problems.append(Problem(where, "", told or str(error)))
        return None
    return Split(folder, manifest, index, keys)


def manifest_problems(store: Store, split: Split) -> list[Problem]:
    manifest, shards = split.manifest, split.manifest.shards
    untrue: list[str] = []
    name = split.folder.rpartition("/")[2]
    if name in SPLITS and manifest.split != name:
        untrue.append(f"is of split {manifest.split!r}: was the folder renamed?")
    total = sum(shard.samples for shard in shards)
    if total != manifest.samples:
        untrue.append(f"says {count_of(manifest.samples, 'sample')}, its shards add up to {total:,}")
    planned = [shard.planned_samples for shard in shards]
    if planned and max(planned) - min(planned) > 1 and not split.foreign:
        untrue.append(f"shards are not balanced: planned {min(planned)} to {max(planned)} samples")
    names = {shard.name for shard in shards}
    if len(names) != len(shards):
        untrue.append("names a shard twice")
    problems = [Problem(split.path(MANIFEST), "", what) for what in untrue]
    if split.folder and not split.foreign:
        strays = [name for name in store.list(split.folder) if name not in {*names, MANIFEST, INDEX}]
        what = "a file that the manifest does not name: move it away"
        problems += [Problem(split.path(name), "", what) for name in strays]
    return problems


def index_problems(split: Split) -> list[Problem]:
    index, manifest = split.index, split.manifest
    where = split.path(INDEX)
    if len(index) != manifest.samples:
        return [Problem(where, "", f"{count_of(len(index), 'row')} for {count_of(manifest.samples, 'sample')}")]
    twice = [key for key, times in Counter(split.keys).items() if times > 1]
    problems = [Problem(where, key, "key appears twice") for key in twice]
    bad_labels = np.flatnonzero((index.labels_N < 0) | (index.labels_N >= len(manifest.classes)))
    for row in bad_labels.tolist()[:MAX_LABELS_NAMED]:
        what = f"label {index.labels_N[row]} is not one of {count_of(len(manifest.classes), 'class')}"
        problems.append(Problem(where, split.keys[row], what))
    counts = Counter(index.shards_N.tolist())
    for number, shard in enumerate(manifest.shards):
        if counts[number] != shard.samples:
            rows, samples = count_of(counts[number], "row"), count_of(shard.samples, "sample")
            problems.append(Problem(where, "", f"{rows} for shard {shard.name}, which has {samples}"))
    if bool(np.any(np.diff(index.shards_N) < 0)) or set(counts) - set(range(len(manifest.shards))):
        problems.append(Problem(where, "", "rows are not in shard order"))
    return problems


def gone_problems(store: Store, splits: Sequence[Split], folders: Sequence[str]) -> list[Problem]:
    """Of the splits that the report of this very dataset names and of which nothing is there."""
    report = read_fields(store, REPORT) or {}
    named = report.get("folders")
    if report.get("plan_hash") not in [split.manifest.plan_hash for split in splits] or not isinstance(named, list):
        return []
    gone = [str(folder) for folder in named if folder not in folders]
    what = f"{REPORT} names it, and it is gone: bring it back, or remove {REPORT} if it was left out on purpose"
    return [Problem(folder, "", what) for folder in gone]


def agreement_problems(splits: Sequence[Split]) -> list[Problem]:
    """All splits know the same classes; several outputs of one pass hold the same samples in the same order; one
    encoder made all shards of a plan."""
    first: dict[str, Split] = {}
    encoders: dict[str, tuple[str, str]] = {}
    problems: list[Problem] = []
    for split in splits:
        manifest = split.manifest
        other = first.setdefault(manifest.split, split)
        if manifest.classes != splits[0].manifest.classes:
            problems.append(Problem(split.path(MANIFEST), "", f"other classes than {splits[0].folder}"))
        if manifest.plan_hash != other.manifest.plan_hash:
            problems.append(Problem(split.path(MANIFEST), "", f"another plan than {other.folder}"))
        elif split.keys != other.keys or not np.array_equal(split.index.labels_N, other.index.labels_N):
            problems.append(Problem(split.path(INDEX), "", f"other samples than {other.folder}"))
        for shard in manifest.shards:
            where = split.path(shard.name)
            encoder, there = encoders.setdefault(manifest.plan_hash, (shard.fingerprint, where))
            if shard.fingerprint != encoder:
                what = f"made by another encoder than {there}: prepare the dataset again, all with one Pillow"
                problems.append(Problem(where, "", what))
    return problems


def quarantine_problems(store: Store, splits: Sequence[Split]) -> list[Problem]:
    """Every sample a shard is short of is in quarantine, with its bytes."""
    try:
        rows = quarantine.read_report(store)
    except DatasetError as error:
        return [Problem(quarantine.REASONS, "", str(error))]
    files = {f"{quarantine.QUARANTINE}/{row.file}": row.key for row in rows}
    gone = [file for file in files if store.size(file) is None]
    problems = [Problem(file, files[file], "quarantined bytes are missing") for file in gone]
    short = Counter((row.split, row.shard) for row in rows)
    for split in splits:
        if not split.folder:  # a split looked at on its own: its quarantine is elsewhere
            continue
        for number, shard in enumerate(split.manifest.shards):
            missing, known = shard.planned_samples - shard.samples, short[split.manifest.split, number]
            if missing != known:
                what = f"{count_of(missing, 'sample')} short of its plan, {known} of them in quarantine"
                problems.append(Problem(split.path(shard.name), "", what))
    return problems


def shard_problems(
    store: Store, splits: Sequence[Split], full: bool, on_progress: OnProgress
) -> tuple[int, list[Problem]]:
    """Samples decoded, and what was wrong, in shard order. One thread per core: the work releases the GIL."""
    jobs = [(split, number) for split in splits for number in range(len(split.manifest.shards))]
    total = sum(split.manifest.samples for split in splits)
    checked = done = 0
    problems: list[Problem] = []
    pool = ThreadPoolExecutor(usable_cores())
    try:
        results = pool.map(lambda job: check_shard(store, job[0], job[1], full), jobs)
        for (split, number), (decoded, of_shard) in zip(jobs, results, strict=True):
            checked += decoded
            problems += of_shard
            done += split.manifest.shards[number].samples
            on_progress(done, total)
    finally:
        pool.shutdown(cancel_futures=True)
    return checked, problems


@dataclass(frozen=True)
class Tar:
    """A shard's bytes, of which no more are in memory than are looked at: shards of others may be of any size."""

    file: io.BufferedIOBase
    size: int

    def __getitem__(self, part: slice) -> bytes:
        start, stop, _ = part.indices(self.size)
        self.file.seek(start)
        return self.file.read(max(stop - start, 0))


def check_shard(store: Store, split: Split, number: int, full: bool) -> tuple[int, list[Problem]]:
    """Samples decoded, and what is wrong with a shard's bytes against its manifest entry and its index rows."""
    where = split.path(split.manifest.shards[number].name)
    try:
        file = store.open(where)
        if file is None:
            return 0, [Problem(where, "", f"missing: {AGAIN}")]
        with file:
            decoded, wrong = check_bytes(Tar(file, file.seek(0, os.SEEK_END)), split, number, full)
    except OSError as error:
        return 0, [Problem(where, "", f"cannot be read: {error.strerror or error}")]
    problems = [Problem(where, key, what) for key, what in wrong[:MAX_PROBLEMS_PER_SHARD]]
    if len(wrong) > len(problems):
        problems.append(Problem(where, "", f"{len(wrong) - len(problems):,} more are wrong in it"))
    return decoded, problems


def check_bytes(data: Tar, split: Split, number: int, full: bool) -> tuple[int, list[tuple[str, str]]]:
    """Samples decoded, and (key, what) of what is wrong."""
    shard, index = split.manifest.shards[number], split.index
    rows: list[int] = np.flatnonzero(index.shards_N == number).tolist()
    wrong: list[tuple[str, str]] = []
    if data.size != shard.bytes:
        ends = {row: sample_end(split, row) for row in rows}
        whole = [row for row in rows if ends[row] <= data.size]
        last = f", whole up to sample {split.keys[whole[-1]]!r}" if whole else ""
        wrong.append(("", f"the shard is {data.size} bytes long{last}, the manifest says {shard.bytes}: {AGAIN}"))
        if data.size < shard.bytes:  # of what is cut off that is all there is to say
            rows, data = whole, Tar(data.file, max((ends[row] for row in whole), default=0))
    data.file.seek(0)
    same = hashlib.file_digest(data.file, "sha256").hexdigest() == shard.sha256
    if not split.foreign:
        wrong += [(split.keys[row], what) for row in rows if (what := label_trouble(data, split, row))]
    if full or not same:
        wrong += wrong_bytes(data, split, rows)
    if not same and not wrong:
        wrong.append(("", "its SHA-256 is not the manifest's, in a place the index does not cover"))
    if not full and len(rows) > SAMPLES_DECODED:
        rows = [rows[n * (len(rows) - 1) // (SAMPLES_DECODED - 1)] for n in range(SAMPLES_DECODED)]
    for row in rows:
        start = int(index.offsets_N[row])
        sample = data[start : start + int(index.lengths_N[row])]
        width, height = int(index.widths_N[row]), int(index.heights_N[row])
        try:
            what = CODECS[split.manifest.codec].check(sample, width, height, split.manifest.settings)
        except (ValueError, OSError, EOFError, SyntaxError, DatasetError) as error:
            what = f"does not decode ({error})"
        if what:
            wrong.append((split.keys[row], what))
    return len(rows), wrong


def wrong_bytes(data: Tar, split: Split, rows: Sequence[int]) -> list[tuple[str, str]]:
    """(key, what) for every sample whose part of the tar is not what the writer makes of its image and index row:
    headers, padding and what follows up to the next sample too; of foreign shards the image alone."""
    index = split.index
    wrong: list[tuple[str, str]] = []
    headers = [b"" if split.foreign else image_header(data, split, row) for row in rows]
    starts = [int(index.offsets_N[row]) for row in rows]
    begins = [0, *(start - len(header) for start, header in zip(starts[1:], headers[1:], strict=True)), data.size]
    for n, (row, start, header) in enumerate(zip(rows, starts, headers, strict=True)):
        key, end = split.keys[row], start + int(index.lengths_N[row])
        if zlib.crc32(data[start:end]) != int(index.crc32_N[row]):
            wrong.append((key, "image bytes are not those that were written (CRC-32)"))
        if split.foreign:
            continue
        padding = padding_bytes(end)
        if data[begins[n] : start] != header or any(data[end : end + padding]):
            wrong.append((key, "the image's tar header or padding is not what was written"))
        # Then its metadata, whose text only the SHA-256 covers, or nothing; after the last the archive's end.
        rest = data[end + padding + len(label_member(split, row)) : begins[n + 1]].rstrip(b"\0")
        text = rest[len(member_header(f"{key}.json", 0)) :]
        if rest not in (b"", member_header(f"{key}.json", len(text)) + text):
            wrong.append((key, "what follows the label is neither its metadata nor the archive's end"))
    if not rows and not split.foreign and any(data[:]):
        wrong.append(("", "end-of-archive padding is not all zero"))
    return wrong


def image_header(data: Tar, split: Split, row: int) -> bytes:
    """As the writer makes it; the extension alone is not in the index, and taken from the tar."""
    key, start = split.keys[row], int(split.index.offsets_N[row])
    _, _, tail = data[max(start - HEADER_MAX_BYTES, 0) : start].rpartition(f"{key}.".encode())
    extension = EXTENSION.match(tail)
    return member_header(f"{key}.{extension[0].decode() if extension else ''}", int(split.index.lengths_N[row]))


def sample_end(split: Split, row: int) -> int:
    """Behind its label; of foreign shards, behind its image."""
    end = int(split.index.offsets_N[row] + split.index.lengths_N[row])
    return end if split.foreign else end + padding_bytes(end) + len(label_member(split, row))


def label_member(split: Split, row: int) -> bytes:
    text = str(split.index.labels_N[row]).encode()
    return member_header(f"{split.keys[row]}.cls", len(text)) + text.ljust(BLOCK_BYTES, b"\0")


def label_trouble(data: Tar, split: Split, row: int) -> str:
    """What is wrong with the member KEY.cls, which follows the image; "" when nothing is."""
    end = int(split.index.offsets_N[row] + split.index.lengths_N[row])
    start, member = end + padding_bytes(end), label_member(split, row)
    there = data[start : start + len(member)]
    if there == member:
        return ""
    text, label = there[-BLOCK_BYTES:].rstrip(b"\0"), split.index.labels_N[row]
    said = text.decode(errors="replace")
    return f"the label in the tar is not what was written: it says {said!r:.40}, the index {label}"
