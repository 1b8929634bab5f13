"""Who may write in an output folder: one job at a time, one plan at a time, and only over what is ours.

The lock is an advisory lock on the folder itself, so it leaves no file and dies with its process. Object stores have
no locks: there, content-hashed names and the plan check keep two jobs from spoiling each other's shards, but nothing
refuses the second; when the first has finished, it finds its receipts gone and ends with an error.

A finished dataset stays until the one that replaces it is whole. In a folder the new one is prepared in
`.feedline/new` and then exchanged for the old one; in an object store its shards lie beside the old ones until the
manifest changes.
"""

import json
import os
import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

from feedline.pipeline.base.errors import DatasetError, UsageError
from feedline.pipeline.base.files import TEMPORARY, exchange, sole_use, write_error
from feedline.pipeline.base.process import signals_held
from feedline.pipeline.codecs.table import CODECS
from feedline.pipeline.format.manifest import INDEX, MANIFEST, NOT_IN_PLACE, UNFINISHED, Manifest
from feedline.pipeline.format.shard_tar import SHARD_NAME
from feedline.preprocess import quarantine
from feedline.preprocess.quarantine import QUARANTINE
from feedline.preprocess.receipts import receipts_folder
from feedline.preprocess.sources.base import SPLITS
from feedline.preprocess.store import WORK, LocalStore, ObjectStore, Store

PlanFile = dict[str, Any]
"""What is in it: plan_hash, said (the plan in a few words), folders, formats (as in a `Fingerprint`)."""
NEW = f"{WORK}/new"
"""Where what will replace a finished dataset is prepared: a store of its own."""
STAGING = "staging"
REPORT = "report.json"
OUTPUT_FOLDER = re.compile(rf"(\d+-)?({'|'.join(CODECS)})")


# --- one job at a time --------------------------------------------------------------------------------


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
    busy = f"another prepare is running in {store.root}: wait for it or choose another folder"
    try:
        with sole_use(store.root, busy):  # where it cannot be locked, names and receipts are still exact
            yield
    finally:
        if made:
            store.delete_folder_if_empty("")


def refuse_links(root: Path) -> None:
    """Raises UsageError where one of our folders is a link: what lies behind it is not ours to write or clear."""
    ours = [root / name for name in os.listdir(root) if is_place_of_ours(name)]  # noqa: PTH208
    inner = [folder / split for folder in ours if OUTPUT_FOLDER.fullmatch(folder.name) for split in SPLITS]
    for folder in (*ours, *inner):
        if folder.is_symlink():
            raise UsageError(f"{folder} is a link: put the folder itself there, or choose another output")


# --- what is ours, and whose plan it is ---------------------------------------------------------------


def is_place_of_ours(top: str) -> bool:
    """Whether `prepare` may write or wipe under this name in its output folder."""
    return top in (*SPLITS, WORK, QUARANTINE) or bool(OUTPUT_FOLDER.fullmatch(top))


def is_ours(name: str) -> bool:
    """By its name alone: enough only where a manifest or a plan says that the folder is ours."""
    return name in (INDEX, MANIFEST) or bool(SHARD_NAME.fullmatch(name) or TEMPORARY.fullmatch(name))


def unfinished_plan(store: Store) -> PlanFile | None:
    """What the running or killed job wrote down; empty when it is damaged, None when there is no such job."""
    return read_fields(store, UNFINISHED)


def read_fields(store: Store, name: str) -> dict[str, Any] | None:
    """Of a file of JSON: empty when it is damaged, None when there is none."""
    text = store.read(name)
    if text is None:
        return None
    with suppress(ValueError, RecursionError):
        fields = json.loads(text)
        if isinstance(fields, dict):
            return cast("dict[str, Any]", fields)
    return {}


def resumes(store: Store, plan: PlanFile) -> bool:
    """Whether it holds what an interrupted run of the very same job did."""
    running = unfinished_plan(store) or {}
    return all(running.get(name) == plan[name] for name in ("plan_hash", "said", "formats"))


def manifest_in(store: Store, folder: str) -> Manifest | None:
    """None when it is missing or damaged."""
    text = store.read(f"{folder}/{MANIFEST}")
    try:
        return None if text is None else Manifest.from_json(text.decode("utf-8", "replace"), MANIFEST)
    except DatasetError:
        return None


