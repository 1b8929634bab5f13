"""What if the samples were prepared? A few hundred of the user's own, decoded, resized, re-encoded, and loaded again.

For every form (the files as they are, JPEG of a little more than the script crops, …): bytes per sample, the CPU time
to prepare one, what it loses (PSNR of the re-encoded against the resized pixels), and the CPU time to load one for
training with feedline's loader, from real shards in a temporary folder; where it is asked for, with the usual PIL
transforms too, as the script's own loader would. Rounds visit all forms in turn, so that a busy moment hits none
alone; the median of the rounds counts. The user's own transforms take no part: what they take is known from the
workers, and `profiling.explain.remedies` adds it to whatever loads the samples.

The result is a list of plain `Trial`s for `profiling.explain.predict`. Costs a few seconds of one core, and nothing
where no form could help.
"""

import io
import math
import statistics
import tarfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from feedline.pipeline.base.errors import FeedlineError
from feedline.pipeline.base.files import read_bounded, write_atomically
from feedline.pipeline.base.scratch import scratch_folder
from feedline.pipeline.base.settings import IMAGENET_MEAN, IMAGENET_STD
from feedline.pipeline.base.text import count_of
from feedline.pipeline.codecs.pillow import NAMES
from feedline.pipeline.draw.regions import Augment
from feedline.pipeline.format import manifest as shards
from feedline.pipeline.format import shard_tar
from feedline.preprocess.fingerprint import fingerprint
from feedline.preprocess.picture import BadImage, Output, Prepared, Preparer
from feedline.profiling.explain.measure.situation import measure, situation
from feedline.profiling.explain.remedies.own_loader import unwatched
from feedline.profiling.explain.remedies.remedy import drafted_px, image_size, mirrors
from feedline.profiling.record.recording import Recording, Trial

MARGIN = 8 / 7  # of the stored short side over the crop: 256 px for 224, as everybody has it
STEP_PX = 32
LARGER = 3  # times what is cropped: such a picture may hold several samples
SEVERAL = 2  # samples for each picture that was seen, all of these being known, from which a picture holds several
MOST_RAW_PX = 128  # larger squares of pixels take more of the disk than most originals
PSNR_SAMPLES = 24
DRAFTED = 48  # samples, about, of which it is tried what `Image.draft` spares
MOST_BYTES = 1 << 26  # what is larger is taken for no image
MOST_BYTES_IN_ALL = 1 << 28  # they stay in memory, as do their forms
PASSES_S = 0.1
"""Loading is timed over whole passes, as many as fill this: one over small raw samples is too short for the clock."""


def what_if(recording: Recording, *, forms: Sequence[Output] | None = None, **options: Any) -> list[Trial]:
    """Trials on the samples a recording names, at the size its training loop asks for; [] where there are none.
    Without `forms`, those that fit its crops, and none where `needless` says why; by the usual PIL transforms, too,
    where feedline's loader does not take those of the script over. Options are those of `trials`."""
    loader, crop_px = recording.train_loader, image_size(recording.train_loader) or 224
    known: dict[str, Any] = dict(loader.augment) if loader is not None else {}
    known.setdefault("train", known.get("whole") != 1 or mirrors(loader))
    augment = Augment(**known)
    if forms is None:
        forms = () if needless(recording) else forms_for(crop_px, augment)
        options = {"script_loader": loader is not None and bool(loader.refused), **options}
    return trials(own_paths(recording), crop_px, forms=forms, augment=augment, **options)


def own_paths(recording: Recording) -> list[str]:
    """Files seen open that its training loader reads; where another one trains beside it, those of its folder."""
    loader = recording.train_loader
    beside = any(loader is not None and one.phase == "train" and one.dataset != loader.dataset
                 for one in recording.loaders)  # fmt: skip
    if loader is None or not beside:
        return recording.sample_paths
    folder = loader.folder and Path(recording.script.cwd, loader.folder)
    return [path for path in recording.sample_paths if folder and Path(path).is_relative_to(folder)]


