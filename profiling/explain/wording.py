"""The verdict in words: the headline, and the sentences that carry it. Pure."""

import statistics
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict

from feedline.pipeline.base.text import count_of
from feedline.profiling.explain.bound import THRESHOLDS, WORDS, Judged
from feedline.profiling.explain.cause import Cause, spent_in
from feedline.profiling.explain.measure.main_thread import beside_model, parts_of
from feedline.profiling.explain.measure.rates import ERRORS_90, evaluations, evaluations_wait
from feedline.profiling.explain.measure.situation import DATA_BOUND, HARDLY, Measured
from feedline.profiling.explain.measure.workers import FEW_LOOKS, function_of, kept
from feedline.profiling.explain.predict import Cold, cold_epoch
from feedline.profiling.explain.remedies.sample_cost import MANY_TENSORS
from feedline.profiling.record import units
from feedline.profiling.record.lockstep import ONE_EACH
from feedline.profiling.record.recording import Recording, Step

PAUSED, MUCH_PAUSED = 0.1, 0.25
"""Shares of the whole time from which it is said, and from which the verdict says, that pauses are kept apart."""
WORTH_WORKERS_S = 1.0  # a loop over a loader that lasts no longer is over as its workers have started
OTHER_LOOPS = 0.5  # of the training's time, from which they are told of


def headline(measured: Measured, verdict: Judged) -> str:
    shares, bound, share = measured.trainer.shares, verdict.bound, _paused(measured)
    paused = _pauses(measured.recording)[0] if share >= MUCH_PAUSED else ""
    whole = f"{units.percent(share)} of the whole"
    if bound is None:
        apart = f" {paused[0].upper()}{paused[1:]} take {whole}." if paused else ""
        return f"Cannot tell: {verdict.why}.{apart}"
    close = f", close to {' and '.join(verdict.close)}-bound" if verdict.close else ""
    name = f"{bound.capitalize()}-bound{close}"
    if bound == "data" and shares.data < THRESHOLDS["data"]:
        who = "the workers and other programs" if measured.machine.others_cores else "the workers"
        return f"{name}: {who} take the cores that the model needs."
    model = "the loop computes" if beside_model(measured.recording)[0] else "the model computes"
    words = {
        "data": f"the model waits for data {units.percent(shares.data)} of the time",
        "copy": f"{units.percent(shares.copy)} of the time goes into copies to the device",
        "trainer": f"{units.percent(shares.trainer)} of the time is the script's own Python",
        "compute": f"{model} {units.percent(shares.compute)} of the time",
    }[bound]
    apart = f", apart from {paused}: {whole}" if paused else ""
    return f"{name}: {words}{apart}."


def evidence(measured: Measured, verdict: Judged, cause: Cause) -> list[str]:
    """The strongest first."""
    now, machine = measured.rates.now, measured.machine
    if now is None:
        return _without_steps(measured)
    shares, errors = asdict(measured.trainer.shares), asdict(measured.trainer.errors)
    parts = [f"{units.share(shares[name], errors[name])} {WORDS[name]}" for name in WORDS if shares[name] >= 0.005]
    spent = ", ".join(parts[:-1]) + (" and " if len(parts) > 1 else "") + parts[-1]
    steps = count_of(measured.trainer.steps, "step")
    sentences = [f"Over {steps} at {units.rate(now.value, measured.unit)}, the loop spent {spent}."]
    if unused := measured.recording.compute.unused_gradients:
        where = " and ".join(measured.recording.compute.unused_in)
        sentences.append(f"Backward passes compute gradients of {unused:,} weights ({where}) that no optimiser uses.")
    if machine.others_cores:
        sentences.append(
            f"Other programs took {units.number(machine.others_cores, 2)} of the {machine.cores:g} cores meanwhile: "
            "without them the script may be faster. The intervals are wider for it."
        )
        threads, used = measured.recording.compute.threads or 1, measured.threads
        if machine.on_cpu and verdict.bound == "compute" and max(threads, used) >= 2:
            whose = f"The model's {used:.0f} threads" if used >= 2 else f"The {threads} threads that torch may use"
            sentences[-1] += (
                f" {whose} wait for each other wherever one has no core: beside such programs OMP_NUM_THREADS=1 may "
                "be faster."
            )
    beside, error, places = beside_model(measured.recording)
    if beside:
        most = f", most of them in {' and '.join(places)}" * bool(places)
        taken = units.share(beside, error)
        sentences.append(f"Operations in no module with weights take {taken} of the time{most}.")
    if where := measured.trainer.beside:
        cores = units.number(measured.trainer.beside_cores, 2)
        sentences.append(
            f"Other threads of the script took {cores} of the {machine.cores:g} cores meanwhile, most of it in "
            f"{where}: the loop shares the cores and Python's lock with them."
        )
    if machine.throttled >= HARDLY:
        sentences.append(f"A quota kept the script from running {units.percent(machine.throttled)} of the time.")
    for told in (_of_pauses, _of_other_loaders, _of_gaps, _of_the_ceiling, _of_epochs, _of_what_is_kept):
        sentences += told(measured)
    sentences += _of_the_workers(measured, verdict)
    sentences += _of_storage(measured, verdict)
    if cause.words:
        sentences.append(f"{cause.words[0].upper()}{cause.words[1:]}.")
    if verdict.bound == "trainer" and cause.where:
        sentences.append(f"Most of the main thread's own time is in {cause.where}.")
    return sentences