def finished(store: Store, folders: Sequence[str]) -> dict[str, Manifest]:
    """The manifests by folder, when every one of these splits is finished; none otherwise."""
    manifests = {folder: manifest for folder in folders if (manifest := manifest_in(store, folder)) is not None}
    return manifests if len(manifests) == len(folders) else {}


def is_whole(store: Store, manifests: Mapping[str, Manifest]) -> bool:
    """Whether every index is there, and every shard with its size."""
    sizes = {f"{folder}/{shard.name}": shard.bytes for folder, one in manifests.items() for shard in one.shards}
    indexed = all(store.size(f"{folder}/{INDEX}") for folder in manifests)
    return indexed and all(store.size(name) == size_bytes for name, size_bytes in sizes.items())


def prepared_folders(store: Store, *, linked: bool = False) -> set[str]:
    """Every folder in the place that could be a prepared split of ours; to readers, links are folders too."""
    tops = [name.rstrip("/") for name in store.list("") if linked or name.endswith("/")]
    folders = [top for top in tops if top in SPLITS]
    folders += [f"{top}/{split}" for top in tops if OUTPUT_FOLDER.fullmatch(top) for split in SPLITS]
    return {folder for folder in folders if any(is_ours(name) for name in store.list(folder))}


def claimed_folders(store: Store) -> set[str]:
    """Those with a manifest, and those of an unfinished plan."""
    begun = (unfinished_plan(store) or {}).get("folders", [])
    return {folder for folder in prepared_folders(store) if folder in begun or store.size(f"{folder}/{MANIFEST}")}


def holds_dataset(store: Store) -> bool:
    return any(store.size(f"{folder}/{MANIFEST}") for folder in prepared_folders(store))


def check_free(store: Store, plan: PlanFile, *, overwrite: bool = False) -> None:
    """Raises UsageError when the place holds anything but this plan's own work, or, to `overwrite`, feedline's.

    A name proves nothing (others' tars are called train-000000.tar too): the manifest names its shards, and a plan is
    only begun where nothing else was.
    """
    running = unfinished_plan(store)
    if running is not None and running.get("plan_hash") != plan["plan_hash"] and not overwrite:
        before, remedy = running.get("said", "unknown"), "finish it with its own options and libraries, choose"
        both = f"{before}; this one: {plan['said']}"
        if before == plan["said"]:
            both, remedy = f"{before}, but of other files, lengths, labels or shards", "choose"
        raise UsageError(
            f"{store.address} holds an unfinished run of another plan ({both}): {remedy} another folder, or give "
            "--overwrite"
        )
    claimed = claimed_folders(store)
    if running is None and not claimed:
        check_reports(store)
    for folder in sorted(claimed | set(plan["folders"])):
        manifest = manifest_in(store, folder)
        there = store.size(f"{folder}/{MANIFEST}") is not None
        if there and not overwrite and (manifest is None or manifest.plan_hash != plan["plan_hash"]):
            raise UsageError(
                f"{store.address}/{folder} holds a dataset of another plan (source, options or libraries): "
                "choose another folder or --overwrite"
            )
        names = store.list(folder)
        ours = {name for name in names if TEMPORARY.fullmatch(name)}
        if folder in (running or {}).get("folders", []):
            ours |= {name for name in names if is_ours(name)}
        elif manifest is not None:
            foreign = manifest.settings.get("foreign", False)
            ours |= {INDEX, MANIFEST, *(() if foreign else (shard.name for shard in manifest.shards))}
        elif overwrite and folder in ((read_fields(store, REPORT) or {}).get("folders") or ()):
            # its manifest is damaged, or gone; the report says that it was ours
            ours |= {name for name in names if is_ours(name)}
        if strange := [name for name in names if name not in ours]:
            raise UsageError(
                f"{store.address}/{folder} holds files that are not feedline's ({strange[0]}): choose another "
                "folder, or move them away"
            )


def check_reports(store: Store) -> None:
    """Raises UsageError for a report of somebody else's, where no dataset says that it is ours to replace."""
    report = read_fields(store, REPORT)
    theirs = [] if report is None or "plan_hash" in report else [REPORT]
    for name in (quarantine.REASONS, quarantine.MENDED):
        try:
            quarantine.read_report(store, name)
        except DatasetError:
            theirs.append(name)
    if theirs:
        raise UsageError(f"{store.address}/{theirs[0]} is not feedline's: choose another folder, or move it away")


