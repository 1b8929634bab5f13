"""Remedies for where samples come from: feedline's loader, prepared shards, memory, faster storage. Pure.

The user's own transforms (and what their code waits for) stay in the cost of every sample: no gain comes from leaving
them out.
"""

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from feedline.pipeline.base.text import count_of
from feedline.profiling.explain.measure.rates import Rate
from feedline.profiling.explain.measure.shared_cores import CROWDED
from feedline.profiling.explain.measure.situation import Situation
from feedline.profiling.explain.measure.throughput import Throughput
from feedline.profiling.explain.remedies.own_loader import NO_WAIT, unwatched
from feedline.profiling.explain.remedies.remedy import (
    Change,
    Effort,
    Remedy,
    Vain,
    busy_time,
    error_between,
    folder_of,
    image_size,
    mirrors,
    native_crops,
    several_views,
    squares,
    trains,
    unheld,
    without_handover,
)
from feedline.profiling.explain.remedies.sample_cost import own_collate, own_transforms
from feedline.profiling.record import units
from feedline.profiling.record.recording import LoaderSeen, Trial
from feedline.profiling.record.stages import STAGES

SURE = 0.05  # share of a worker's time that it is blocked in reads before anything is said of it
OF_A_PICTURE = 0.5  # by how much the cost of a picture differs from that of others: its standard deviation
AGAIN = 1.5  # times the bytes of all files that a run has read, from which it has surely read them again
FASTER = 1.05  # a model that is faster by less on feedline's batches is as fast as before
MIDDLES = "pictures are RGB, bilinear, the middle square of each, in the order of the shards"
OWN_CROPS = (
    "crops are RGB, bilinear, 8 to 100 % of a picture, half of them mirrored (augment=Augment(scale=…, ratio=…, "
    "flip=…) for others, augment=Augment(train=False) for the middle of each)"
)
SHARDS = """from feedline.pipeline.shards_dataset import Shards
dataset = Shards("OUT/train", transform=your_transforms)  # in place of yours: (Pillow image, class)"""
LIMITS = {
    "compute": "; the model is then the limit",
    "cores": "; the cores are then the limit",
    "storage": "; the storage, at the bytes/s that your files came at, is then the limit",
}


def prepared(at: Situation) -> Iterable[Change]:
    """One per trial on the user's own samples, and number of workers. None would have less resolution than what the
    script crops, or be made smaller where it crops what is stored."""
    loader, crop_px = at.measured.loader, image_size(at.measured.loader) or 0
    if loader is None or unwatched(at):
        return
    native = native_crops(loader, at.measured.workers.transforms)
    lacks = "" if _fits(loader) else unheld(loader)
    if lacks and at.recording.trials:
        why = f"it gives a picture and the number of a class for each sample, and {lacks}"
        yield Change(family="shards", remedy="feedline's loader", then=at.now, effort=Effort.REWRITE,
                     command="", why=NO_WAIT if at.hardly_waits else Vain(why))  # fmt: skip
    as_is = {trial.loader: trial for trial in at.recording.trials if trial.codec == "as-is"}
    usual = at.now.workers or max(1, min(2, int(at.measured.machine.cores)))
    for trial in at.recording.trials:
        own_already = trial.codec == "as-is" and (trial.loader != "feedline" or loader.kind == "feedline")
        too_small = trial.size_px is not None and (trial.size_px < crop_px or (native and trial.smaller))
        if own_already or too_small or (lacks and (trial.loader == "feedline" or not several_views(loader))):
            continue
        for count in sorted({usual, *at.workers}):
            most, then, least = (_with_trial(at, count, trial, as_is.get(trial.loader), part) for part in (0, 0.5, 1))
            if then is not None and least is not None and most is not None:
                then = replace(then, storage_samples_per_s=_from_storage(at, trial))
                yield _prepared(at, loader, trial, then, error_between(least, most))