def _without_steps(measured: Measured) -> list[str]:
    """What the main thread did in a loop whose batches come from no loader that is known, or are of a kind that is
    not."""
    recording, missing = measured.recording, "No loader of a known kind was iterated"
    if any(not one.unwatched for one in recording.loaders):
        missing = "No whole step over a loader was seen"
    if measured.uncounted:
        missing = "The batches are of no kind whose samples can be counted"
    sentences = [f"{missing}, so there is nothing to measure a rate by."]
    seconds = max((trainer.seconds for trainer in recording.trainers), default=0.0)
    words = [f"{units.percent(share)} {name}" for name, share in parts_of(recording).items() if share >= 0.01]
    if recording.optimizer_steps and seconds and words:
        rate = units.rate(recording.optimizer_steps / seconds, "optimiser steps/s")
        sentences.append(f"At {rate}, the main thread's time was {', '.join(words)}.")
    return sentences


def _paused(measured: Measured) -> float:
    """The share of the whole time of evaluations and checkpoints amid the steps, where it is notable."""
    steps = measured.recording.measured()
    whole_s = sum(step.duration_s for step in steps)
    share = sum(step.pause_s for step in steps) / whole_s if whole_s else 0.0
    return share if share >= PAUSED else 0.0


def _pauses(recording: Recording) -> tuple[str, bool]:
    """What they are, and whether it is mostly `next(iter(held_out))`: passes of one batch, broken off behind it."""
    steps, seconds = recording.measured(), defaultdict[tuple[int, int, int], float](float)
    for one in evaluations(recording, steps):
        seconds[one.rank, one.loader, one.epoch] += one.duration_s
    counts = Counter((one.rank, one.loader, one.epoch) for one in recording.steps)
    whole = {(one.rank, one.loader, one.epoch) for one in recording.passes if one.end_s is not None}
    singles_s = sum(spent_s for key, spent_s in seconds.items() if counts[key] == 1 and key not in whole)
    single = singles_s > 0.5 * sum(step.pause_s for step in steps)
    return "batches that only some steps begin a loader for" if single else "evaluations and checkpoints", single


