"""Forms of a few hundred samples: found, prepared with the real kernel, written as small real datasets.

See `what_if` for what is then measured on them.
"""

import io
import math
import statistics
import tarfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from feedline.pipeline.base import files as atomic
from feedline.pipeline.format import manifest as shards
from feedline.pipeline.format import shard_tar
from feedline.preprocess.picture import BadImage, Kernel, Output, Prepared

IMAGES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".tif", ".tiff", ".gif")

# --- the samples --------------------------------------------------------------------------------------


def samples_of(paths: Sequence[str | Path], most: int) -> Iterator[bytes]:
    """The bytes of up to `most` images, from image files and from tars, evenly over the paths."""
    files = [Path(path) for path in dict.fromkeys(map(str, paths))]
    images = [path for path in files if path.suffix.lower() in IMAGES]
    tars = [path for path in files if path.suffix.lower() == ".tar"]
    yield from _read_files(images, most)
    if not images and tars:
        for path in tars:
            yield from _read_tar(path, -(-most // len(tars)))


def _read_files(images: Sequence[Path], most: int) -> Iterator[bytes]:
    step = max(1, len(images) // most)
    for path in images[::step][:most]:
        try:
            yield path.read_bytes()
        except OSError:
            continue  # gone since the script ran


def _read_tar(path: Path, most: int) -> Iterator[bytes]:
    try:
        with tarfile.open(path, "r|") as archive:
            taken = 0
            for member in archive:
                if taken < most and member.isfile() and member.name.lower().endswith(IMAGES):
                    file = archive.extractfile(member)
                    yield file.read() if file else b""
                    taken += 1
                if taken >= most:
                    return
    except (OSError, tarfile.TarError):
        return


def is_usable(data: bytes) -> bool:
    try:
        Kernel((Output(codec="jpeg", size_px=64),))(data)
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

    @property
    def bytes_per_sample(self) -> float:
        return sum(len(member.data) for member in self.members) / len(self.members)


def prepare_form(originals: Sequence[bytes], output: Output, folder: Path) -> Form:
    kernel = Kernel((output,))
    started = time.thread_time()
    members = [kernel(data)[0] for data in originals]
    cpu_s = (time.thread_time() - started) / len(originals)
    split = folder / output.name / "train"
    write_split(split, members, output)
    psnr = _psnr(originals, members, output) if output.form.lossy else None
    return Form(output=output, members=members, split=split, prepare_cpu_s=cpu_s, psnr_db=psnr)


def write_split(split: Path, members: Sequence[Prepared], output: Output) -> None:
    """A whole small dataset in the real format, one shard, so that the real loader reads it."""
    split.mkdir(parents=True)
    name = shard_tar.shard_name("train", 0)
    with (split / name).open("wb") as file, shard_tar.ShardWriter(file, 0) as writer:
        for number, one in enumerate(members):
            writer.add(f"{number:06d}", one.data, one.extension, label=0, width=one.width, height=one.height)
    count = len(members)
    info = shards.ShardInfo(name=name, samples=count, planned_samples=count, bytes=writer.bytes, sha256=writer.sha256)
    atomic.write_atomically(split / shards.INDEX, shards.index_bytes(writer.rows))
    manifest = shards.Manifest(
        split="train", samples=count, classes=[{"name": "all"}], shards=[info], settings=output.settings(), seed=0,
        plan_hash="0" * 64,
    )  # fmt: skip
    atomic.write_atomically(split / shards.MANIFEST, manifest.to_json().encode())


def _psnr(originals: Sequence[bytes], members: Sequence[Prepared], output: Output, most: int = 24) -> float | None:
    """Median over some of the samples: how far the stored pixels are from the resized ones."""
    exact = Kernel((replace(output, codec="raw"),))
    found: list[float] = []
    for data, member in list(zip(originals, members, strict=True))[:most]:
        wanted = np.load(io.BytesIO(exact(data)[0].data))
        stored = output.form.pixels(member.data)[: wanted.shape[0], : wanted.shape[1]]
        error = float(np.mean((wanted[: stored.shape[0], : stored.shape[1]].astype(float) - stored) ** 2))
        if error > 0:
            found.append(10 * math.log10(255**2 / error))
    return statistics.median(found) if found else None
