"""`prepare(PrepareConfig(...))`: index, plan, write, commit. The door.

A rerun of the same plan skips what is done; a different plan in the same folder is refused; manifests come last, so a
folder either is a whole dataset or none. What replaces a finished dataset is made beside it and exchanged when whole.
"""

import json
import math
import shutil
import time
import uuid
from collections.abc import Callable, Container, Generator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from feedline.pipeline.base.errors import FeedlineError, UsageError
from feedline.pipeline.base.files import write_error
from feedline.pipeline.base.process import usable_cores
from feedline.pipeline.base.scratch import clear_abandoned, scratch_folder
from feedline.pipeline.base.status_line import status_line
from feedline.pipeline.base.text import count_of
from feedline.pipeline.format.manifest import UNFINISHED, Manifest
from feedline.preprocess import commit, output, quarantine
from feedline.preprocess.config import PrepareConfig
from feedline.preprocess.engine import Engine, EngineRun
from feedline.preprocess.fingerprint import fingerprint, versions
from feedline.preprocess.index_source import OnNote, gather, open_configured
from feedline.preprocess.plan import ShardTask, SplitPlan, estimated_bytes, make_plan
from feedline.preprocess.processes import ProcessEngine
from feedline.preprocess.receipts import Receipt
from feedline.preprocess.sources.base import Classes, Source
from feedline.preprocess.sources.listing import braces, is_pattern
from feedline.preprocess.spark import SparkEngine, end_spark_of
from feedline.preprocess.store import WORK, LocalStore, Store, open_store
from feedline.preprocess.write_shard import Order, Outcome

OnProgress = Callable[[int, int], None]
"""(samples done, samples in all)."""

DEFAULT_MAX_BAD = 0.001


class TooManyBad(FeedlineError):
    """More samples in quarantine than `max_bad` allows."""


def prepare(
    config: PrepareConfig,
    on_progress: OnProgress | None = None,
    on_note: OnNote | None = None,
    engine: Engine | None = None,
) -> dict[str, Any]:
    """Runs the job, or what is left of it; returns the report (as in OUT/report.json).

    Raises FeedlineError (one line, with `exit_status`) for whatever keeps it from finishing; what is done stays and a
    rerun resumes. `on_note` gets lines that a user may want to read. `engine` runs the tasks; None: as configured.
    """
    on_note = on_note or (lambda _: None)
    engine = engine or chosen_engine(config, on_note)
    check_apart(config)
    clear_abandoned(end=end_spark_of)  # what a killed run left, even if nothing is left to do
    return Preparation(config, on_progress or status_line("prepare"), on_note, engine).run()


def chosen_engine(config: PrepareConfig, on_note: OnNote) -> Engine:
    """As asked; unasked Spark where it can run, else, with a note, processes of this machine. Raises FeedlineError
    for Spark that is asked for and cannot run."""
    if config.engine == "processes":
        return ProcessEngine()
    spark = SparkEngine(master=config.master, conf=config.spark)
    lacks, remedy = spark.lacks()
    if not lacks:
        return spark
    if config.engine or config.master or config.spark:
        raise FeedlineError(f"{lacks}: {remedy}")
    on_note(f"{lacks}: preparing in {usable_cores()} processes of this machine (--engine processes)")
    return ProcessEngine()