def _of_pauses(measured: Measured) -> list[str]:
    if not (share := _paused(measured)):
        return []
    recording, cure = measured.recording, list[str]()
    waits = evaluations_wait(recording, recording.measured())
    pauses, single = _pauses(recording)
    words = f"{pauses[0].upper()}{pauses[1:]} amid the steps take {units.percent(share)} of the whole time"
    if waits >= DATA_BOUND:
        workers = {str(one.num_workers) for one in recording.loaders if one.phase == "eval" and one.kind == "torch"}
        whose = f" (num_workers={next(iter(workers))})" if len(workers) == 1 else ""
        words += f", and {units.percent(waits)} of the whole is waiting for batches of their own DataLoader{whose}"
        sent = max((one.batch_tensors or 0 for one in recording.loaders if one.phase == "eval"), default=0)
        most = units.times(1.0 / (1.0 - min(waits, 0.99)))
        count = max(min(2, int(measured.machine.cores)), *map(int, workers - {"None"}), 0)
        if workers and single:
            cure.append(
                "It begins anew for each of these batches. Where one iterator is kept, its workers have the next one "
                f"ready, for up to {most} of the whole: batches = iter(DataLoader(…, num_workers={count})), and "
                "next(batches), until it ends."
            )
        elif "0" in workers and sent < MANY_TENSORS:
            line = f"DataLoader(…, num_workers={count}, persistent_workers=True)"
            cure.append(f"Workers would make these batches meanwhile, for up to {most} of the whole: {line}.")
    return [f"{words}: no rate and no share has them.", *cure]


def _of_other_loaders(measured: Measured) -> list[str]:
    """Those beside the one that the steps are told by; and loops before, between and behind the training: statistics,
    features that are extracted, evaluations."""
    recording = measured.recording
    steps = [step for step in recording.steps if step.rank == 0]
    training = sorted((step for step in steps if step.phase == "train"), key=lambda step: step.start_s)
    train_s = sum(step.duration_s for step in training)
    said, main = list[str](), recording.train_loader
    of_main = [step for step in training if main is not None and step.loader == main.id]

    def amid(step: Step, others: Sequence[Step] = training) -> bool:
        """It begins within one of the others, or the first of these in it: `zip(a, b)` asks `a` before."""
        before = bisect_right(others, step.start_s, key=lambda one: one.start_s) - 1
        if before < 0:
            return bool(others) and others[0].start_s < step.start_s + step.duration_s
        return step.start_s < others[before].start_s + others[before].duration_s

    beside = Counter(step.loader for step in steps if step.phase == "eval" and amid(step))
    others = [loader for loader, count in beside.items() if ONE_EACH <= count / len(training) <= 1 / ONE_EACH]
    trained = [step for step in steps if step.optimizer_s and main is not None and step.loader != main.id]
    taken = {step.loader for step in trained if amid(step, of_main)}
    if (others or taken) and main is not None and not _paused(measured):
        whose = f"{main.dataset or main.kind}, num_workers={main.num_workers}"
        also = f"Each step takes a batch of {count_of(len(others), 'other loader')}, too"
        if not others:
            also = f"{count_of(len(taken) + 1, 'loader')} take turns"
        said = [f"{also}; rates count the samples of one of them, and remedies are for it ({whose})."]
    apart = [step for step in steps if step.phase == "eval" and not amid(step)]
    seconds = sum(step.duration_s for step in apart)
    if not training or seconds <= OTHER_LOOPS * train_s:
        return said
    words = (
        f"Loops that train nothing take {units.seconds(seconds)} beside {units.seconds(train_s)} of training, which "
        "is what all shares and rates are of"
    )
    if (waits := sum(step.wait_s for step in apart) / seconds) < DATA_BOUND:
        return [*said, f"{words}."]
    used = {step.loader for step in apart}
    theirs = {one.num_workers for one in recording.loaders if one.id in used and one.kind == "torch"}
    made = sum(one.made for one in recording.loaders if one.id in used)  # each would start its workers
    lasts = seconds > made * WORTH_WORKERS_S
    line = ": DataLoader(…, num_workers=2) there would make them meanwhile" if theirs == {0} and lasts else ""
    return [*said, f"{words}; {units.percent(waits)} of it is waiting for their batches{line}."]