def _with_trial(at: Situation, workers: int, trial: Trial, as_is: Trial | None, stays: float) -> Throughput | None:
    """The model with the costs of prepared samples.

    feedline's loader: the trial's own cost and that of the user's code, nothing to serialise or unpickle, and the
    model computes on its batches. The script's own loader: its reading, decoding and transforming shrink by the ratio
    of the trial to the same trial on the samples as they are; but for this part of what functions of the user's own
    do, which may look a label up or pad the picture.
    """
    cost_s, now = trial.load_cpu_s_per_sample, at.with_workers(workers)
    if cost_s is None:
        return None
    if trial.loader == "feedline":
        times = _model_times(at)
        computed_s, waited_s = own_s(at)
        worker_s, worker_cpu_s = cost_s + computed_s + waited_s, cost_s + computed_s
        return replace(
            now, worker_s=worker_s, worker_cpu_s=worker_cpu_s, handover_s=0.0, contention={},
            epoch_start_s=at.kept_start_s(worker_s), step_s=now.step_s / times,
            trainer_cpu_s=at.now.trainer_cpu_s / times,
        )  # fmt: skip
    if as_is is None or not as_is.load_cpu_s_per_sample:
        return None
    stages = at.measured.workers.stage_alone_s
    named = {name: s for name, s in own_transforms(at).items() if name != "transform"}
    stays_s = stays * sum(s for name, s in named.items() if not name.endswith("__getitem__"))
    shrinking_s = sum(stages.get(name, 0.0) for name in STAGES if STAGES[name].shrinks) or now.worker_s
    shrinking_s = max(0.0, shrinking_s - stays_s)
    share = min(1.0, shrinking_s / now.worker_s) if now.worker_s else 1.0
    scale = 1.0 - share + share * (cost_s / as_is.load_cpu_s_per_sample)
    return at.with_workers(workers, scale)


def _on_gpu(at: Situation) -> bool:
    """Whether feedline's loader is to make the floats of its batches on the GPU, and copy their bytes there while the
    model computes: by `device="cuda"`, for a script that has floats from its DataLoader."""
    loader, device = at.measured.loader, at.recording.compute.device or ""
    return device.startswith("cuda") and loader is not None and any("float" in kind for kind in loader.batch_dtypes)


def _model_times(at: Situation) -> float:
    """How many times as fast the model is on feedline's batches; on a GPU it waits for no copy of them."""
    copy_s, step_s = at.measured.trainer.copy_s or 0.0, at.now.step_s
    without_copies = step_s / (step_s - copy_s) if _on_gpu(at) and copy_s < step_s else 1.0
    return at.measured.trainer.our_batches.value * without_copies


def own_s(at: Situation) -> tuple[float, float]:
    """Seconds per sample of the user's own code, which any loader has to run: computing, and waiting. What a slow
    worker takes beyond the others is own code, too, for all that is known; so is a collate function that
    `Loader.like` has not shown to be torch's."""
    workers, loader = at.measured.workers, at.measured.loader
    stages = workers.stage_alone_s
    computed_s = sum(own_transforms(at).values())
    if loader is not None and loader.refused != "" and stages.get("collate") and own_collate(at):
        computed_s += stages["collate"]
    if workers.slow is not None:
        computed_s += max(0.0, at.now.worker_s - workers.even_s)
    return computed_s, stages.get("blocked", 0.0) + stages.get("lock", 0.0)


def _fits(loader: LoaderSeen) -> bool:
    """`Loader.like` takes its settings over, or it is one of feedline's."""
    return loader.refused == "" or loader.kind == "feedline"


def _prepared(at: Situation, loader: LoaderSeen, trial: Trial, then: Throughput, unsure: float) -> Change:
    as_is, ours, count = trial.codec == "as-is", trial.loader == "feedline", then.workers
    of_batches = at.measured.trainer.our_batches.error if ours else 0.0
    of_pictures = OF_A_PICTURE / math.sqrt(max(1, trial.samples))
    spread = (trial.load_cpu_s_spread or 0.0) / (trial.load_cpu_s_per_sample or 1.0)
    what = "your files as they are" if as_is else f"prepared {trial.size_px} px {trial.codec} shards"
    whose = "feedline's loader" if ours else "your own loader"
    workers = "" if count == at.now.workers else f", {count_of(count, 'worker')}"
    easily = _fits(loader) if ours else loader.refused is not None
    family = "loader" if as_is else "shards"
    return Change(
        family=family if ours else f"own-{family}",
        remedy=f"{what}, {whose}{workers}",
        then=then, effort=Effort.PREPARING if easily else Effort.REWRITE,
        why=NO_WAIT if at.hardly_waits else _why_prepared(at, trial, then),
        command=f"{_prepare_command(at, trial)}\n{_loader_lines(at, loader, count) if ours else SHARDS}",
        needs=_needs(at, loader, trial), changes="; ".join(filter(None, _changes(at, loader, trial))), trial=trial,
        extra_error=math.hypot(max(0.05, spread), of_batches, unsure, of_pictures),
        settings={"codec": trial.codec, "size": trial.size_px, "loader": trial.loader, "num_workers": count},
        ceiling_times=_model_times(at) * without_handover(at) if ours else 1.0,
    )  # fmt: skip


