"""Remedies for how passes over a loader begin: with processes, a queue, and what they knew before. Pure."""

import math
from collections.abc import Iterable
from dataclasses import replace

from feedline.profiling.explain.measure.situation import HARDLY, Situation
from feedline.profiling.explain.measure.workers import kept
from feedline.profiling.explain.remedies.own_loader import iterates
from feedline.profiling.explain.remedies.remedy import (
    AT_MOST,
    ONE_DATASET,
    Change,
    Effort,
    Remedy,
    Vain,
    datasets_anew,
    lines_of,
    loader_line,
    made_anew,
)
from feedline.profiling.record import units

WEBDATASETS = ("WebDataset", "DataPipeline", "FluidWrapper")
KEPT = 0.02  # of what a sample costs, where its dataset has kept it
SET_BETWEEN = "what the script sets in its dataset between epochs reaches the workers no more"


def faster_starts(at: Situation) -> Iterable[Change]:
    """Without persistent_workers every epoch begins by starting processes and filling the queue; a dataset that gives
    its samples in turn begins anew in processes that live on, too."""
    loader, now = at.measured.loader, at.now
    if not now.workers or loader is None or not now.epoch_samples:
        return
    whole_s = now.epoch_samples / at.rate.value + now.epoch_start_s
    why = f"starting an epoch takes {units.seconds(now.epoch_start_s)} of its {units.seconds(whole_s)}"
    drawn = at.measured.own_part[1] / at.measured.rates.start_share if at.measured.drawn_at_start else 0.0
    kept_line = loader_line(at, "persistent_workers=True")
    cause = at.measured.rates.start_share > 0.5 * at.measured.trainer.shares.data and not drawn
    if now.epoch_start_s >= HARDLY * whole_s and iterates(at):
        spares = "" if loader.persistent_workers else f"{kept_line}  # spares the processes\n"
        begins = (loader.refused or "").partition(" is code")[0]
        own = any(f":{begins}" in place for place in at.measured.workers.functions)  # else it may be a library's
        lines = lines_of(at.recording, begins * own)
        smaller = ".shuffle(100)  # webdataset: a small buffer; or .with_epoch(…): longer epochs"
        yield Change(
            family="stage", remedy="epochs that begin faster", target="start", effort=Effort.CODE, at_most=True,
            then=replace(now, epoch_start_s=0.0), cause=cause,
            why=f"{why}, in which its dataset's iterator begins anew (a shuffle buffer, say, is filled): {AT_MOST}",
            command=spares + (smaller if begins.partition(".")[0] in WEBDATASETS else lines),
        )  # fmt: skip
        return
    anew = made_anew(at)
    if anew:
        why += ": its DataLoader is made anew, and with that its workers, whatever their setting"
    if anew or loader.persistent_workers is False:
        then = replace(now, epoch_start_s=max(at.kept_start_s(now.worker_s), min(1.0, drawn) * now.epoch_start_s))
        if places := kept(at.recording):
            where = ", ".join(places)
            why = f"what its dataset keeps of samples ({where}) is lost as the workers end with each epoch: at "
            why += "most this, once every worker has all of them"
            then = replace(then, worker_s=KEPT * now.worker_s, worker_cpu_s=KEPT * now.worker_cpu_s)
        others = anew and datasets_anew(at)
        vain = now.epoch_start_s < HARDLY * whole_s and not places
        yield Change(
            family="persistent", remedy="one DataLoader for all epochs" if anew else "persistent_workers=True",
            effort=Effort.CODE if anew else Effort.SETTING, extra_error=0.02,
            then=then, cause=cause or bool(places), at_most=bool(places), why=Vain(why) if vain else why,
            needs="memory for what is kept, once for each worker" if places else ONE_DATASET if others else "",
            command=kept_line + "  # once, before the first epoch" * anew,
            settings={} if anew else {"persistent_workers": True},
            changes=SET_BETWEEN if loader.kind != "feedline" else "",
        )  # fmt: skip


def kept_iterator(at: Situation) -> Iterable[Change]:
    """For a loop that begins its loader anew in each step."""
    restart_s = at.now.restart_s
    if not restart_s:
        return
    batch_s = restart_s * at.batch_samples
    yield Change(
        family="persistent", remedy="one iterator for all steps", effort=Effort.CODE, cause=True,
        then=replace(at.now, restart_s=0.0), ceiling_times=math.inf,
        why=f"each step begins the loader anew: its workers start and end, {units.seconds(batch_s)} a batch",
        extra_error=0.1,
        command="batches = iter(loader)  # once; again at StopIteration\nbatch = next(batches)  # in each step",
    )  # fmt: skip


REMEDIES: tuple[Remedy, ...] = (faster_starts, kept_iterator)
