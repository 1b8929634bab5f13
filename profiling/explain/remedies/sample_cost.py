"""Remedies for what a sample costs the script's own workers: their stages, a slow one, what they hand over. Pure.

What the user's own code costs is predicted as if it cost nothing, the upper bound of mending it. What a library does
for everyone (decoding, its own collate function) is predicted at half its cost, as is typical; its transforms at what
another library was measured to leave of them (benchmarks/NOTES.md), and as an upper bound where none does better.
"""

import math
import re
from collections.abc import Iterable
from dataclasses import replace

from feedline.profiling.explain.measure.situation import Situation
from feedline.profiling.explain.measure.throughput import Throughput
from feedline.profiling.explain.measure.workers import BUSY_STAGES, busiest
from feedline.profiling.explain.remedies import cures
from feedline.profiling.explain.remedies.cures import Cure
from feedline.profiling.explain.remedies.own_loader import LOCKED, NO_WAIT, idle_workers, iterates, share_of, surely
from feedline.profiling.explain.remedies.remedy import (
    AT_MOST,
    Change,
    Effort,
    Remedy,
    Vain,
    busy_time,
    drafted_px,
    error_between,
    image_size,
    lines_of,
    native_crops,
    unheld,
    without_handover,
)
from feedline.profiling.record import units
from feedline.profiling.record.journal import A_FILE_EACH
from feedline.profiling.record.recording import LoaderSeen