@dataclass
class Preparation:
    """One run of the job."""

    config: PrepareConfig
    on_progress: OnProgress
    on_note: OnNote
    engine: Engine
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    receipts: dict[tuple[str, int], Receipt] = field(default_factory=dict[tuple[str, int], Receipt])
    """By split and shard, each read once."""

    def run(self) -> dict[str, Any]:
        config = self.config
        source = open_configured(config)  # a wrong path is said before anything is made
        self.store = self.place = open_store(config.out, dict(config.storage_options))
        with output.locked(self.place), staging_folder(self.place) as staging:
            exchanged = output.finish_exchange(self.place)
            with nullcontext() if output.holds_dataset(self.place) else self.engine.begin():  # else perhaps no task
                self._plan(source, staging)
                return self._claim(overwrite=config.overwrite and exchanged != self.plan.hash)

    def _plan(self, source: Source, staging: Path) -> None:
        config, started = self.config, time.monotonic()
        columns, self.classes, stats_P2 = gather(config, source, staging, self.on_note)
        self.seconds["index"] = time.monotonic() - started
        made_by = fingerprint(config.outputs)
        stays = isinstance(self.place, LocalStore)
        self.plan = make_plan(columns, config, self.classes, made_by.encoder, stats_P2=stats_P2, staging=str(staging),
                              staging_stays=stays)  # fmt: skip
        self.seconds["plan"] = time.monotonic() - started - self.seconds["index"]
        self.order = Order(
            run=uuid.uuid4().hex[:12],
            plan_hash=self.plan.hash,
            fingerprint=made_by,
            config=replace(config, out=self.place.address),
            address=self.place.address,
            staging=str(staging),
        )

    def _claim(self, *, overwrite: bool) -> dict[str, Any]:
        """Nothing where the same plan is finished; else begins or resumes, beside what is to be replaced."""
        place, config, retry = self.place, self.config, self.config.retry_quarantine
        made_by, splits = self.order.fingerprint, self.plan.splits
        plan: output.PlanFile = {
            "plan_hash": self.plan.hash,
            "said": f"{', '.join(form.name for form in config.outputs)} of {config.source}, seed {config.seed}, "
            f"encoder {made_by}{', quarantine tried again' if retry else ''}",
            "folders": [folder for split in splits for folder in config.folders(split.split)],
            "formats": made_by.formats,
        }
        output.check_free(place, plan, overwrite=overwrite)
        done = output.finished(place, plan["folders"])
        resumes = not overwrite and output.unfinished_plan(place) is not None  # perhaps a retry, asked for or not
        self.tried = quarantine.read_report(place) if retry or resumes else []
        if not overwrite:
            output.check_formats(place, done, made_by.formats, retry)
            if done and not self.tried and not resumes and output.is_whole(place, done):
                output.end(place)
                there, report = commit.found(done), output.read_fields(place, output.REPORT) or {}
                self.on_note("already prepared: nothing to do (--overwrite would do it again)")
                if report.get("source_stamp", self.plan.source_stamp()) != self.plan.source_stamp():
                    self.on_note("files of the source have other sizes or times than then: where their contents are "
                                 "others, --overwrite")  # fmt: skip
                report |= there | commit.speed([], 0.0, 0.0)
                return report | self._about_run(EngineRun(), there["input_samples"]) | {"already_complete": True}
        self.mended: dict[tuple[str, int], dict[int, str]] = {}
        if self.tried:
            self.tried += quarantine.read_report(place, quarantine.MENDED)
        for row in self.tried if retry else ():
            self.mended.setdefault((row.split, row.shard), {})[row.position] = row.file
        self.on_note(said_of_classes(self.classes, self.plan.columns.labels_N))
        for split in splits:
            counts = f"{count_of(len(split.rows_N), 'sample')} in {count_of(split.shards, 'shard')}"
            self.on_note(f"{split.split}: {counts} ({split.reason})")
        replaces = output.holds_dataset(place) if overwrite else bool(done and self.mended)
        if replaces:
            self.store = output.beside(place, plan)
            self.order = replace(self.order, address=self.store.address)
            self._say_room(done)
        anew = overwrite and not (replaces and output.resumes(self.store, plan))
        output.begin(self.store, plan, self.order.run, anew=anew)
        try:
            report = self._write()
        except TooManyBad:
            self._say_what_is_bad()
            raise
        except OSError as error:
            raise write_error(error, f"preparing {self.store.address}") from error
        if isinstance(place, LocalStore) and self.store != place:
            output.put_in_place(place, plan)
        else:
            output.end(place)
        return report

    def _say_room(self, done: Mapping[str, Manifest]) -> None:
        """No less than the same plan took before."""
        mean_bytes = float(np.maximum(self.plan.columns.lengths_N, 0).mean())
        new_bytes = len(self.plan.columns) * sum(estimated_bytes(form, mean_bytes) for form in self.config.outputs)
        before = {folder: one for folder, one in done.items() if one.plan_hash == self.plan.hash}
        new_bytes = max(new_bytes, commit.found(before)["bytes_out"])
        self.on_note(
            f"the dataset in {self.place.address} stays until the new one is whole: "
            f"until then about {math.ceil(new_bytes / 2**20):,} MiB more are needed there"
        )

    # --- writing and committing -----------------------------------------------------------------------

    def _write(self) -> dict[str, Any]:
        started = time.monotonic()
        pending = [
            self.plan.task(split, shard, self.mended.get((split.split, shard)))
            for split, shard in self._without_receipt(self.mended)
        ]
        resumed = len(self.plan.columns) - sum(len(task) for task in pending)
        outcomes: list[Outcome] = []
        ran = self._run_tasks(pending, resumed, outcomes) if pending else EngineRun()
        self.seconds |= {"start": ran.start_s, "run": ran.run_s, "stop": ran.stop_s}
        return self._commit(ran, outcomes, resumed, started)

    def _without_receipt(self, again: Container[tuple[str, int]] = ()) -> list[tuple[SplitPlan, int]]:
        """Shards that are still to be done, those to be done `again` among them; the receipts of others are read."""
        left: list[tuple[SplitPlan, int]] = []
        for split in self.plan.splits:
            for shard in range(split.shards):
                at = split.split, shard
                if at not in self.receipts:
                    stamp = self.plan.stamp(split, shard)
                    held = None if at in again else commit.held_receipt(self.store, self.order, *at, stamp)
                    if held is None:
                        left.append((split, shard))
                    else:
                        self.receipts[at] = held
        return left

    def _run_tasks(self, pending: list[ShardTask], resumed: int, outcomes: list[Outcome]) -> EngineRun:
        """Progress for people, and the early end when something cannot be mended."""
        samples, done, bad = len(self.plan.columns), resumed, 0

        def on_outcome(outcome: Outcome) -> None:
            nonlocal done, bad
            if outcome.fatal:
                raise FeedlineError(outcome.fatal)
            outcomes.append(outcome)
            bad += outcome.quarantined
            self._check_bad(bad, samples)
            done += outcome.samples + outcome.quarantined
            self.on_progress(done, samples)

        self.on_progress(done, samples)
        return self.engine.run(self.order, pending, on_outcome)

    def _check_bad(self, bad: int, samples: int) -> None:
        """As asked; unasked 0.1 %, but a handful (at most one in twenty) does not end a small job."""
        asked = self.config.max_bad
        handful = max(DEFAULT_MAX_BAD * samples, min(10.0, samples / 20))
        allowed = math.floor(handful if asked is None else asked * samples)
        if bad > allowed:
            place = self.place if self.tried else self.store
            raise TooManyBad(
                f"of {count_of(samples, 'sample')} {bad:,} cannot be used, more than the {allowed:,} that may be: "
                f"look at {place.address}/{quarantine.REASONS}, then run again with a larger --max-bad (a share) to "
                "resume"
            )

    def _say_what_is_bad(self) -> None:
        """What the receipts know so far, for whoever is told that it is too much. Deletes nothing, and leaves the
        rows that a retry has still to go by."""
        with suppress(OSError):  # what is to be said is that it is too much
            self._without_receipt()
            before = quarantine.read_report(self.store) if self.tried else []
            bad = [row for _, receipt in sorted(self.receipts.items()) for row in receipt.quarantined]
            quarantine.write_report(self.store, bad, before)

    def _commit(self, ran: EngineRun, outcomes: list[Outcome], resumed: int, started: float) -> dict[str, Any]:
        """The report and, last of all, the manifests, once every shard has left its receipt."""
        commit_started, store = time.monotonic(), self.store
        if left := self._without_receipt():
            raise FeedlineError(
                f"{count_of(len(left), 'shard')} (first: {left[0][1]} of {left[0][0].split}) left no receipt in "
                f"{store.address}: do all executors see this folder? Run again to resume"
            )
        receipts = {
            split.split: [self.receipts[split.split, shard] for shard in range(split.shards)]
            for split in self.plan.splits
        }
        every = [receipt for of_split in receipts.values() for receipt in of_split]
        counts = commit.totals(every)
        self._check_bad(counts["quarantined"], counts["input_samples"])
        splits = commit.described(self.order, receipts, self.classes)
        bad = [row for receipt in every for row in receipt.quarantined]
        quarantine.commit_quarantine(store, bad, self.tried, self.place)
        ended = time.monotonic()
        self.seconds |= {"commit": ended - commit_started, "all": ended - started}
        report = counts | commit.speed(outcomes, ran.run_s, self.seconds["commit"])
        report |= {
            "splits": {
                split.split: {"samples": len(split.rows_N), "shards": split.shards, "why": split.reason}
                for split in self.plan.splits
            },
            "folders": list(splits),
            "plan_hash": self.plan.hash,
            "source_stamp": self.plan.source_stamp(),
            "versions": versions(),
            **self._about_run(ran, resumed),
        }
        store.write(output.REPORT, (json.dumps(report, indent=1) + "\n").encode())
        commit.publish(store, splits)
        commit.remove_replaced(store, splits)
        return report

    def _about_run(self, ran: EngineRun, resumed: int) -> dict[str, Any]:
        return {
            "seconds": {name: round(seconds, 3) for name, seconds in self.seconds.items()},
            "resumed_samples": resumed,
            "master": ran.master,
            "parallelism": ran.parallelism,
        }