def _why_prepared(at: Situation, trial: Trial, then: Throughput) -> str:
    loader, workers, cost = at.measured.loader, at.measured.workers, units.seconds(then.worker_s)
    in_thread = loader is not None and loader.background and not workers.alone_s  # `now.worker_s` is what is waited
    before = units.seconds((workers.cpu_s if in_thread else at.now.worker_s) or None)
    own = ", your own transforms with it" if trial.loader == "feedline" and own_transforms(at) else ""
    why = f"one sample then takes {cost} of a worker instead of {before}{own}, measured on {trial.samples} of yours"
    times = _model_times(at) if trial.loader == "feedline" else 1.0
    moved = then.rate() > at.ceiling and times > FASTER
    what = "layout, freed memory kept" if at.measured.machine.on_cpu else "layout"
    what += ", copied while it computes" if _on_gpu(at) else ""
    faster = f"; the model is {units.times(times)} as fast on its batches ({what})"
    limit = LIMITS.get(then.binding(), "")
    if then.binding() == "compute" and at.measured.rates.ceiling is None and at.measured.crowded >= CROWDED:
        limit += ", at an estimate of its rate without the workers beside it: --legs measures that"
    return why + limit + (faster if moved else "")


def _prepare_command(at: Situation, trial: Trial) -> str:
    resize = squares(at.measured.loader)
    form = f"{trial.size_px}:{trial.codec}" + (f":{resize}" if trial.codec == "raw" or resize == "stretch" else "")
    output = "--codec keep" if trial.codec == "as-is" else f"--output {form}"
    as_theirs = " --filter bilinear --enlarge" if resize == "stretch" and trial.codec != "as-is" else ""
    return f"feedline prepare {folder_of(at, 'SOURCE')} OUT {output}{as_theirs}"


def _loader_lines(at: Situation, loader: LoaderSeen, count: int) -> str:
    imported, on_gpu = "from feedline.pipeline.loader import Loader\nloader = ", ""
    workers = f", num_workers={count}" if count != at.now.workers else ""
    if loader.kind == "feedline":
        return f'"OUT/train"{workers}  # for your Loader, in place of its split; all else as it is'
    if _on_gpu(at):  # "cuda" is the current one: a rank's own where the script says torch.cuda.set_device
        on_gpu = ', device="cuda"' if at.now.ranks == 1 else ', device=f"cuda:{local_rank}"'
    if _fits(loader):
        return f'{imported}Loader.like(your_dataloader, "OUT/train"{workers}{on_gpu})'
    sizes = f", image_size={size}" if (size := image_size(loader)) else ""
    sizes += f", batch_size={loader.batch_size}" if loader.batch_size else ""
    gives, more = "uint8 NHWC", ""
    if any("float" in kind for kind in loader.batch_dtypes):
        on_gpu = on_gpu or ', device="cpu"'
        more = ",\n                mean=MEAN, std=STD"
        gives = "floats NCHW: (x / 255 - MEAN) / STD, three numbers each, 0 and 1 where you do not normalise"
        if [len(of) for of in loader.normalize] == [3, 3]:
            mean, std = (", ".join(f"{value:.6g}" for value in of) for of in loader.normalize)
            more, gives = f",\n                mean=({mean}), std=({std})", "floats NCHW, normalised as yours"
    if own_transforms(at):
        more += ",\n                transform=yours"
        gives += "; yours(image_HWC uint8) -> the same size"
    sizes = sizes if trains(at) else f", train=False{sizes}"
    if loader.augment:
        imported = imported.replace("Loader\n", "Augment, Loader\n", 1)
        words = loader.augment if trains(at) else {**loader.augment, "train": False}
        words = words if mirrors(loader) or not words.get("train", True) else {**words, "flip": 0}
        told = (f"{name}={_word(value, size)}" for name, value in words.items() if name != "scale" or trains(at))
        more = f",\n                augment=Augment({', '.join(told)}){more}"
    return f'{imported}Loader("OUT/train"{sizes}, num_workers={count}{on_gpu}{more})\n# {gives}'