def _of_gaps(measured: Measured) -> list[str]:
    """What the script does between its loops over loaders, where that takes notably long."""
    recording = measured.recording
    steps = sorted((one for one in recording.steps if one.rank == 0), key=lambda step: step.start_s)
    training = [step for step in steps if step.phase == "train"]
    if not training or measured.rates.now is None or measured.unit != "samples/s":
        return []
    gaps_s, until_s = -_of_passes_s(recording, training), training[0].start_s
    for step in (one for one in steps if training[0].start_s <= one.start_s <= training[-1].start_s):
        gaps_s += max(0.0, step.start_s - until_s)
        until_s = max(until_s, step.start_s + step.duration_s)
    train_s = sum(step.duration_s - step.pause_s for step in training)
    if gaps_s < PAUSED * (gaps_s + train_s):
        return []
    places = defaultdict[str, float](float)
    for trainer in (one for one in recording.trainers if one.rank == 0):
        for place, seconds in trainer.apart_s.items():
            places[function_of(place)] += seconds
    top = max(places, key=lambda place: places[place], default="")
    where = f" (most of it in {top})" if top and 0.5 * gaps_s <= places[top] <= 1.5 * gaps_s else ""
    rate = measured.rates.now.value * train_s / (train_s + gaps_s)
    return [
        f"Between its loops the script spends {units.seconds(gaps_s)} beside {units.seconds(train_s)} of training"
        f"{where}: no rate and no share has it; with it, it is {units.rate(rate, measured.unit)}."
    ]


def _of_passes_s(recording: Recording, training: Sequence[Step]) -> float:
    """What passes over the same loader behind the first took to begin, but for the first batch, and to end; and the
    last step of those that broke off, which is no row."""
    firsts = {step.epoch: step for step in reversed(training)}
    of_step_s = statistics.median(step.duration_s - step.pause_s for step in training)
    seconds = 0.0
    for one in recording.passes:
        if one.rank == 0 and one.loader == training[0].loader and one.epoch in firsts:
            begins_s = max(0.0, one.start_s - firsts[one.epoch].wait_s) if one.epoch > training[0].epoch else 0.0
            seconds += begins_s + (of_step_s if one.end_s is None else one.end_s)
    return seconds


def _of_the_ceiling(measured: Measured) -> list[str]:
    """As much as its interval allows to be said."""
    ceiling, free = measured.rates.ceiling, measured.free
    if ceiling is None or free is None:
        return []
    reached, reach = units.rate(ceiling.value, measured.unit), ERRORS_90 * free.error
    if free.value * (1 - reach) >= 1.0 and free.value >= 1.05:
        return [f"With data for free the same script reaches {reached}, {units.times(free.value)} as much."]
    if free.value * (1 + reach) < 1.1:
        return [f"With data for free it is no faster ({reached})."]
    spread = units.spread(ceiling.low, ceiling.high)
    return [f"With data for free it reaches {reached} ({spread}): whether that is faster cannot be told."]


def _of_epochs(measured: Measured) -> list[str]:
    """Short epochs whose beginning and end take a notable share."""
    rates, whole = measured.rates, measured.over_epochs
    if rates.now is None or whole is None or not rates.epoch_samples:
        return []
    steps_s = rates.epoch_samples / rates.now.value
    if rates.epoch_start_s < HARDLY * steps_s:
        return []
    return [
        f"Each epoch takes {units.seconds(rates.epoch_start_s)} to begin and end beside {units.seconds(steps_s)} "
        f"of steps: over whole epochs it is {units.rate(whole.value, measured.unit)}, "
        "which predictions are compared with."
    ]


def _of_what_is_kept(measured: Measured) -> list[str]:
    """By the dataset itself, as samples are made."""
    loader, places = measured.loader, kept(measured.recording)
    if loader is None or not places:
        return []
    words = f"Its dataset keeps samples as it makes them ({', '.join(places)})"
    if measured.workers.count and loader.persistent_workers is False:
        return [f"{words} in its workers, and loses them as these end with each epoch."]
    epochs = defaultdict[int, list[Step]](list)
    for step in (one for one in measured.recording.steps if one.loader == loader.id and one.duration_s):
        epochs[step.epoch].append(step)
    if len(epochs) < 2:
        return [f"{words}: this is a first epoch, and later ones find them there."]
    rates = [
        units.rate(sum(step.samples for step in steps) / sum(step.duration_s for step in steps), measured.unit)
        for steps in (epochs[min(epochs)], epochs[max(epochs)])
    ]
    return [f"{words}: the first epoch ran at {rates[0]}, the last that was seen at {rates[1]}."]