def said_of_classes(classes: Classes, labels_N: npt.NDArray[np.int32]) -> str:
    """For people, who see by it whether the source's folders were taken for what they are."""
    names = [str(one["name"]) for one in classes]
    empty = len(names) - len(np.unique(labels_N[labels_N >= 0]))
    shown = ", ".join(names if len(names) < 5 else [*names[:2], "…", names[-1]])
    alone = "; all samples have the same label: is that meant?" if len(names) == 1 else ""
    return f"{count_of(len(names), 'class')}: {shown:.200}{f'; {empty:,} without a sample' if empty else ''}{alone}"


@contextmanager
def staging_folder(store: Store) -> Generator[Path]:
    """Where a source may unpack itself: seen by all tasks where the output is. It stays while there is a job to
    resume, whose rerun need not unpack again; beside an object store it is gone when this run ends."""
    if not isinstance(store, LocalStore):
        with scratch_folder("staging") as folder:
            yield folder
        return
    folder = store.root / WORK / output.STAGING
    try:
        yield folder
    finally:
        if not any((store.root / place / UNFINISHED).exists() for place in ("", output.NEW)):  # nothing to resume
            shutil.rmtree(folder, ignore_errors=True)
            store.delete_folder_if_empty(WORK)


def check_apart(config: PrepareConfig) -> None:
    """The output must not lie inside a source folder, nor the source where the output goes: it would be indexed, or
    wiped. What is in quarantine may be prepared on its own, elsewhere."""
    source, out = (place.removeprefix("file://") for place in (config.source, config.out))
    if "://" in source + out:
        source, out = source.rstrip("/"), out.rstrip("/")
        inside, is_folder = out.startswith(f"{source}/") or out == source, True
        top = source.removeprefix(f"{out}/").split("/")[:1] if source.startswith(f"{out}/") else ["elsewhere"]
    else:
        source, out = Path(source).resolve(), Path(out).resolve()
        inside, is_folder = out.is_relative_to(source), source.is_dir()
        top = source.relative_to(out).parts[:1] if source.is_relative_to(out) else ["elsewhere"]
    meant = [place for word in top for place in ((word,) if not is_pattern(word) else PLACES) if fits(place, word)]
    if (inside and is_folder) or not top or any(map(output.is_place_of_ours, meant)):
        raise UsageError(f"OUT {config.out} and SOURCE {config.source} lie in each other: choose another folder")


PLACES = ("train", "val", "256-jpeg")
"""Of our own, one of each kind that a pattern may mean."""


def fits(place: str, pattern: str) -> bool:
    return any(fnmatch(place, word) for word in braces(pattern))
