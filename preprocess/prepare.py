"""`prepare(PrepareConfig(...))`: index, plan, write, commit. The door.

A rerun of the same plan skips what is done; a different plan in the same folder is refused; manifests come last, so a
folder either is a whole dataset or none. What replaces a finished dataset is made beside it and exchanged when whole.
"""

import json
import math
import shutil
import time
import uuid
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from feedline.pipeline.base.errors import FeedlineError, UsageError
from feedline.pipeline.base.files import write_error
from feedline.pipeline.base.scratch import clear_abandoned, scratch_folder
from feedline.pipeline.format.manifest import Manifest
from feedline.preprocess import commit, job_report, output
from feedline.preprocess.config import PrepareConfig
from feedline.preprocess.engine import Engine, EngineRun
from feedline.preprocess.fingerprint import Fingerprint, fingerprint
from feedline.preprocess.index_source import gather, open_configured
from feedline.preprocess.plan import Plan, SplitPlan, estimated_bytes, make_plan
from feedline.preprocess.receipts import Receipt
from feedline.preprocess.spark import SparkEngine
from feedline.preprocess.store import WORK, LocalStore, open_store
from feedline.preprocess.write_shard import Order, Outcome, ShardTask

OnProgress = Callable[[int, int], None]
"""(samples done, samples in all)."""
OnNote = Callable[[str], None]
"""One line that a user may want to read: what was chosen, and why."""

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
    rerun resumes. `engine` runs the tasks; None is Spark.
    """
    engine = engine or SparkEngine(master=config.master, conf=config.spark)
    return Preparation(config, on_progress or (lambda *_: None), on_note or (lambda _: None), engine).run()


@dataclass
class Preparation:
    """One run of the job."""

    config: PrepareConfig
    on_progress: OnProgress
    on_note: OnNote
    engine: Engine
    run_id: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    seconds: dict[str, float] = field(default_factory=dict[str, float])

    def run(self) -> dict[str, Any]:
        config = self.config
        self.engine.check()
        check_apart(config)
        clear_abandoned()  # what a killed run left, even if nothing is left to do
        source = open_configured(config)  # a wrong path is said before anything is made
        self.store = self.place = open_store(config.out, dict(config.storage_options))
        if source.needs_staging and not isinstance(self.store, LocalStore):
            check_staging_is_seen(config, self.engine)
        with output.locked(self.store), staging_folder(self.store) as staging:
            exchanged = output.finish_exchange(self.store)
            started = time.monotonic()
            self.staging = str(staging)
            columns, self.classes, stats_P2 = gather(config, staging, self.on_note, source)
            self.seconds["index"] = time.monotonic() - started
            self.fingerprint = fingerprint(config.outputs)
            self.plan = make_plan(
                columns, config, self.classes, self.fingerprint.encoder, stats_P2=stats_P2, staging=self.staging
            )
            self.seconds["plan"] = time.monotonic() - started - self.seconds["index"]
            return self._claimed(overwrite=self.config.overwrite and exchanged != self.plan.hash)

    def _claimed(self, *, overwrite: bool) -> dict[str, Any]:
        place, plan, formats = self.place, self.plan, self.fingerprint.formats
        said = describe(self.config, self.fingerprint)
        folders = [folder for split in plan.splits for folder in self._folders(split)]
        output.check_free(place, plan.hash, said, folders, overwrite=overwrite)
        if not overwrite:
            output.check_formats(place, folders, formats, self.config.retry_quarantine)
        done = output.finished(place, folders)
        if not overwrite and output.unfinished_plan(place) is None and done and self._complete(folders, done):
            output.end(place)
            self.on_note("already prepared: nothing to do (--overwrite would do it again)")
            return commit.read_report(place, output.REPORT) | {"already_complete": True}
        self.mended = self._mended()
        for split in plan.splits:
            self.on_note(f"{split.split}: {len(split.rows_N):,} samples in {split.shards} shards ({split.reason})")
        if overwrite and not output.holds_dataset(place):
            output.wipe(place)
        elif overwrite or (done and self.mended):
            self.store = output.beside(place, plan.hash, said, formats)
            self._say_room()
        output.begin(self.store, plan.hash, said, folders, self.run_id, formats)
        report = self._write()
        if isinstance(place, LocalStore) and isinstance(self.store, LocalStore) and self.store != place:
            output.put_in_place(place, self.store, plan.hash, said)
        else:
            output.end(place)
        return report

    def _say_room(self) -> None:
        columns, outputs = self.plan.columns, self.config.outputs
        mean_bytes = float(np.maximum(columns.lengths_N, 0).mean())
        new_bytes = len(columns) * sum(estimated_bytes(output, mean_bytes) for output in outputs)
        self.on_note(
            f"the dataset in {self.place.address} stays until the new one is whole: "
            f"until then about {math.ceil(new_bytes / 2**20):,} MiB more are needed there"
        )

    def _folders(self, split: SplitPlan) -> list[str]:
        return [self.config.folder(output, split.split) for output in self.config.outputs]

    def _complete(self, folders: Sequence[str], manifests: Sequence[Manifest]) -> bool:
        """Whether every shard of the finished dataset is there with its size, and nothing is to be retried."""
        if self.config.retry_quarantine and commit.read_quarantine(self.store):
            return False
        return all(
            self.store.size(f"{folder}/{shard.name}") == shard.bytes
            for folder, manifest in zip(folders, manifests, strict=True)
            for shard in manifest.shards
        )

    # --- writing --------------------------------------------------------------------------------------

    def _write(self) -> dict[str, Any]:
        started = time.monotonic()
        pending, samples_done = self._pending()
        watch = Watch(self.config, self.plan, self.store.address, samples_done, self.on_progress)
        ran = EngineRun()
        if pending:
            self.on_progress(samples_done, len(self.plan.columns))
            try:
                ran = self.engine.run(self._order(), pending, watch)
            except TooManyBad:
                self._say_what_is_bad()
                raise
        self.seconds |= {"start": ran.start_s, "run": ran.run_s, "stop": ran.stop_s}
        try:
            said = self._commit(ran, watch.outcomes, resumed=samples_done, started=started)
        except OSError as error:
            raise write_error(error, f"committing {self.store.address}") from error
        return said

    def _pending(self) -> tuple[list[ShardTask], int]:
        """The tasks that are still to be done, and the number of samples in those that are not."""
        pending: list[ShardTask] = []
        samples_done = 0
        for split in self.plan.splits:
            for shard in range(split.shards):
                again = self.mended.get((split.split, shard), {})
                if not again and self._receipt(split, shard) is not None:
                    samples_done += split.planned(shard)
                else:
                    pending.append(self.plan.task(split, shard, again))
        return pending, samples_done

    def _mended(self) -> dict[tuple[str, int], dict[int, str]]:
        """(split, shard) -> position -> file in quarantine to try again. Empty unless asked for."""
        if not self.config.retry_quarantine:
            return {}
        found: dict[tuple[str, int], dict[int, str]] = {}
        for row in commit.read_quarantine(self.store):
            place = found.setdefault((row["split"], row["shard"]), {})
            place[row["position"]] = row["file"]
        return found

    def _receipt(self, split: SplitPlan, shard: int) -> Receipt | None:
        planned = split.planned(shard)
        folders = self._folders(split)
        return commit.held_receipt(self.store, self.plan.hash, self.fingerprint, split.split, shard, planned, folders)

    def _order(self) -> Order:
        return Order(
            run=self.run_id,
            plan_hash=self.plan.hash,
            fingerprint=self.fingerprint,
            address=self.store.address,
            storage_options=dict(self.config.storage_options),
            source_storage_options=self.config.source_storage_options,
            mended_in=self.place.address,
            folders={split.split: self._folders(split) for split in self.plan.splits},
            outputs=self.config.outputs,
            max_pixels=self.config.max_pixels,
            metadata=self.config.metadata,
            staging=self.staging,
            source=self.config.source,
        )

    # --- committing -----------------------------------------------------------------------------------

    def _commit(self, ran: EngineRun, outcomes: list[Outcome], *, resumed: int, started: float) -> dict[str, Any]:
        commit_started = time.monotonic()
        receipts = {split.split: self._all_receipts(split) for split in self.plan.splits}
        every = [receipt for of_split in receipts.values() for receipt in of_split]
        totals = commit.totals_of(every)
        bad = [row for receipt in every for row in receipt.quarantined]
        if len(bad) > allowed_bad(totals.input_samples, self.config):
            self._say_what_is_bad()
            raise too_many_bad(len(bad), totals.input_samples, self.config, self.store.address)
        manifests: dict[str, Manifest] = {}
        for split in self.plan.splits:
            for number, folder in enumerate(self._folders(split)):
                infos, index_sha256 = commit.commit_split(self.store, folder, number, receipts[split.split])
                manifests[folder] = self._manifest(split, number, infos, index_sha256)
        commit.commit_quarantine(self.store, bad)
        self.seconds["commit"] = time.monotonic() - commit_started
        said = self._report(totals, ran, outcomes, resumed, time.monotonic() - started)
        self.store.write(output.REPORT, (json.dumps(said, indent=1) + "\n").encode())
        commit.publish_manifests(self.store, manifests)
        commit.remove_replaced(self.store, manifests)
        return said

    def _say_what_is_bad(self) -> None:
        """What the receipts know so far, for whoever is told that it is too much. Deletes nothing, and leaves the
        rows that a retry has still to go by."""
        with suppress(OSError):  # what is to be said is that it is too much
            held = [self._receipt(split, shard) for split in self.plan.splits for shard in range(split.shards)]
            bad = [row for receipt in held if receipt is not None for row in receipt.quarantined]
            before = commit.read_quarantine(self.store) if self.config.retry_quarantine else []
            commit.write_quarantine(self.store, bad, before)

    def _all_receipts(self, split: SplitPlan) -> list[Receipt]:
        found = [self._receipt(split, shard) for shard in range(split.shards)]
        missing = [number for number, receipt in enumerate(found) if receipt is None]
        if missing:
            raise FeedlineError(
                f"{len(missing)} shards of {split.split} (first: {missing[0]}) left no receipt in "
                f"{self.store.address}: do all executors see this folder? Run again to resume"
            )
        return [receipt for receipt in found if receipt is not None]

    def _manifest(self, split: SplitPlan, number: int, infos: list[Any], index_sha256: str) -> Manifest:
        return Manifest(
            split=split.split,
            samples=sum(info.samples for info in infos),
            classes=list(self.classes),
            shards=infos,
            settings=self.config.outputs[number].settings()
            | {"max_pixels": self.config.max_pixels, "metadata": self.config.metadata, "shuffle": "keyed hash"},
            seed=self.config.seed,
            plan_hash=self.plan.hash,
            index_sha256=index_sha256,
            versions=job_report.versions(),
            formats=self.fingerprint.formats,
        )

    def _report(
        self, totals: commit.Totals, ran: EngineRun, outcomes: list[Outcome], resumed: int, seconds: float
    ) -> dict[str, Any]:
        seconds_by = {name: round(value, 3) for name, value in self.seconds.items()} | {"all": round(seconds, 3)}
        return {
            "input_samples": totals.input_samples,
            "output_samples": totals.output_samples,
            "quarantined": sum(totals.reasons.values()),
            "reasons": dict(sorted(totals.reasons.items())),
            "notes": dict(sorted(totals.notes.items())),
            "shards": totals.shards,
            "splits": {
                split.split: {"samples": len(split.rows_N), "shards": split.shards, "why": split.reason}
                for split in self.plan.splits
            },
            "bytes_in": totals.bytes_in,
            "bytes_out": totals.bytes_out,
            **job_report.speed(outcomes, self.seconds["run"]),
            "stage_s": job_report.stage_seconds(outcomes) | {"commit": round(self.seconds["commit"], 3)},
            "seconds": seconds_by,
            "plan_hash": self.plan.hash,
            "resumed_samples": resumed,
            "master": ran.master,
            "parallelism": ran.parallelism,
            "versions": job_report.versions(),
        }


class Watch:
    """Follows the running job: progress for people, and the early end when something cannot be mended."""

    def __init__(
        self, config: PrepareConfig, plan: Plan, address: str, samples_done: int, on_progress: OnProgress
    ) -> None:
        self._config, self._address, self._on_progress = config, address, on_progress
        self._all, self._done = len(plan.columns), samples_done
        self._bad = 0
        self.outcomes: list[Outcome] = []

    def __call__(self, outcome: Outcome) -> None:
        if outcome.fatal:
            raise FeedlineError(outcome.fatal)
        self.outcomes.append(outcome)
        self._bad += outcome.quarantined
        if self._bad > allowed_bad(self._all, self._config):
            raise too_many_bad(self._bad, self._all, self._config, self._address)
        self._done += outcome.samples + outcome.quarantined
        self._on_progress(self._done, self._all)


def allowed_bad(samples: int, config: PrepareConfig) -> float:
    """As asked; unasked 0.1 %, but a handful (at most one in twenty) does not end a small job."""
    if config.max_bad is not None:
        return config.max_bad * samples
    return max(DEFAULT_MAX_BAD * samples, min(10.0, samples / 20))


def too_many_bad(bad: int, samples: int, config: PrepareConfig, address: str) -> TooManyBad:
    return TooManyBad(
        f"{bad} of {samples} samples cannot be used, more than --max-bad "
        f"{DEFAULT_MAX_BAD if config.max_bad is None else config.max_bad:g} allows: look at "
        f"{address}/{commit.QUARANTINE}/{commit.REASONS}, then run again with a larger --max-bad to resume"
    )


@contextmanager
def staging_folder(store: output.Store) -> Generator[Path]:
    """Where a source may unpack itself: seen by all tasks where the output is, gone when the job ends."""
    if not isinstance(store, LocalStore):
        with scratch_folder("staging") as folder:
            yield folder
        return
    folder = store.root / WORK / output.STAGING
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        store.delete_folder_if_empty(WORK)


def check_staging_is_seen(config: PrepareConfig, engine: Engine) -> None:
    """Beside an output on a store, what is unpacked lies in this machine's temporary folder."""
    if master := engine.elsewhere():
        raise UsageError(
            f"{config.source} must be unpacked first, where all executors of {master} see it: give an OUT folder "
            "that they share, or --master local[*]"
        )


def check_apart(config: PrepareConfig) -> None:
    """The output must not lie inside a source folder, nor the source where the output goes: it would be indexed, or
    wiped. What is in quarantine may be prepared on its own, elsewhere."""
    if "://" in config.source or "://" in config.out:
        return
    source, out = Path(config.source).resolve(), Path(config.out).resolve()
    top = source.relative_to(out).parts[:1] if source.is_relative_to(out) else ("elsewhere",)
    if (out.is_relative_to(source) and source.is_dir()) or not top or output.is_place_of_ours(top[0]):
        raise UsageError(f"OUT {config.out} and SOURCE {config.source} lie in each other: choose another folder")


def describe(config: PrepareConfig, made_by: Fingerprint) -> str:
    """The plan in a few words, for whoever meets it unfinished."""
    outputs = ", ".join(output.name for output in config.outputs)
    again = ", quarantine tried again" if config.retry_quarantine else ""
    return f"{outputs} of {config.source}, seed {config.seed}, encoder {made_by}{again}"
