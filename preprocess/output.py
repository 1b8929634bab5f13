"""Who may write in an output folder: one job at a time, one plan at a time, and only over what is ours.

The lock is an advisory lock on the folder itself, so it leaves no file and dies with its process. Object stores have
no locks: there, content-hashed names and the plan check keep two jobs from spoiling each other's shards, but nothing
refuses the second; when the first has finished, it finds its receipts gone and ends with an error.

A finished dataset stays until the one that replaces it is whole. In a folder the new one is prepared in
`.feedline/new` and then exchanged for the old one; in an object store its shards lie beside the old ones until the
manifest changes.
"""

import fcntl
import json
import os
import re
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from feedline.pipeline.base.errors import DatasetError, UsageError
from feedline.pipeline.base.files import exchange, write_error
from feedline.pipeline.codecs.table import CODECS
from feedline.pipeline.format.manifest import INDEX, MANIFEST, Manifest
from feedline.preprocess.receipts import receipts_folder
from feedline.preprocess.store import WORK, LocalStore, ObjectStore
from feedline.preprocess.write_shard import QUARANTINE

Store = LocalStore | ObjectStore
PLAN = f"{WORK}/plan.json"
NEW = f"{WORK}/new"
"""Where what will replace a finished dataset is prepared: a store of its own."""
STAGING = "staging"
REPORT = "report.json"
SPLITS = ("train", "val", "test")
SHARD_FILE = re.compile(r"[a-z]+-\d{6}(-[0-9a-f]{16})?\.tar")
QUARANTINE_FILE = re.compile(r"report\.jsonl|[a-z]+-\d{6}-\d{5}-.*-[0-9a-f]{8}\.bin")
OUTPUT_FOLDER = re.compile(rf"(\d+-)?({'|'.join(CODECS)})")
TEMPORARY_FILE = re.compile(r"\..+\.\d+\.tmp")
NOT_IN_PLACE = ".new.0.tmp"
"""Marks a folder of the new dataset until all are in their places."""


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


def check_free(store: Store, plan_hash: str, said: str, folders: list[str], *, overwrite: bool = False) -> None:
    """Raises UsageError when the place holds anything but this plan's own work, or, to `overwrite`, feedline's."""
    running = unfinished_plan(store)
    if running is not None and running.get("plan_hash") != plan_hash and not overwrite:
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
            if hash_there != plan_hash and not overwrite:
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
    write_plan(store, plan_hash, said, folders, formats=formats)


def write_plan(store: Store, plan_hash: str, said: str, folders: list[str], **more: Any) -> None:
    plan = {"plan_hash": plan_hash, "said": said, "folders": folders, **more}
    try:
        store.write(PLAN, (json.dumps(plan, sort_keys=True) + "\n").encode())
    except OSError as error:
        raise write_error(error, f"writing in {store.address}") from error


def end(store: Store) -> None:
    """Removes the work folder. A straggler of this run can then publish nothing more."""
    store.delete(PLAN)
    store.delete_tree(WORK)
    store.delete_folder_if_empty(QUARANTINE)


def remove(store: Store, name: str) -> None:
    if name.endswith("/"):
        store.delete_tree(name.rstrip("/"))
    else:
        store.delete(name)


def holds_dataset(store: Store) -> bool:
    return any(store.size(f"{folder}/{MANIFEST}") for folder in prepared_folders(store))


def beside(store: Store, plan_hash: str, said: str, formats: dict[str, str]) -> Store:
    """Where to prepare what will replace the dataset in `store`. What an interrupted run of the same did, with the
    same readable formats, is kept."""
    if isinstance(store, ObjectStore):
        return store
    new = LocalStore(store.root / NEW)
    if new.root.is_symlink():
        raise UsageError(f"{new.root} is a link: remove it")
    begun = unfinished_plan(new) or {}
    if [begun.get(name) for name in ("plan_hash", "said", "formats")] != [plan_hash, said, formats]:
        store.delete_tree(NEW)
    return new


def put_in_place(store: LocalStore, new: LocalStore, plan_hash: str, said: str) -> None:
    """Exchanges the finished dataset in `store` for the whole one in `new`."""
    folders = sorted(prepared_folders(new))
    check_free(store, plan_hash, said, folders, overwrite=True)
    new.prepare([QUARANTINE])
    for folder in (*folders, QUARANTINE):
        new.write(f"{folder}/{NOT_IN_PLACE}", b"")
    write_plan(store, plan_hash, said, folders, exchange=True)
    finish_exchange(store)


def is_exchanging(store: Store) -> bool:
    return bool((unfinished_plan(store) or {}).get("exchange"))


def finish_exchange(store: Store) -> str | None:
    """Does what is left to do of an exchange, whoever began it; returns its plan's hash, None where there is none."""
    if not isinstance(store, LocalStore) or not is_exchanging(store):
        return None
    plan, new = unfinished_plan(store) or {}, LocalStore(store.root / NEW)
    check_free(store, plan["plan_hash"], plan["said"], [], overwrite=True)
    new.delete_tree(WORK)
    if new.size(f"{QUARANTINE}/{NOT_IN_PLACE}") is not None:
        for name in store.list(QUARANTINE):
            if not QUARANTINE_FILE.fullmatch(name):  # somebody else's: it stays
                (store.root / QUARANTINE / name).replace(new.root / QUARANTINE / name)
    folders = (prepared_folders(new) | prepared_folders(store)) & set(plan["folders"])
    for folder in (*sorted(folders), QUARANTINE):
        if new.size(f"{folder}/{NOT_IN_PLACE}") is not None:
            exchange(new.root / folder, store.root / folder)
    for folder in claimed_folders(store) - folders:
        exchange(store.root / folder, new.root / folder)
        store.delete_folder_if_empty(folder.rpartition("/")[0])
    if new.size(REPORT) is not None:
        (new.root / REPORT).replace(store.root / REPORT)
    for folder in (*folders, QUARANTINE):
        store.delete(f"{folder}/{NOT_IN_PLACE}")
    end(store)
    return plan["plan_hash"]


def wipe(store: Store) -> None:
    """Removes what an unfinished run has done; never a file that feedline did not write, nor what this job has
    unpacked to read from."""
    folders = sorted(claimed_folders(store))
    store.prepare([WORK])
    write_plan(store, "", "being overwritten", folders)  # a death below leaves shards that are still known as ours
    for folder in folders:
        remove_dataset(store, folder)
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


def remove_dataset(store: Store, folder: str) -> None:
    """Manifest first."""
    store.delete(f"{folder}/{MANIFEST}")
    for name in store.list(folder):
        if is_ours(name):
            store.delete(f"{folder}/{name}")
    store.delete_folder_if_empty(folder)
    if "/" in folder:
        store.delete_folder_if_empty(folder.partition("/")[0])


def is_report(store: Store) -> bool:
    text = store.read(REPORT)
    return text is not None and b'"plan_hash"' in text