def check_formats(store: Store, manifests: Mapping[str, Manifest], formats: dict[str, str], retry: bool) -> None:
    """Raises UsageError where what is there was begun by a Pillow that reads other formats: samples of one format
    would be both in shards and in quarantine. With more formats it may go on by retrying what is in quarantine."""
    running = unfinished_plan(store)
    before = None if running is None else running.get("formats")
    for manifest in manifests.values() if running is None else ():
        if any(shard.samples < shard.planned_samples for shard in manifest.shards):
            before = manifest.formats
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


# --- a run's beginning and end ------------------------------------------------------------------------


def begin(store: Store, plan: PlanFile, run: str, *, anew: bool) -> None:
    """Writes the plan down, makes the folders, and clears what dead runs left, but for what this job has unpacked to
    read from. `anew` forgets what an unfinished run has done; its shards go when the new ones are whole."""
    receipts = receipts_folder(plan["plan_hash"])
    for name in store.list(WORK):
        if name.rstrip("/") not in (STAGING, "plan.json", None if anew else receipts):
            (store.delete_tree if name.endswith("/") else store.delete)(f"{WORK}/{name}")
    store.prepare([WORK])
    others = sorted(claimed_folders(store) - set(plan["folders"]))
    write_plan(store, plan | {"folders": [*plan["folders"], *others]})
    store.prepare([*plan["folders"], f"{WORK}/{receipts}", f"{WORK}/attempts-{run}", QUARANTINE])


def write_plan(store: Store, plan: PlanFile) -> None:
    try:
        store.write(UNFINISHED, (json.dumps(plan, sort_keys=True) + "\n").encode())
    except OSError as error:
        raise write_error(error, f"writing in {store.address}") from error


def end(store: Store) -> None:
    """Removes the work folder. A straggler of this run can then publish nothing more."""
    store.delete(UNFINISHED)
    store.delete_tree(WORK)
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


# --- in the place of a finished dataset ---------------------------------------------------------------


def beside(store: Store, plan: PlanFile) -> Store:
    """Where to prepare what will replace the dataset in `store`. What an interrupted run of the same plan did, with
    the same readable formats, is kept."""
    if isinstance(store, ObjectStore):
        return store
    new = LocalStore(store.root / NEW)
    if new.root.is_symlink():
        raise UsageError(f"{new.root} is a link: remove it")
    if not resumes(new, plan):
        store.delete_tree(NEW)
    return new


def put_in_place(store: LocalStore, plan: PlanFile) -> None:
    """Exchanges the finished dataset in `store` for the whole one beside it."""
    new = LocalStore(store.root / NEW)
    check_free(store, plan, overwrite=True)
    new.prepare([QUARANTINE])
    for folder in (*plan["folders"], QUARANTINE):
        new.write(f"{folder}/{NOT_IN_PLACE}", b"")
    with signals_held():
        write_plan(store, plan | {"exchange": True})
        finish_exchange(store)


def is_exchanging(store: Store) -> bool:
    return bool((unfinished_plan(store) or {}).get("exchange"))


def finish_exchange(store: Store) -> str | None:
    """Does what is left to do of an exchange, whoever began it; returns its plan's hash, None where there is none."""
    if not isinstance(store, LocalStore) or not is_exchanging(store):
        return None
    plan, new = unfinished_plan(store) or {}, LocalStore(store.root / NEW)
    check_free(store, plan, overwrite=True)
    new.delete_tree(WORK)
    if new.size(f"{QUARANTINE}/{NOT_IN_PLACE}") is not None:
        for name in store.list(QUARANTINE):
            if not quarantine.FILE.fullmatch(name):  # somebody else's: it stays
                (store.root / QUARANTINE / name).replace(new.root / QUARANTINE / name)
    folders = (*plan["folders"], QUARANTINE)
    for folder in folders:
        if new.size(f"{folder}/{NOT_IN_PLACE}") is not None:
            exchange(new.root / folder, store.root / folder)
    for folder in claimed_folders(store) - set(folders):
        exchange(store.root / folder, new.root / folder)
        store.delete_folder_if_empty(folder.rpartition("/")[0])
    if new.size(REPORT) is not None:
        (new.root / REPORT).replace(store.root / REPORT)
    for folder in folders:
        store.delete(f"{folder}/{NOT_IN_PLACE}")
    end(store)
    return plan["plan_hash"]