def _of_the_workers(measured: Measured, verdict: Judged) -> list[str]:
    workers, machine, sentences = measured.workers, measured.machine, list[str]()
    busy = {name: share for name, share in workers.stages.items() if name != "idle" and share > 0}
    if busy and workers.looks >= FEW_LOOKS:
        top, errors = sorted(busy, key=lambda name: -busy[name])[:2], workers.stage_errors
        shares = " and ".join(f"{units.share(busy[name], errors[name])} {spent_in(name)}" for name in top)
        who = "The workers spend their time" if workers.count else "The trainer prepares its batches itself"
        idle = f"; they idle {units.percent(workers.stages['idle'])}" if workers.count else ""
        sentences.append(f"{who}: {shares}{idle}.")
    if workers.lack_cores and verdict.bound in ("data", "compute", None):
        who, theirs = "The workers were", "their busy time"
        if not workers.count:
            who, theirs = "The training thread was", "the time in which it prepares batches"
        lacked = f"{who} without a core {units.percent(workers.delay or 0.0)} of {theirs}"
        why = "other programs took the cores, and alone on the machine the loop may wait less"
        cores = f"Cores are short: {machine.cores:g} are there for more that want to run"
        sentences.append(f"{lacked}: {why}." if machine.others_cores else f"{cores}. {lacked}.")
    elif measured.uses_all_cores and verdict.bound == "data":
        sentences.append(f"The script uses all of its {machine.cores:g} cores: more workers would only share them.")
    return sentences


def _of_storage(measured: Measured, verdict: Judged) -> list[str]:
    """That it is what the loop waits for, with what shows it; or that the run had its data in memory."""
    storage, now = measured.storage, measured.rates.now
    if now is None or measured.workers.looks < FEW_LOOKS:
        return []
    if "data" in (verdict.bound, *verdict.close) and storage.limits:
        who, they = ("the workers are", "they get") if measured.workers.count else ("the loop is", "it gets")
        busy = units.share(storage.share, storage.error)
        words = f"Storage is what it waits for: {who} blocked in reads {busy} of the time that samples take"
        got = f"; {they} {units.size(now.value * storage.sample_bytes)}/s" if storage.sample_bytes else ""
        got += f" in {units.rate(now.value * storage.calls, 'reads/s')}" if got and storage.calls else ""
        return [f"{words}{got}.", _by_itself(measured)]
    if storage.leads and storage.source is None:
        return ["Whether its reads waited for storage, or found their bytes in memory, cannot be told."]
    if storage.source != "memory" or not measured.recording.sample_paths:  # else it may have been made, not read
        return []
    return [f"Its data came from memory{_when_cold(measured, cold_epoch(measured))}."]


def _by_itself(measured: Measured) -> str:
    """What the storage gives to nobody else."""
    reads, readers = measured.storage.reads, measured.storage.readers
    if reads is None:
        return "What the storage would give to more reads at once is not known."
    alone, best = reads.random_at(readers), reads.best_random_bytes_per_s
    parts = [f"{units.size(alone)}/s to {count_of(readers, 'read')} at once"]
    parts += [f"{units.size(best)}/s to {reads.enough_at_once}"] if best > alone else []
    sequential = reads.sequential_bytes_per_s
    parts += [f"{units.size(sequential)}/s in sequence"] if sequential else []
    return f"Tried by itself afterwards, the storage gave {', '.join(parts)}."


def _when_cold(measured: Measured, cold: Cold | None) -> str:
    now = measured.over_epochs
    if cold is None or now is None:
        return ": a first epoch, from storage, may be slower"
    if cold.samples_per_s > 0.95 * now.value:
        return ", and a first epoch, from storage, would be no slower"
    rate = units.rate(cold.samples_per_s, measured.unit)
    how = "measured" if cold.by == "leg" else "predicted"
    return f": a first epoch, from storage, runs at {rate} ({units.spread(cold.low, cold.high)}, {how})"