def _word(value: Any, size_px: int | None) -> str:
    """Of `Augment`; a share as the script has it, 224/256, where it is known what it gives."""
    if not isinstance(value, float):
        return str(value)
    return f"{size_px}/{round(size_px / value)}" if size_px and value != 1 else f"{value:g}"


def _needs(at: Situation, loader: LoaderSeen, trial: Trial) -> str:
    if _fits(loader):
        return ""
    tars = any(path.endswith(".tar") for path in at.recording.sample_paths)
    classes = "classes that are folders, or told by --source-option ground_truth=FILE"
    needs = [] if loader.folder else ["a class (.cls, .json) beside each picture" if tars else classes]
    if unheld(loader) and trial.loader != "feedline":
        needs.append("all else that a batch has made of a picture and its class")
    elif not unheld(loader) and loader.batch_shapes and all(len(shape) > 2 for shape in loader.batch_shapes):
        needs.append("batches without names or paths: shards hold pictures and classes")
    if trial.loader == "feedline" and loader.refused is None:
        own = "your dataset's own code, if it has some, moved over by hand: not checked whether Loader.like takes it"
        needs.append(own)
    elif trial.loader == "feedline" and loader.refused is not None:
        refused = loader.refused.partition(": keep ")[0]  # your transforms and Shards, which are another way
        needs.append(f"your own code moved over by hand, for Loader.like says: {refused}")
    return ", and ".join(needs)


def _changes(at: Situation, loader: LoaderSeen, trial: Trial) -> Iterable[str]:
    loss = f", re-encoded ({trial.psnr_db:.0f} dB)" if trial.psnr_db is not None else ""
    size, crop_px = trial.size_px, image_size(at.measured.loader)
    given = f"what the model gets ({crop_px} px)" if crop_px else "what the model gets"
    if loader.stretched and trial.codec != "as-is":
        if loss:
            yield f"pictures are stored at {size} x {size} px{loss}"
    elif trial.codec == "raw":
        yield f"pictures are stored as squares of {size} px: what lies outside is lost, {given} is made of them"
    elif trial.codec != "as-is":
        smaller = "" if loader.augment else f": {given} is made of smaller ones"
        yield f"pictures are stored at {size} px of the short side{loss}{smaller}"
    if trial.loader == "feedline" and not _fits(loader):
        if loader.augment:
            still = not (trains(at) and loader.augment.get("train", True))
            what = "whole pictures" if loader.augment.get("whole") == 1 else "the middles" if still else "crops"
            what += " stretched to squares" if loader.stretched else ""
            mirrored = f", {'none' if still else 'half'} of them mirrored" if mirrors(loader) else ""
            yield f"{what} are RGB and bilinear{mirrored if trains(at) else ', in the order of the shards'}"
        else:
            yield OWN_CROPS if trains(at) else MIDDLES
        if trains(at) and loader.sampler and loader.sampler not in (loader.refused or ""):
            yield f"samples come in random order, each once an epoch, without your {loader.sampler}"


def _from_storage(at: Situation, trial: Trial) -> float | None:
    """samples/s of a trial's samples: at the bytes/s that storage gives to a loader that reads ahead, where the run
    waits for it; at those that the cold leg got. None where they are read from memory."""
    storage, size = at.measured.storage, trial.bytes_per_sample
    if trial.loader == "feedline" and storage.limits and storage.reads is not None and size:
        return storage.reads.best_random_bytes_per_s / size
    cold, now_bytes = _slower_when_cold(at), at.recording.costs.read_bytes
    size = trial.bytes_per_sample if trial.codec != "as-is" else now_bytes
    whole = size * (at.dataset_samples or 0) if size and trial.codec != "as-is" else _dataset_bytes(at)
    if cold is None or not now_bytes or not size or not _outgrows_memory(at, whole):
        return None
    return cold.value * now_bytes / size


