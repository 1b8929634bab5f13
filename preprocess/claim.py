"""Who may write in an output folder: one job at a time, one plan at a time, and only over what is ours.

The lock is an advisory lock on the folder itself, so it leaves no file and dies with its process. Object stores have
no locks: there, content-hashed names and the plan check keep two jobs from spoiling each other's shards, but nothing
refuses the second; when the first has finished, it finds its receipts gone and ends with an error.
"""

import fcntl
import json
import os
import re
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from feedline.pipeline.errors import DatasetError, UsageError
from feedline.pipeline.shards import INDEX, MANIFEST, Manifest
from feedline.preprocess.receipts import receipts_folder
from feedline.preprocess.store import WORK, LocalStore, ObjectStore, readable
from feedline.preprocess.work import QUARANTINE

Store = LocalStore | ObjectStore
PLAN = f"{WORK}/plan.json"
STAGING = "staging"
REPORT = "report.json"
SPLITS = ("train", "val", "test")
SHARD_FILE = re.compile(r"[a-z]+-\d{6}(-[0-9a-f]{16})?\.tar")
QUARANTINE_FILE = re.compile(r"report\.jsonl|[a-z]+-\d{6}-\d{5}-.*-[0-9a-f]{8}\.bin")
OUTPUT_FOLDER = re.compile(r"(\d+-)?(jpeg|planes|raw|keep)")
TEMPORARY_FILE = re.compile(r"\..+\.\d+\.tmp")


@contextmanager
def locked(store: Store) -> Generator[None]:
    """Raises UsageError when another job holds the folder. Makes the folder; removes it again if it stayed empty."""
    if isinstance(store, ObjectStore):
        store.check_reachable()
        yield
        return
    made = not store.root.exists()
    store.prepare([""])
    refuse_links(store.root)
    descriptor = os.open(store.root, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"another prepare is running in {store.root}: wait for it or choose another folder"
            ) from None
        except OSError:
            pass  # a network file system that cannot lock folders: names and receipts are still exact
        yield
    finally:
        os.close(descriptor)
        if made:
            with suppress(OSError):
                store.root.rmdir()


def refuse_links(root: Path) -> None:
    """Raises UsageError where one of our folders is a link: what lies behind it is not ours to write or clear."""
    ours = [root / name for name in os.listdir(root) if is_place_of_ours(name)]  # noqa: PTH208
    inner = [one / split for one in ours if OUTPUT_FOLDER.fullmatch(one.name) for split in SPLITS]
    for folder in (*ours, *inner):
        if folder.is_symlink():
            raise UsageError(f"{folder} is a link: put the folder itself there, or choose another output")


def finished(store: Store, folders: list[str]) -> list[Manifest] | None:
    """The manifests, when every one of these splits is finished; None otherwise."""
    found: list[Manifest] = []
    for folder in folders:
        text = store.read(f"{folder}/{MANIFEST}")
        if text is None:
            return None
        try:
            found.append(Manifest.from_json(text.decode(), f"{store.address}/{folder}/{MANIFEST}"))
        except (DatasetError, UnicodeDecodeError):
            return None
    return found


def check_free(store: Store, plan_hash: str, said: str, folders: list[str]) -> None:
    """Raises UsageError when the place holds anything but this plan's own work."""
    running = unfinished_plan(store)
    if running is not None and running.get("plan_hash") != plan_hash:
        raise UsageError(
            f"{store.address} holds an unfinished run of another plan ({running.get('said', 'unknown')}; this one: "
            f"{said}): finish it with its own options and libraries, choose another folder, or give --overwrite"
        )
    for folder in sorted(claimed_folders(store) | set(folders)):
        text = store.read(f"{folder}/{MANIFEST}")
        if text is not None:
            try:
                hash_there = json.loads(text).get("plan_hash")
            except ValueError:
                hash_there = None
            if hash_there != plan_hash:
                raise UsageError(
                    f"{store.address}/{folder} holds a dataset of another plan (source, options or libraries): "
                    "choose another folder or --overwrite"
                )
        check_only_ours(store, folder)


def check_formats(store: Store, folders: list[str], formats: dict[str, str], retry: bool) -> None:
    """Raises UsageError where what is there was begun by a Pillow that reads other formats: samples of one format
    would be both in shards and in quarantine. With more formats it may go on by retrying what is in quarantine."""
    running, manifests = unfinished_plan(store), finished(store, folders) or []
    short = any(shard.samples < shard.planned_samples for manifest in manifests for shard in manifest.shards)
    before = running.get("formats") if running is not None else manifests[0].formats if short else None
    if not isinstance(before, dict) or before == formats:
        return
    grew = before.items() <= formats.items()
    if not (grew and retry):
        there, here = (", ".join(names) or "no optional format" for names in (before, formats))
        remedy = "give --retry-quarantine to read the rest" if grew else "use the libraries it was begun with"
        raise UsageError(
            f"{store.address} was begun by a Pillow that reads other image formats (there {there}; here {here}): "
            f"{remedy}, choose another folder, or give --overwrite"
        )


def check_only_ours(store: Store, folder: str) -> None:
    """Raises UsageError for the first file that neither a manifest nor an unfinished plan says is feedline's."""
    ours = files_of_ours(store, folder)
    foreign = [name for name in store.list(folder) if name not in ours and not TEMPORARY_FILE.fullmatch(name)]
    if foreign:
        raise UsageError(
            f"{store.address}/{folder} holds files that are not feedline's ({foreign[0]}): choose another folder, or "
            "move them away"
        )