def forms_for(crop_px: int, augment: Augment) -> tuple[Output, ...]:
    """None has less resolution than the crop; they are as large as the script's own Resize, where it has one."""
    share = augment.of_resized
    stored_px = round(crop_px / share) if share else math.ceil(MARGIN * crop_px / STEP_PX) * STEP_PX
    how: dict[str, Any] = {"resize": "stretch", "filter": "bilinear", "enlarge": True} if augment.whole else {}
    names = ("jpeg", "planes") if stored_px % 2 == 0 else ("jpeg",)  # planes would lose a column and a row
    sized = [Output(codec=codec, size_px=stored_px, **how) for codec in names]
    square: dict[str, Any] = {"codec": "raw", "resize": "square"} | how
    raw = [Output(size_px=stored_px, **square)] if stored_px <= MOST_RAW_PX else []
    return (Output(codec="keep"), *sized, *raw)


def needless(recording: Recording) -> str:
    """Why no trial could show anything that helps; "" where one may."""
    at, loader = situation(measure(recording)), recording.train_loader
    if at is None or loader is None:
        return "no rate was measured to compare with"
    if unwatched(at):
        return "its batches come from no loader that could be replaced by one"
    files, samples = len(recording.sample_paths), at.dataset_samples or 0
    several = recording.files_bytes is not None and SEVERAL * files < samples and not loader.sampler
    if several and any(is_image(Path(path), LARGER * (image_size(loader) or 224)) for path in own_paths(recording)):
        return f"its {files:,} files hold {samples:,} samples, and shards would have one of each file"
    return "as far as was seen, the loop hardly waits for data" if at.hardly_waits else ""


def why_none(recording: Recording) -> str:
    """For a recording that gave no trials."""
    if reason := needless(recording):
        return f"prepared shards were not tried: {reason}"
    seen = len(recording.sample_paths)
    if seen and not own_paths(recording):
        return "prepared shards were not tried: several loaders train, and whose files were seen is not known"
    if seen and not any(Path(path).exists() for path in recording.sample_paths):
        return f"nothing is predicted for prepared shards: {count_of(seen, 'file')} seen to be opened are gone"
    opened = f"of {count_of(seen, 'file')} seen to be opened none is" if seen else "the script was not seen to open"
    return (
        f"nothing is predicted for prepared shards: {opened} an image, or a tar of them, that can be read here "
        "(LMDB, HDF5 and the like are not)"
    )


def trials(
    paths: Sequence[str | Path],
    image_size_px: int,
    *,
    forms: Sequence[Output],
    samples: int = 200,
    rounds: int = 3,
    script_loader: bool = False,
    augment: Augment | None = None,
) -> list[Trial]:
    """One trial per form and loader, on at most so many samples. Files that are no images (nor tars of images) are
    passed over. `script_loader`: also with the usual PIL transforms, where torchvision is installed. `augment`: what
    is loaded of a picture."""
    originals = [data for data in samples_of(paths, samples) if is_usable(data)] if forms else []
    if not originals:
        return []
    augment = augment or Augment()
    transform = usual_transform(image_size_px, augment) if script_loader else None
    with scratch_folder("whatif") as folder, ExitStack() as stack:
        made = [prepare_form(originals, form, folder) for form in forms]
        ways = [(form, *way) for form in made for way in ways_to_load(form, image_size_px, augment, transform, stack)]
        costs: list[list[float]] = [[] for _ in ways]
        for turn in range(rounds + 1):
            for (_, _, load), measured in zip(ways, costs, strict=True):
                with suppress(FeedlineError):  # it cannot be loaded in this way
                    cost = cpu_s_per_sample(load)
                    measured.extend([cost] if turn else [])  # the first one warms up
    left = draft_left(originals, drafted_px(image_size_px))
    tried = [(form, who, measured) for (form, who, _), measured in zip(ways, costs, strict=True) if measured]
    return [trial(*one, left) for one in tried]


# --- the samples --------------------------------------------------------------------------------------


def samples_of(paths: Sequence[str | Path], most: int) -> Iterator[bytes]:
    """The bytes of up to `most` images, and of `MOST_BYTES_IN_ALL`, from image files and from tars, evenly over the
    paths. Their contents say what they are."""
    left_bytes = MOST_BYTES_IN_ALL
    for data in found_in(paths, most):
        if (left_bytes := left_bytes - len(data)) < 0:
            return
        yield data


