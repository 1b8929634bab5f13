"""Remedies for how samples are read from storage that the workers wait for; and a first epoch, when nothing is in
memory yet. Pure.

Predictions rest on reads of the script's own files, tried behind its end (`Recording.reads`): without these, or where
they took other times than the run's, there are none. More workers, smaller samples, a copy nearer by:
`own_loader.other_workers`, `storage`.
"""

import math
from collections.abc import Iterable
from dataclasses import replace

from feedline.pipeline.base.text import count_of
from feedline.profiling.explain.measure.situation import Situation
from feedline.profiling.explain.remedies.own_loader import iterates, unwatched
from feedline.profiling.explain.remedies.remedy import Change, Effort, Remedy, Vain, error_between
from feedline.profiling.record import units

AT_ONCE = 16  # reads that a worker has under way where it reads a batch's files together
FASTER = 1.2  # times that reads in sequence must be as fast as random ones before the order is worth a word
FEWER_WAKES = 0.25  # of the CPU time that reads cost one by one, what goes where a batch's are waited for at once
TRIED_ERROR = 0.15  # of reads tried behind the run, beside what other processes do then


def read_together(at: Situation) -> Iterable[Change]:
    """For a map-style dataset, which torch hands all indices of a batch."""
    storage = at.measured.storage
    if not storage.limits or storage.reads is None or not storage.kind.indexed or iterates(at):
        return
    batch = at.batch_samples
    reads, count = storage.reads, int(min(AT_ONCE, batch)) * storage.readers
    given, waited_s = reads.random_at(count), storage.blocked_with(count)
    first_s = waited_s / batch  # of a batch's reads; the others come while those before are worked on
    computed_s = at.computed_s - FEWER_WAKES * (at.computed_s - at.without_reads_s[0])
    yield Change(
        family="ahead", remedy="a batch's reads at once", effort=Effort.CODE, cause=True, target="read",
        then=replace(at.now, worker_s=min(at.now.worker_s, computed_s + first_s), contention={},
                     worker_cpu_s=min(at.now.worker_cpu_s, computed_s), storage_samples_per_s=count / waited_s),
        why=f"a worker waits for each read by itself; {count_of(count, 'read')} at once brought "
        f"{units.size(given)}/s instead of {units.size(reads.random_at(storage.readers))}/s",
        command="def __getitems__(self, indices):  # of your Dataset: torch hands it a whole batch\n"
        f"    with ThreadPoolExecutor({AT_ONCE}) as pool:\n"
        "        return list(pool.map(self.__getitem__, indices))",
        needs="a __getitem__ that threads may run side by side", extra_error=TRIED_ERROR,
    )  # fmt: skip


def window_order(at: Situation) -> Iterable[Change]:
    """For feedline's loader, which reads ahead whatever the order."""
    storage = at.measured.storage
    if not storage.limits or storage.kind.reads != "ahead" or not storage.at_most or not storage.in_sequence:
        return
    why: str = "shards come faster in sequence than samples from random places: "
    why += f"{units.rate(storage.in_sequence)} instead of {units.rate(storage.at_most)}"
    if storage.in_sequence < FASTER * storage.at_most:
        why = Vain("samples come from random places nearly as fast as in sequence")
    yield Change(
        family="window", remedy="shard windows", effort=Effort.SETTING, cause=True, target="read", why=why,
        then=replace(at.now, worker_s=max(0.0, at.now.worker_s - storage.blocked_s), contention={},
                     storage_samples_per_s=storage.in_sequence),
        command='Loader("OUT/train", window_shards=…)  # how many fit into memory: feedline doctor OUT',
        changes="samples are mixed within windows of shards, not over all", extra_error=TRIED_ERROR,
    )  # fmt: skip


def cold(at: Situation) -> Change | None:
    """No remedy: what a first epoch would be, of a run that read from memory."""
    storage = at.measured.storage
    if storage.source != "memory" or storage.cold_s is None or unwatched(at):
        return None
    computed_s, most = max(0.0, at.now.worker_s - storage.blocked_s), storage.most_waits
    if storage.kind.reads == "ahead":
        between = [replace(at.now, storage_samples_per_s=storage.at_most)] * 3
    else:  # each sample's reads wait once at least; between that and the most, whatever the kernel makes of it
        waits = (most, math.sqrt(most), 1.0) if storage.kind.reads != "in sequence" else (1.0,) * 3
        between = [replace(at.now, worker_s=computed_s + n * storage.cold_s, contention={}) for n in waits]
    least, then, most_then = between
    return Change(family="storage", remedy="a first epoch, from cold storage", then=then, effort=Effort.SETTING,
                  why="nothing is in memory yet", command="",
                  extra_error=math.hypot(TRIED_ERROR, error_between(least, most_then)))  # fmt: skip


REMEDIES: tuple[Remedy, ...] = (read_together, window_order)