def files_of_ours(store: Store, folder: str) -> set[str]:
    """A name proves nothing (others' tars are called train-000000.tar too): the manifest names its shards, and a plan
    is only begun where nothing else was."""
    if folder in (unfinished_plan(store) or {}).get("folders", []):
        return {name for name in store.list(folder) if is_ours(name)}
    text = store.read(f"{folder}/{MANIFEST}")
    if text is None:
        return set()
    try:
        manifest = Manifest.from_json(text.decode(), MANIFEST)
    except (DatasetError, UnicodeDecodeError):
        return set()
    shards = [] if manifest.settings.get("foreign", False) else manifest.shards
    return {INDEX, MANIFEST, *(shard.name for shard in shards)}


def is_ours(name: str) -> bool:
    return name in (INDEX, MANIFEST) or bool(SHARD_FILE.fullmatch(name) or TEMPORARY_FILE.fullmatch(name))


def is_place_of_ours(top: str) -> bool:
    """Whether `prepare` may write or wipe under this name in its output folder."""
    return top in (*SPLITS, WORK, QUARANTINE) or bool(OUTPUT_FOLDER.fullmatch(top))


def unfinished_plan(store: Store) -> dict[str, Any] | None:
    text = store.read(PLAN)
    if text is None:
        return None
    try:
        return dict(json.loads(text))
    except ValueError:
        return {}


def prepared_folders(store: Store) -> set[str]:
    """Every folder in the place that could be a prepared split of ours."""
    tops = [name.rstrip("/") for name in store.list("") if name.endswith("/")]
    found = {top for top in tops if top in SPLITS}
    for top in tops:
        if OUTPUT_FOLDER.fullmatch(top):
            found |= {f"{top}/{name.rstrip('/')}" for name in store.list(top) if name.rstrip("/") in SPLITS}
    return {folder for folder in found if any(is_ours(name) for name in store.list(folder))}


def claimed_folders(store: Store) -> set[str]:
    """Those with a manifest, and those of an unfinished plan."""
    begun = set((unfinished_plan(store) or {}).get("folders", []))
    return {folder for folder in prepared_folders(store) if folder in begun or store.size(f"{folder}/{MANIFEST}")}


def begin(store: Store, plan_hash: str, said: str, folders: list[str], run: str, formats: dict[str, str]) -> None:
    """Writes the plan down, makes the folders, and clears what dead runs left."""
    for name in store.list(WORK):
        ours = name.rstrip("/") in (receipts_folder(plan_hash), STAGING, "plan.json")
        if not ours:
            remove(store, f"{WORK}/{name}")
    work = [WORK, f"{WORK}/{receipts_folder(plan_hash)}", f"{WORK}/attempts-{run}", QUARANTINE]
    store.prepare([*folders, *work])
    for folder in [*folders, QUARANTINE, f"{WORK}/{receipts_folder(plan_hash)}"]:
        for name in store.list(folder):
            if TEMPORARY_FILE.fullmatch(name):
                store.delete(f"{folder}/{name}")
    for name in store.list(""):
        if name.startswith(f".{REPORT}.") and TEMPORARY_FILE.fullmatch(name):
            store.delete(name)
    write_plan(store, plan_hash, said, folders, formats)


def write_plan(
    store: Store, plan_hash: str, said: str, folders: list[str], formats: dict[str, str] | None = None
) -> None:
    plan = {"plan_hash": plan_hash, "said": said, "folders": folders, "formats": formats}
    try:
        store.write(PLAN, (json.dumps(plan, sort_keys=True) + "\n").encode())
    except OSError as error:
        raise readable(error, f"writing in {store.address}") from error


def end(store: Store) -> None:
    """Removes the work folder. A straggler of this run can then publish nothing more."""
    store.delete_tree(WORK)
    store.delete_folder_if_empty(QUARANTINE)


def remove(store: Store, name: str) -> None:
    if name.endswith("/"):
        store.delete_tree(name.rstrip("/"))
    else:
        store.delete(name)


def wipe(store: Store) -> None:
    """Removes the dataset that is there, and what an unfinished run has done, manifests first; never a file that
    feedline did not write, nor what this job has unpacked to read from.

    Raises UsageError when files of others stand among ours.
    """
    folders = sorted(claimed_folders(store))
    for folder in folders:
        check_only_ours(store, folder)
    store.prepare([WORK])
    write_plan(store, "", "being overwritten", folders)  # a death below leaves shards that are still known as ours
    for folder in folders:
        store.delete(f"{folder}/{MANIFEST}")
    for folder in folders:
        for name in store.list(folder):
            store.delete(f"{folder}/{name}")
        store.delete_folder_if_empty(folder)
        if "/" in folder:
            store.delete_folder_if_empty(folder.partition("/")[0])
    for name in store.list(QUARANTINE):
        if QUARANTINE_FILE.fullmatch(name):
            store.delete(f"{QUARANTINE}/{name}")
    if is_report(store):
        store.delete(REPORT)
    for name in store.list(WORK):
        if name.rstrip("/") != STAGING:
            remove(store, f"{WORK}/{name}")
    store.delete_folder_if_empty(WORK)
    store.delete_folder_if_empty(QUARANTINE)


def is_report(store: Store) -> bool:
    text = store.read(REPORT)
    return text is not None and b'"plan_hash"' in text