def found_in(paths: Sequence[str | Path], most: int) -> Iterator[bytes]:
    files = [path for path in map(Path, dict.fromkeys(map(str, paths))) if path.is_file()]
    images = [path for path in files if is_image(path)]
    for path in images[:: max(1, len(images) // most)][:most]:
        with suppress(OSError):  # gone since the script ran, or too large
            yield read_bounded(path, MOST_BYTES)
    tars = [path for path in files if is_tar(path)] if not images else []
    for path in tars:
        yield from members_of(path, -(-most // len(tars)))


def is_image(file: Path | io.BytesIO, larger_px: int = 0) -> bool:
    """Of a format that is read here, by its first bytes; and its sides are longer."""
    try:
        with warnings.catch_warnings(action="ignore"), Image.open(file, formats=NAMES) as picture:
            return min(picture.size) > larger_px
    except Exception:  # whatever a damaged file makes of a parser
        return False


def is_tar(path: Path) -> bool:
    try:
        return tarfile.is_tarfile(path)
    except (OSError, EOFError):
        return False


def members_of(path: Path, most: int) -> Iterator[bytes]:
    """The first images of a tar, as far as it can be read."""
    with suppress(OSError, tarfile.TarError), tarfile.open(path, "r|*") as archive:
        for member in archive:
            file = archive.extractfile(member) if member.isfile() and member.size <= MOST_BYTES else None
            data = file.read() if file else b""
            if is_image(io.BytesIO(data)):
                yield data
                most -= 1
            if most <= 0:
                return


def is_usable(data: bytes) -> bool:
    try:
        Preparer(tuple(Output(codec=codec, size_px=64) for codec in ("jpeg", "planes")))(data)
    except BadImage:
        return False
    return True


# --- preparing ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Form:
    """One form of all samples, in memory and as a split on disk."""

    output: Output
    members: list[Prepared]
    split: Path
    prepare_cpu_s: float
    psnr_db: float | None
    smaller: bool


def prepare_form(originals: Sequence[bytes], output: Output, folder: Path) -> Form:
    """With the job's own preparer; `folder/NAME/train` is a whole small dataset in the real format, of one shard."""
    preparer = Preparer((output,))
    started_s = time.thread_time()
    members = [preparer(data)[0] for data in originals]
    cpu_s = (time.thread_time() - started_s) / len(originals)
    split = folder / output.name / "train"
    split.mkdir(parents=True)
    name = shard_tar.shard_name("train", 0)
    with (split / name).open("wb") as file, shard_tar.ShardWriter(file, 0) as writer:
        for number, member in enumerate(members):
            width, height = member.width, member.height
            writer.add(f"{number:06d}", member.data, member.extension, label=0, width=width, height=height)
    count = len(members)
    info = shards.ShardInfo(name=name, samples=count, planned_samples=count, bytes=writer.bytes, sha256=writer.sha256)
    write_atomically(split / shards.INDEX, shards.index_bytes(writer.rows))
    manifest = shards.Manifest(
        split="train", samples=count, classes=[{"name": "all"}], shards=[info], settings=output.settings(), seed=0,
        plan_hash="0" * 64,
    )  # fmt: skip
    write_atomically(split / shards.MANIFEST, manifest.to_json().encode())
    psnr_db = psnr(originals, members, output) if output.form.lossy else None
    # less than one pixel: an odd row that half the colours cannot have
    whole = (Image.open(io.BytesIO(data), formats=NAMES).size for data in originals)
    smaller = any(min(size) - 1 > min(one.width, one.height) for size, one in zip(whole, members, strict=True))
    return Form(output=output, members=members, split=split, prepare_cpu_s=cpu_s, psnr_db=psnr_db, smaller=smaller)


def psnr(originals: Sequence[bytes], members: Sequence[Prepared], output: Output) -> float | None:
    """Median over some of the samples: how far the stored pixels are from the resized ones, dB."""
    exact = Preparer((replace(output, codec="raw"),))
    losses: list[float] = []
    for data, member in list(zip(originals, members, strict=True))[:PSNR_SAMPLES]:
        wanted = np.load(io.BytesIO(exact(data)[0].data))
        stored = output.form.pixels(member.data)[: wanted.shape[0], : wanted.shape[1]]
        error = float(np.mean((wanted[: stored.shape[0], : stored.shape[1]].astype(float) - stored) ** 2))
        if error > 0:
            losses.append(10 * math.log10(255**2 / error))
    return statistics.median(losses) if losses else None


# --- loading ------------------------------------------------------------------------------------------

Load = Callable[[], int]
"""Loads every sample once; says how many these were."""
Transform = Callable[[Image.Image], Any]


def ways_to_load(
    form: Form, image_size_px: int, augment: Augment, transform: Transform | None, stack: ExitStack
) -> Iterator[tuple[str, Load]]:
    """With feedline's loader in this process, which `stack` closes, and as the script would. What cannot be loaded
    fails in the call."""
    from feedline.pipeline.loader import Loader

    batch_size = min(32, len(form.members))
    options: dict[str, Any] = {"batch_size": batch_size, "image_size": image_size_px, "augment": augment}
    loader = Loader(form.split, num_workers=0, seed=1, **options)
    stack.callback(loader.close)
    yield "feedline", lambda: sum(len(labels_N) for _, labels_N in loader)
    if transform is not None and (form.output.form.image_file or not form.output.form.lossy):
        yield "script", lambda: with_pil(form.members, transform)


def with_pil(members: Sequence[Prepared], transform: Transform) -> int:
    for member in members:
        file = io.BytesIO(member.data)
        pixels = member.extension == "npy"
        transform(Image.fromarray(np.load(file)) if pixels else Image.open(file, formats=NAMES).convert("RGB"))
    return len(members)


def draft_left(originals: Sequence[bytes], asked_px: int) -> float:
    """Of the time that Pillow takes to decode some of them, where `Image.draft` asks for so many pixels a side."""
    some = originals[:: max(1, len(originals) // DRAFTED)]
    both = [(decode_s(data, 0), decode_s(data, asked_px)) for data in [some[0], *some]][1:]  # the first warms up
    return min(1.0, sum(drafted_s for _, drafted_s in both) / sum(whole_s for whole_s, _ in both))


def decode_s(data: bytes, asked_px: int) -> float:
    started_s = time.thread_time()
    image = Image.open(io.BytesIO(data), formats=NAMES)
    if asked_px:
        image.draft("RGB", (asked_px, asked_px))
    image.convert("RGB")
    return time.thread_time() - started_s


def usual_transform(size_px: int, augment: Augment) -> Transform | None:
    """Crops as the script has them, flip, float, normalised; None without torchvision."""
    try:
        from torchvision import transforms
    except ImportError:
        return None
    normalize = transforms.Normalize(IMAGENET_MEAN, IMAGENET_STD)
    first: list[Any] = [transforms.RandomResizedCrop(size_px)]
    if augment.of_resized:
        resized_px = round(size_px / augment.of_resized)
        crop = transforms.RandomCrop if augment.train else transforms.CenterCrop
        first = [transforms.Resize((resized_px,) * 2 if augment.whole else resized_px), crop(size_px)]
    return transforms.Compose([*first, transforms.RandomHorizontalFlip(), transforms.ToTensor(), normalize])


def cpu_s_per_sample(load: Load) -> float:
    samples, started_s = 0, time.process_time()
    while True:
        samples += load()
        seconds = time.process_time() - started_s
        if seconds >= PASSES_S or not samples:
            return seconds / max(samples, 1)


def trial(form: Form, loader: str, costs: Sequence[float], draft_left: float) -> Trial:
    output, kept = form.output, not form.output.form.sized
    return Trial(
        codec="as-is" if kept else output.codec,
        size_px=None if kept else output.size_px,
        samples=len(form.members),
        bytes_per_sample=sum(len(member.data) for member in form.members) / len(form.members),
        load_cpu_s_per_sample=statistics.median(costs),
        load_cpu_s_spread=statistics.stdev(costs) if len(costs) > 1 else None,
        prepare_cpu_s_per_sample=None if kept else form.prepare_cpu_s,
        psnr_db=form.psnr_db,
        smaller=form.smaller,
        loader=loader,
        draft_left=draft_left if kept else None,
        note=f"encoder {fingerprint((output,)).encoder[:12]}" if output.form.has_quality else "",
    )