def _slower_when_cold(at: Situation) -> Rate | None:
    """The cold leg's rate, where it is clearly below the measured one: storage is the limit then."""
    cold = at.measured.rates.cold
    return cold if cold is not None and cold.high < at.rate.low else None


def _room(at: Situation, *kinds: str) -> tuple[float, str]:
    """Bytes of the least of these of the host, and its name: memory leaves three tenths to programs."""
    share = {"memory": 0.7, "cgroup_memory": 0.7, "free_shared_memory": 1.0}
    known = ((at.recording.host.get(f"{kind}_bytes"), kind) for kind in kinds)
    rooms = [(share[kind] * float(size), kind) for size, kind in known if size]
    return min(rooms, default=(math.inf, "memory"))


def _dataset_bytes(at: Situation) -> float:
    """What all samples read; where the run has read its files more than once, no more than these hold: an archive
    that is opened for each sample has its list of members read again each time."""
    each, files = at.recording.costs.read_bytes or 0.0, at.recording.files_bytes
    whole, seen = each * (at.dataset_samples or 0), sum(step.samples for step in at.recording.measured())
    return min(whole, files) if files and each * seen > AGAIN * files else whole


def _outgrows_memory(at: Situation, whole_bytes: float) -> bool:
    return whole_bytes > _room(at, "memory", "cgroup_memory")[0]


def without_reading(at: Situation) -> Iterable[Change]:
    """Memory and faster storage both take away the time blocked in reads, and where that is what is waited for, what
    reads cost by themselves."""
    if unwatched(at):
        return
    now, storage, folder = at.now, at.measured.storage, folder_of(at, "DATA")
    left_s, error_s = max(0.0, now.worker_s - storage.blocked_s), storage.error * now.worker_s
    if storage.limits:  # reads' own CPU time goes, too
        left_s, error_s = at.without_reads_s
    share = 1.0 - left_s / now.worker_s if now.worker_s else 0.0
    waits = min(share, storage.blocked_s / now.worker_s) if now.worker_s else 0.0
    reason = f"waiting in reads takes {units.percent(waits)} of {busy_time(at)}"
    then, why = now, NO_WAIT if share >= SURE else Vain(reason)
    if share >= SURE and not at.hardly_waits:
        cpu_s = min(now.worker_cpu_s, left_s)
        then = replace(now, worker_s=left_s, worker_cpu_s=cpu_s, storage_samples_per_s=None)
        why = reason
    least_s = max(left_s, 0.1 * now.worker_s)
    error = math.hypot(0.05, error_s / least_s) if least_s else 0.05
    whole = _dataset_bytes(at)
    room, kind = _room(at, "memory", "cgroup_memory", "free_shared_memory")
    no_room = whole > room and not isinstance(why, Vain)
    memory = f"the {units.size(room)} that there are of {kind.replace('cgroup', 'its').replace('_', ' ')}"
    needs = f"{units.size(whole)} of memory" if whole else "memory for the whole dataset"
    first = not any(begun.epoch for begun in at.recording.passes)
    if storage.limits and whole and first and not _outgrows_memory(at, whole):
        later = f"; its {units.size(whole)} fit into memory, from where later epochs may read them anyway"
        why = type(why)(why + later)
    yield Change(family="cache", remedy="cache in RAM", then=now if no_room else then, effort=Effort.CODE,
                 why=Vain(f"{units.size(whole)} of data do not fit into {memory}") if no_room else why,
                 command=f"cp -r {folder} /dev/shm/  # and give the script that path", needs=needs, extra_error=error,
                 cost="a copy before each training", target="read")  # fmt: skip
    if cold := _slower_when_cold(at):
        when = "in a first epoch and all others" if _outgrows_memory(at, whole) else "in a first epoch"
        from_storage = f"; from storage itself, as {when}, the loop runs at {units.rate(cold.value)}"
        why = type(why)(why + from_storage)
    yield Change(family="storage", remedy="faster storage", then=then, effort=Effort.HARDWARE, why=why,
                 command=f"rsync -a {folder} /local/  # a disk of this machine; and give the script that path",
                 needs="a faster disk, or one nearer", extra_error=error, target="read")  # fmt: skip


REMEDIES: tuple[Remedy, ...] = (prepared, without_reading)