NOTABLE = 0.15  # share of a worker's busy time below which a stage is not worth a word
CAUSE = 0.3  # share from which the user's own code is what holds the workers up
DRAFT_ERROR = 0.05  # of what draft() leaves of decoding, measured on some of the pictures
HARDLY_LESS = 0.95  # what it leaves of it where it does nothing
MOVING_S_PER_BYTE = 3e-9
"""The most that collating and sending a byte costs: three passes over it at about 1 GB/s, fresh pages included."""
FLOAT_S_PER_BYTE = 1e-9
"""Assumed of making a float picture of uint8 and normalising it on the CPU: four passes over it at about 4 GB/s."""
REPLACED = {
    "compose", "randomresizedcrop", "resizedcrop", "resize", "centercrop", "crop", "randomhorizontalflip", "hflip",
    "horizontalflip", "transpose", "totensor", "toimage", "piltotensor", "topuretensor", "convertimagedtype",
    "convertdtype", "todtype", "normalize", "convert", "open",
}  # fmt: skip
"""Transforms that feedline's loader does itself, lower case and without _: all others are the user's own."""
TORCHVISION_FILES = {
    "_functional_pil.py", "_functional_tensor.py", "_geometry.py", "_misc.py", "_color.py", "_type_conversion.py",
    "_deprecated.py", "autoaugment.py", "_auto_augment.py", "Image.py", "ImageOps.py", "ImageEnhance.py",
    "ImageFilter.py",
}  # fmt: skip
"""In which its transforms work, Pillow's among them; albumentations has none of these names."""
LIBRARIES = TORCHVISION_FILES | {"functional.py", "transforms.py", "_transform.py"}
"""Files in which libraries have functions of these names."""
PILLOWS = ("Image.py:", "ImageFile.py:", "JpegImagePlugin.py:")
TO_ARRAY = ("Image.py:Image.tobytes", "Image.py:Image.__array_interface__")  # whoever asks for a picture's
OF_ARRAYS = {"transforms_interface.py", "composition.py", "functions.py"}  # albumentations' and albucore's
TORCHS_COLLATE = "collate.py:"
OPENS = re.compile(r":(ZipFile\.(__init__|_RealGetContents)|TarFile\.(__init__|open|next|getmembers)|make_fid)$")
"""What reads an archive's list of members, or an HDF5 file's head."""
HDF5S = "dataset.py:Dataset.__getitem__"
"""Where h5py reads of a dataset, and unpacks its chunks whole; others have a file and a class of these names, too."""
HDF5_FILES = (".h5", ".hdf5", ".hdf", ".he5", ".h5ad", ".nc", ".mat")
FEW_ARCHIVES = 3
ARCHIVES = (".h5", ".hdf5", ".npz", ".zip", ".tar", ".tgz", ".tar.gz")
NAMED = {"blocked": "no waiting outside", "lock": "no lock between workers"}
"""Remedies that are not called after their stage."""
NO_JPEGS = (".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".npy", ".npz")
TO_FLOATS, TO_BYTES = {"totensor", "convertimagedtype", "todtype", "normalize"}, {"toimage", "piltotensor"}
RESIZING = {"resize", "resizedcrop", "randomresizedcrop"}
SMALL_PX = 64  # up to which v2 takes longer for all of them
DRAWS = re.compile("random|jitter|augment|augmix|erasing|cutout|dropout|noise|trivial")
"""In a transform's name: it is another one in each epoch."""
TORCHVISION_NAMES = REPLACED - {"open", "convert"} | {*cures.OPENCVS} | {
    "randaugment", "autoaugment", "trivialaugmentwide", "augmix", "randomrotation", "randomaffine", "randomcrop",
    "randomerasing", "randomposterize", "randomautocontrast", "randominvert", "elastictransform",
}  # fmt: skip
"""Its transforms, lower case: whose lines nobody changes."""
MANY_TENSORS = 64  # in a batch of torch's own collating, from which lists are taken apart


def own_transforms(at: Situation) -> dict[str, float]:
    """Seconds per sample of a worker with a core to itself, by transforms that feedline's loader does not have: of
    another name, or a function of that name in a file that is no library's. feedline's own tells no names in that
    stage, which is its own cropping where it was given none, and else all taken for the user's."""
    seconds, whole_s = at.measured.workers.transforms, at.measured.workers.stage_alone_s.get("transform", 0.0)
    total_s, theirs, loader = sum(seconds.values()), _theirs(at), at.measured.loader
    if loader is not None and loader.kind == "feedline" and not loader.transforms:
        return {}
    if not total_s:
        return {"transform": whole_s} if whole_s else {}
    ours = REPLACED | ({"randomcrop"} if loader is not None and loader.augment else set())
    own = {name: s for name, s in seconds.items() if name in theirs or _plain(name) not in ours}
    return {name: whole_s * s / total_s for name, s in own.items()}


def _theirs(at: Situation) -> set[str]:
    """Names of functions and classes that are at work in files which are no library's."""
    places = (name.partition(" ")[2].partition(":") for name in at.measured.workers.functions)
    return {name for file, _, function in places if file and file not in LIBRARIES for name in function.split(".")}


def _is_a_librarys(at: Situation, name: str) -> bool:
    """A transform that was seen at work in a library's file, and in none of the script's."""
    places = (one.partition(" ")[2].partition(":") for one in at.measured.workers.functions)
    seen = {file for file, _, function in places if function.partition(".")[0] == name}
    return seen <= LIBRARIES if seen else _plain(name) in TORCHVISION_NAMES


def _of_transform(at: Situation, name: str) -> Cure | None:
    """What does as torchvision's transform of that name, in less time; None where nothing was measured to."""
    kind, small = _plain(name), (image_size(at.measured.loader) or 256) <= SMALL_PX
    places = {one.split(" ", 1)[1] for one in at.measured.workers.functions if one.startswith("transform ")}
    files = {place.partition(":")[0] for place in places if not place.startswith(TO_ARRAY)}
    torchs = not places or bool(files & TORCHVISION_FILES) or any("to_tensor" in place for place in places)
    if not torchs or files & OF_ARRAYS or name in _theirs(at):
        return None
    alone = at.measured.loader is None or not unheld(at.measured.loader)  # several may be drawn together
    once = small and alone and not any(DRAWS.search(_plain(one)) for one in at.measured.workers.transforms)
    if kind in TO_FLOATS or (kind in TO_BYTES and once):
        return cures.MADE_ONCE if once else cures.TENSORS
    pillows = not places or any(place.startswith("Image.py:Image.resize") for place in places)
    theirs = all(_plain(one) in REPLACED for one in at.measured.workers.transforms)  # of others v2 loses more
    simd = "pillow-simd" in at.recording.host.get("versions", {})
    if kind in RESIZING and theirs and pillows and not small and not simd:
        return cures.RESIZED
    if kind in cures.ONE_OPERATION:
        return cures.ONE_OPERATION[kind][small]
    if kind not in cures.OPENCVS:
        return None
    other, *left = cures.OPENCVS[kind]
    line = f"made = albumentations.{other}  # once; what is left out is another than torchvision's\n"
    line += 'made(image=numpy.asarray(image))["image"]  # while it is no tensor'
    return Cure(cures.ON_ARRAYS, cures.ONE_THREAD + line, left[small], cures.DIFFERS, cures.ALBUMENTATIONS)


def _plain(name: str) -> str:
    return name.replace("_", "").lower()


def place_of(at: Situation, stage: str, transform: str = "transform") -> str:
    """Where the workers are busiest in a stage; of a transform by its name, in what is called like it."""
    functions = at.measured.workers.functions
    if stage == "transform" and transform != stage:
        functions = {name: s for name, s in functions.items() if transform in re.split(r"[:.]", name)}
    return busiest(functions, stage)


def own_collate(at: Situation) -> bool:
    """Also where nothing says whose it is: what torch calls for a batch (fetch.py) and is not its own."""
    return not _is_ours(at) and not place_of(at, "collate").startswith(TORCHS_COLLATE)


def _is_ours(at: Situation) -> bool:
    return at.measured.storage.kind.reads == "ahead"


def slow_worker(at: Situation) -> Iterable[Change]:
    workers = at.measured.workers
    if workers.slow is None or not at.now.workers:
        return
    worker, factor, error = workers.slow
    cpu_s = min(at.now.worker_cpu_s, workers.even_s)
    place = busiest(worker.functions, *BUSY_STAGES)
    yield Change(
        family="slow-worker", remedy=f"mend worker {worker.worker}", target=place or f"worker {worker.worker}",
        then=replace(at.now, worker_s=workers.even_s, worker_cpu_s=cpu_s, contention={}), effort=Effort.CODE,
        why=f"it takes {units.times(factor)} as long per sample as the others, and batches are taken in turn"
        + (f"; most of it in {place}" if place else ""),
        command=lines_of(at.recording, place.partition(" ")[0].rpartition(":")[2]),
        needs=f"what only worker {worker.worker} does (get_worker_info().id, its files) left out",
        extra_error=math.hypot(0.05, error / factor), cause=True,
    )  # fmt: skip


def cheaper_stage(at: Situation) -> Iterable[Change]:
    """The top stage (or its top transform), and the lock where there is one."""
    workers = at.measured.workers
    if not workers.alone_s or not at.now.worker_s or workers.slow is not None:
        return  # where one worker is slow, its stages are not those of all
    # Other reading is for caches and storage to cure; of feedline's loader only this is the user's code.
    place, computed_s = place_of(at, "read"), workers.stage_cpu_s.get("read", 0.0)
    unpacks = _of_hdf5(at) and computed_s >= 0.5 * workers.stage_alone_s.get("read", 0.0)
    curable_read = (unpacks or OPENS.search(place)) and not _one_each(at)
    curable = [name for name in BUSY_STAGES if name != "other"]
    if _is_ours(at):
        curable = ["blocked", "lock", *(["transform"] if own_transforms(at) else [])]
    stages = {name: surely(at, name) for name in curable if name != "read" or curable_read}
    top = max(stages, key=lambda name: stages[name])
    if top != "send" and idle_workers(at):
        return
    for stage, share in stages.items():
        if (stage == top and share >= NOTABLE) or (stage == "lock" and share >= LOCKED):
            yield _cheaper(at, stage)


def _of_hdf5(at: Situation) -> bool:
    files = any(path.endswith(HDF5_FILES) for path in at.recording.sample_paths)
    return files and place_of(at, "read") == HDF5S


def _one_each(at: Situation) -> bool:
    """Whether each sample is an archive of its own, as far as those tell that were seen open, a few of which are not
    one for each: none can be kept open for another."""
    paths, changing = at.recording.sample_paths, at.recording.changing_files
    archives = sum(path.endswith(ARCHIVES) for path in paths)
    several = len(paths) > FEW_ARCHIVES and (changing is None or changing > A_FILE_EACH)
    return several and archives > 0.5 * len(paths)


def _cheaper(at: Situation, stage: str) -> Change:
    # Without workers none of them holds the lock: it is another thread that is waited for.
    cured = "blocked" if stage == "lock" and not at.now.workers else stage
    target, part, own = _whose(at, stage)
    cure, own = _cure(at, cured, target, own)
    share, left = part * share_of(at, stage), 0.0 if own else cure.left
    once = cure is cures.MADE_ONCE  # no sample is read, decoded or transformed again
    if once:
        share = share_of(at, *(name for name in BUSY_STAGES if name not in ("collate", "send")))
    error = min(cure.error, left / 2)
    least, then, most = (_with_left(at, stage, share, each) for each in (left + error, left, left - error))
    place = place_of(at, stage, target)
    librarys = stage == "transform" and _is_a_librarys(at, target)  # whose lines nobody changes
    where = f" in {place}" if place and own and not librarys else ""
    hint = f" ({cure.hint})" if cure.hint and not (own and stage in ("transform", "collate")) else ""
    given = f"{units.percent(left)} of it is left, as {cure.known}" if left else AT_MOST
    what = "making samples" if once else "it"
    why: str = f"{what} takes {units.percent(share)} of {busy_time(at)}{where}: {given}{hint}"
    if left > HARDLY_LESS:
        why = Vain("draft() decodes yours no faster: they are no JPEGs, or too small for it")
    elif cured == "decode" and not own and native_crops(at.measured.loader, at.measured.workers.transforms):
        why = Vain("draft() would make the pictures smaller that the crops are cut out of")
    lines = own and not librarys and cured != "lock"
    named = f" {target}" if stage == "transform" and target != stage else ""
    mends = stage != "decode" and (own or (cure.command != "" and not left))
    return Change(
        family="send" if stage == "send" else "stage",
        remedy="tensors made once" if once else NAMED.get(cured, f"cheaper {stage}") + named,
        target=target, then=then, effort=Effort.CODE, why=NO_WAIT if at.hardly_waits else why,
        command=lines_of(at.recording, _callable(at, stage, target)) if lines
        else cure.command.replace("PX", str(drafted_px(image_size(at.measured.loader)))),
        changes="" if own else cure.changes, needs="" if own else cure.needs,
        extra_error=math.hypot(0.08, error_between(least, most)), at_most=not left,
        cost=f"{_all_made(at)} as the script starts, for all samples" if once else "",
        cause=mends and part * surely(at, stage) >= CAUSE,
        ceiling_times=without_handover(at) if stage == "send" else 1.0,
    )  # fmt: skip


def _all_made(at: Situation) -> str:
    """What the samples of a whole dataset take, one after the other."""
    samples, sample_s = at.dataset_samples, at.measured.workers.alone_s
    return units.seconds(samples * sample_s) if samples and sample_s else "their time"


def _cure(at: Situation, stage: str, target: str, own: bool) -> tuple[Cure, bool]:
    """What mends a stage, and whether that is the user's own code."""
    loader, place = at.measured.loader, place_of(at, stage)
    if stage == "transform" and target != stage and (found := _of_transform(at, target)) is not None:
        return found, False
    if stage == "decode" and place and not place.startswith(PILLOWS):  # pictures or not
        return Cure(), True
    if stage == "decode":
        return _draft(at), own
    if stage == "read" and _of_hdf5(at):
        return cures.CHUNKS, own
    apart = loader is not None and (loader.batch_tensors or 0) >= MANY_TENSORS
    if stage == "collate" and apart and not own and not at.now.workers:
        return cures.ONE_ARRAY, own
    if stage == "collate" and (iterates(at) or at.now.ranks > 1):  # no indices; each rank has indices of its own
        return Cure(), own
    return cures.CURES.get(stage, Cure()), own


def _draft(at: Situation) -> Cure:
    loader, paths, cure = at.measured.loader, at.recording.sample_paths, cures.CURES["decode"]
    if loader is not None and loader.dataset == "ImageFolder":
        cure = cure._replace(command=cures.DRAFTED)
    left = next((one.draft_left for one in at.recording.trials if one.draft_left is not None), None)
    if left is None and paths and all(path.lower().endswith(NO_JPEGS) for path in paths):
        left = 1.0
    known = "was measured on some of yours"
    return cure if left is None else cure._replace(left=left, known=known, error=DRAFT_ERROR, needs="")


def _with_left(at: Situation, stage: str, share: float, left: float) -> Throughput:
    """Where so much is left of this share of a sample's time. What is sent is unpickled: two ends of one thing."""
    handover_s = at.now.handover_s * (left if stage == "send" else 1.0)
    left_s = max(0.0, at.now.worker_s * (1 - share * (1 - left)))
    cpu_s = at.now.worker_cpu_s - (at.now.worker_s - left_s) * (stage not in ("blocked", "lock"))
    return replace(at.now, worker_s=left_s, worker_cpu_s=max(0.0, min(cpu_s, left_s)), contention={},
                   handover_s=handover_s)  # fmt: skip


def _whose(at: Situation, stage: str) -> tuple[str, float, bool]:
    """(what it is about, its part of the stage, whether it is the user's own)."""
    seconds = at.measured.workers.transforms
    if stage == "transform" and (total_s := sum(seconds.values())):
        top = max(seconds, key=lambda transform: seconds[transform])
        return top, seconds[top] / total_s, top in own_transforms(at)
    if stage in ("blocked", "lock"):
        return place_of(at, stage), 1.0, True
    own = stage == "transform" or stage not in cures.CURES or (stage == "collate" and own_collate(at))
    return stage, 1.0, own


def _callable(at: Situation, stage: str, target: str) -> str:
    """What `--lines-of` takes: a transform by its name, a class by the method that is called; else where the workers
    are busiest. "" where that has no name."""
    if stage == "transform" and target != stage:
        seen = [name.rpartition(":")[2] for name in at.measured.workers.functions if name.startswith("transform ")]
        method = next((function for function in seen if function.startswith(f"{target}.")), f"{target}.__call__")
        return method if target[:1].isupper() and "." not in target else target
    place = place_of(at, stage)
    return "collate_fn" if place.startswith("fetch.py:") else place.partition(" ")[0].rpartition(":")[2]


def lighter_batches(at: Situation) -> Iterable[Change]:
    """Batches whose objects take the main thread long to unpickle."""
    if not at.measured.unpickling_limits:
        return
    left_s = max(0.0, at.now.worker_s - at.measured.workers.stage_alone_s.get("send", 0.0))
    then = replace(at.now, handover_s=0.0, worker_s=left_s, worker_cpu_s=min(at.now.worker_cpu_s, left_s))
    share = units.percent(at.measured.trainer.unpickle_share)
    why = f"the training process spends {share} of the time unpickling batches ({cures.LIGHTER})"
    yield Change(family="send", remedy="cheaper send: lighter batches", target="send", then=then, effort=Effort.CODE,
                 why=why, command=cures.CURES["send"].command, extra_error=0.08, cause=True, at_most=True,
                 ceiling_times=without_handover(at))  # fmt: skip


def uint8(at: Situation) -> Iterable[Change]:
    """Four times fewer bytes to collate, send, unpickle and copy; made float and normalised on the device."""
    loader, stages, now = at.measured.loader, at.measured.workers.stage_alone_s, at.now
    if loader is None or _is_ours(at) or not any("float32" in kind for kind in loader.batch_dtypes):
        return
    if not _of_bytes(at, loader):
        return
    # Only what goes with the bytes gets cheaper: a collate function with costs of its own keeps them.
    per_sample = (loader.batch_bytes or 0) / at.batch_samples
    moving_s = min(stages.get("collate", 0.0) + stages.get("send", 0.0), per_sample * MOVING_S_PER_BYTE)
    saved_s, copy_s = min(now.worker_s, 0.75 * moving_s), 0.75 * (at.measured.trainer.copy_s or 0.0)
    made_s = per_sample * FLOAT_S_PER_BYTE if at.measured.machine.on_cpu else 0.0  # float again
    then = replace(now, worker_s=now.worker_s - saved_s, worker_cpu_s=max(0.0, now.worker_cpu_s - saved_s),
                   handover_s=now.handover_s / 4, step_s=max(0.0, now.step_s - copy_s) + made_s,
                   trainer_cpu_s=now.trainer_cpu_s + made_s)  # fmt: skip
    why: str = f"collating, sending and copying a quarter of {units.size(loader.batch_bytes)} a batch"
    if saved_s < 0.03 * now.worker_s and copy_s + 0.75 * now.handover_s - made_s < 0.03 * now.step_s:
        why = Vain("collating, sending and copying batches takes next to no time")
    yield Change(family="uint8", remedy="uint8 batches", then=then, effort=Effort.CODE, why=why, extra_error=0.05,
                 command="PILToTensor()  # in place of ToTensor() and Normalize(…)\n"
                 "images = (images.float() / 255 - mean) / std  # in the loop, on the device",
                 cost="normalise on the device", settings={"dtype": "uint8"},
                 ceiling_times=math.inf if copy_s else without_handover(at))  # fmt: skip


def _of_bytes(at: Situation, loader: LoaderSeen) -> bool:
    """Whether its floats were made of pictures: of such a shape, and of three colours, decoded, or turned by a
    transform that makes floats. Spectrograms and volumes are floats from the beginning."""
    shapes, workers = [shape for shape in loader.batch_shapes if len(shape) == 4], at.measured.workers
    turned = any(_plain(name) in TO_FLOATS for name in [*loader.transforms, *workers.transforms])
    coloured = any(3 in (shape[1], shape[3]) for shape in shapes)
    made = turned or coloured or workers.stage_alone_s.get("decode", 0.0) > 0
    return made and (bool(shapes) or not loader.batch_shapes)


REMEDIES: tuple[Remedy, ...] = (slow_worker, cheaper_stage, lighter_batches, uint8)
