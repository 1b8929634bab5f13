"""What is fuzzed: one function a reader, what it may raise, inputs to begin with, and what a right answer is.

A check takes bytes of any kind. It returns when the reader refused them with its own error class or gave an answer
that holds against an independent one (`tarfile`, a full decode, the types that the dataclasses declare); everything
else, another exception included, is a finding.
"""

import io
import json
import random
import struct
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa

from feedline.pipeline.base.errors import DatasetError, RecordingError, SourceError
from feedline.pipeline.codecs import crop_jpeg, jpeg
from feedline.pipeline.format import manifest as shards
from feedline.preprocess.sources import tar_headers
from feedline.profiling.record.lprof import read_lprof
from feedline.profiling.record.recording import Recording

MOST_FUZZED_PX = 1 << 16
"""Larger pictures are not decoded here: the readers' own limits are tested by name, a fuzzer needs speed."""

Check = Callable[[bytes], None]
Mutate = Callable[[bytes, random.Random], bytes]


class Finding(AssertionError):
    """A reader gave a wrong answer, or ended in an error that is not its own."""


@dataclass(frozen=True, kw_only=True)
class Target:
    check: Check
    seeds: Callable[[], list[bytes]]
    """Valid inputs."""
    repair: Mutate | None = None
    """Makes mutated bytes look right again where a checksum would end the reading at once."""
    max_bytes: int = 8192


# --- tar ----------------------------------------------------------------------------------------------


def check_tar(data: bytes) -> None:
    """Whatever `walk` accepts, `tarfile` reads as the same files with the same bytes."""
    try:
        members = list(tar_headers.walk(lambda at, length: data[at : at + length], 0, len(data), "fuzzed"))
    except SourceError:
        return
    if any("\0" in member.name for member in members) or b"hdrcharset" in data:
        return  # a NUL inside a PAX path, and PAX's binary charset: tarfile reads both in its own way
    found = [(member.name.rstrip("/"), data[member.offset : member.offset + member.length]) for member in members]
    expected = _as_tarfile(data)
    if found != expected and not _tarfile_differs(data):
        raise Finding(f"tar: {found!r:.300} but tarfile says {expected!r:.300}")


def _as_tarfile(data: bytes) -> list[tuple[str, bytes]] | str:
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:", encoding="utf-8") as tar:
            files = [member for member in tar.getmembers() if not member.isdir()]
            return [(one.name.rstrip("/"), data[one.offset_data : one.offset_data + one.size]) for one in files]
    except (tarfile.TarError, ValueError, OverflowError, IndexError) as error:
        return f"{type(error).__name__}: {error}"


def _tarfile_differs(data: bytes) -> bool:
    """Where tarfile is known to read otherwise: it ends at fields that we have no use for (times, owners) when they
    are damaged, reads a GNU long name beyond the length it was given, and a name's prefix where no ustar is."""
    for at in range(0, len(data) - 511, 512):
        block = data[at : at + 512]
        try:
            info = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except tarfile.HeaderError as error:
            if type(error).__name__ == "InvalidHeaderError" and "bad checksum" not in str(error):
                return True
        else:
            if block[345] and block[257:263] != b"ustar\0":
                return True
            if info.type in (b"L", b"K") and data[at + 511 + info.size : at + 512 + info.size] != b"\0":
                return True
    return False


def tar_seeds() -> list[bytes]:
    names = ["a.jpg", "n01440764/n01440764_10026.JPEG", "d" * 90 + "/" + "f" * 60, "x" * 140, "größe/ü.jpg"]
    made: list[bytes] = [bytes(1024)]
    for kind in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w", format=kind) as tar:
            for number, name in enumerate(names[: 3 if kind == tarfile.USTAR_FORMAT else 5]):
                info = tarfile.TarInfo(name)
                info.size = 7 * number
                tar.addfile(info, io.BytesIO(b"content" * number))
            folder = tarfile.TarInfo("folder")
            folder.type = tarfile.DIRTYPE
            tar.addfile(folder)
        made.append(file.getvalue()[: -(len(file.getvalue()) % 10240) or None].rstrip(b"\0") + bytes(2048))
    return [data + bytes(-len(data) % 512) for data in made]


def repair_tar(data: bytes, rng: random.Random) -> bytes:
    """Checksums of what may be headers put right, so that a mutated field is what the reader sees."""
    out = bytearray(data)
    for at in range(0, len(out) - 511, 512):
        block = out[at : at + 512]
        if (block[257:262] == b"ustar" or rng.random() < 0.1) and any(block):
            block[148:156] = b" " * 8
            if rng.random() < 0.9:  # fields that only tarfile looks at
                block[100:124] = b"0000644\0" * 3
                block[136:148] = bytes(12)
                block[329:345] = bytes(16)
            out[at : at + 512] = block
            out[at + 148 : at + 156] = b"%06o\0 " % sum(block)
    return bytes(out)


# --- the region cutter --------------------------------------------------------------------------------


def check_jpeg(data: bytes) -> None:
    """A region cut out and decoded equals the same region of a full decode, and so does a shortened file; the last
    four bytes choose the region."""
    data, choice = data[:-4], data[-4:].rjust(4, b"\0")
    try:
        frame = crop_jpeg.parse(data)
        if frame.width_px * frame.height_px > MOST_FUZZED_PX:
            crop_jpeg.cut(data, 0, 0, 1, 1)
            return
    except crop_jpeg.JpegError:
        return
    left, top = choice[0] % frame.width_px, choice[1] % frame.height_px
    width, height = 1 + choice[2] % (frame.width_px - left), 1 + choice[3] % (frame.height_px - top)
    cut = crop_jpeg.cut(data, left, top, width, height, frame=frame)
    try:
        whole_HWC = jpeg.decode(data, fast_chroma=True)
    except crop_jpeg.JpegError:
        _decodes_or_refuses(cut.data)
        return
    if whole_HWC.shape[:2] != (frame.height_px, frame.width_px):
        raise Finding(f"jpeg: decoded {whole_HWC.shape}, the frame says {frame}")
    wanted_HWC = whole_HWC[top : top + height, left : left + width]
    part_HWC = jpeg.decode(cut.data, fast_chroma=True)
    part_HWC = part_HWC[cut.top_px : cut.top_px + height, cut.left_px : cut.left_px + width]
    _same("cut", part_HWC, wanted_HWC)
    _check_shortened(data, frame, top + height, whole_HWC)


def _decodes_or_refuses(data: bytes) -> None:
    try:
        jpeg.decode(data, fast_chroma=True)
    except crop_jpeg.JpegError:
        return


def _check_shortened(data: bytes, frame: crop_jpeg.Frame, bottom_px: int, whole_HWC: crop_jpeg.Pixels) -> None:
    shorter = crop_jpeg.shorten(data, bottom_px, frame)
    if shorter is data:
        return
    try:
        pixels_HWC = jpeg.decode(shorter, fast_chroma=True, shortened=True)
    except crop_jpeg.JpegError:
        return  # the loader then decodes it whole
    _same("shortened", pixels_HWC[:bottom_px], whole_HWC[:bottom_px])


def _same(what: str, one_HWC: crop_jpeg.Pixels, other_HWC: crop_jpeg.Pixels) -> None:
    if not np.array_equal(one_HWC, other_HWC):
        raise Finding(f"jpeg: {what} differs from a full decode")


def jpeg_seeds() -> list[bytes]:
    from PIL import Image

    rng = np.random.default_rng(0)
    made: list[bytes] = []
    for width, height, sampling in ((48, 32, 2), (33, 17, 0), (96, 16, 2), (16, 40, 1)):
        noise_HWC = rng.normal(0, 9, (height, width, 3)) + 8 * (np.arange(width)[None, :, None] % 16) + 60
        image = Image.fromarray(np.clip(noise_HWC, 0, 255).astype(np.uint8))
        for options in (
            {"restart_marker_blocks": crop_jpeg.restart_interval(width, "420" if sampling == 2 else "444")},
            {"progressive": True},
            {},
        ):
            file = io.BytesIO()
            image.save(file, "JPEG", quality=30, subsampling=sampling, **options)
            made.append(file.getvalue() + bytes((9, 3, 12, 8)))
    grey = io.BytesIO()
    Image.new("L", (40, 24), 90).save(grey, "JPEG", restart_marker_blocks=5)
    return [*made, grey.getvalue() + bytes((1, 2, 30, 20))]


# --- files: manifest, index, recording, line profile --------------------------------------------------


@cache
def _folder() -> Path:
    """In memory where there is such a place: a million small files are written there."""
    place = Path("/dev/shm")
    kept = tempfile.TemporaryDirectory(prefix="feedline-fuzz-", dir=place if place.is_dir() else None)
    _KEPT.append(kept)
    return Path(kept.name)


_KEPT: list["tempfile.TemporaryDirectory[str]"] = []


def check_manifest(data: bytes) -> None:
    """What is accepted has the types it declares, stays in its folder, and comes back from its own JSON."""
    path = _folder() / shards.MANIFEST
    path.write_bytes(data)
    try:
        manifest = shards.read_manifest(path.parent)
    except DatasetError:
        return
    if shards.Manifest.from_json(manifest.to_json(), "again") != manifest:
        raise Finding("manifest: another one comes back from its JSON")
    numbers = [manifest.samples, manifest.seed, *(one.samples for one in manifest.shards)]
    numbers += [number for one in manifest.shards for number in (one.bytes, one.planned_samples)]
    if not all(type(number) is int for number in numbers) or min(numbers[:1] + numbers[2:]) < 0:
        raise Finding("manifest: a count that is none")
    texts = [
        manifest.split,
        manifest.plan_hash,
        manifest.codec,
        *(text for one in manifest.shards for text in (one.name, one.sha256)),
    ]
    texts += [name for one in manifest.classes for name in (one["name"],)]
    if not all(isinstance(text, str) for text in texts):
        raise Finding("manifest: a text that is none")
    if any((path.parent / one.name).parent != path.parent or one.name in ("", ".", "..") for one in manifest.shards):
        raise Finding("manifest: it points outside its folder")


def _manifest() -> shards.Manifest:
    infos = [shards.ShardInfo(name="train-000000.tar", samples=2, planned_samples=2, bytes=10240, sha256="0" * 64)]
    return shards.Manifest(
        split="train",
        samples=2,
        classes=[{"name": "a"}, {"name": "b", "wnid": "n01440764", "names": ["b", "ß"]}],
        shards=infos,
        settings={"codec": "jpeg", "size_px": 256, "quality": 90},
        seed=0,
        plan_hash="0" * 64,
        versions={"feedline": "0"},
    )


def manifest_seeds() -> list[bytes]:
    manifest = _manifest().to_json()
    return [manifest.encode(), json.dumps(json.loads(manifest), separators=(",", ":")).encode()]


def check_index(data: bytes) -> None:
    """Every row of an accepted index lies inside its shard, and its keys can be read or are refused."""
    path = _folder() / shards.INDEX
    path.write_bytes(data)
    manifest = _manifest()
    try:
        index = shards.read_index(path.parent, manifest)
        keys = index.keys
    except DatasetError:
        return
    if len(index) != 2 or len(keys) != 2:
        raise Finding("index: another number of rows than the manifest says")
    if set(index.shards_N.tolist()) != {0}:
        raise Finding("index: a row of a shard that is not there")
    for offset, length in zip(index.offsets_N.tolist(), index.lengths_N.tolist(), strict=True):
        if not 0 <= offset <= offset + length <= 10240:
            raise Finding("index: a row points outside its shard")


_ROWS = [
    shards.SampleRow(key=f"k{n}", label=n, shard=0, offset=512 + 1024 * n, length=100, width=8, height=8, crc32=n)
    for n in range(2)
]


def index_seeds() -> list[bytes]:
    file = io.BytesIO()
    import pyarrow.parquet as pq

    pq.write_table(
        pa.Table.from_pylist([vars(row) for row in _ROWS], schema=shards.INDEX_SCHEMA), file, compression="none"
    )
    return [shards.index_bytes(_ROWS), file.getvalue()]


def other_index(data: bytes, rng: random.Random) -> bytes:
    """Now and then a well-formed Parquet file with other values or columns: mutated bytes seldom get that far."""
    if rng.random() > 0.05:
        return data
    odd = (-1, 0, 1, 10240, 10141, 1 << 31, (1 << 63) - 1, None)
    columns: dict[str, pa.Array] = {}
    for field in shards.INDEX_SCHEMA:
        values = [getattr(row, field.name) for row in _ROWS]
        if rng.random() < 0.3:
            values[rng.randrange(2)] = rng.choice(odd)
        kind = (
            rng.choice((pa.int64(), pa.string(), pa.float32(), pa.list_(pa.int32())))
            if rng.random() < 0.05
            else field.type
        )
        try:
            columns[field.name] = pa.array(values, kind)
        except (pa.ArrowException, OverflowError, TypeError):
            columns[field.name] = pa.array([getattr(row, field.name) for row in _ROWS], field.type)
    if rng.random() < 0.05:
        columns.pop(rng.choice(list(columns)))
    return shards.index_table_bytes(pa.table(columns))


def check_recording(data: bytes) -> None:
    """What is accepted can be written and comes back the same."""
    path = _folder() / "recording.json"
    path.write_bytes(data)
    try:
        recording = Recording.load(path)
    except RecordingError:
        return
    again = Recording.from_dict(json.loads(json.dumps(recording.to_dict())))
    if repr(again) != repr(recording):  # not ==: a NaN differs from itself
        raise Finding("recording: another one comes back from its JSON")


def recording_seeds() -> list[bytes]:
    from feedline.profiling.record.recording import Leg, LoaderSeen, Script, Step, WorkerTime

    steps = [Step(start_s=0.5 * n, wait_s=0.25, duration_s=0.5, samples=8) for n in range(3)]
    whole = Recording(
        script=Script(argv=["train.py"]),
        seconds=1.5,
        loaders=[LoaderSeen(id=0, kind="torch", num_workers=2)],
        steps=steps,
        workers=[WorkerTime(worker=0, seconds=1.0, stages={"read": 0.5, "decode": 0.5})],
        legs=[Leg(name="cached", samples_per_s=[1.0, 2.0])],
    )
    plain = whole.to_dict()
    return [json.dumps(plain).encode(), json.dumps({"verb": "profile", "recording": plain}).encode()]


def check_lprof(data: bytes) -> None:
    """What is accepted is lines with the types they declare."""
    path = _folder() / "fuzzed.lprof"
    path.write_bytes(data)
    try:
        lines = read_lprof(path)
    except RecordingError:
        return
    kinds = {"file": str, "function": str, "line": int, "hits": int, "seconds": float, "fraction": float}
    for line in lines:
        for field in fields(line):
            if field.name in kinds and type(getattr(line, field.name)) is not kinds[field.name]:
                raise Finding(f"lprof: {field.name} is {getattr(line, field.name)!r:.80}")


def lprof_seeds() -> list[bytes]:
    """Pickles of line_profiler's class in text and in binary instructions, written without importing it."""
    text = (
        "cline_profiler.line_profiler\nLineStats\n(t\x81(dS'timings'\n(d(S'a.py'\nI1\nS'f'\nt(l(I1\nI2\nF3.5\nta"
        "ssS'unit'\nF1e-09\nsb."
    )
    stats = b"\x8c\x1bline_profiler.line_profiler\x94\x8c\tLineStats\x94\x93\x94)\x81\x94}\x94("
    timings = b"\x8c\x07timings\x94}\x94\x8c\x04a.py\x94K\x01\x8c\x01f\x94\x87\x94]\x94(K\x01K\x02G" + struct.pack(
        ">d", 3.5
    )
    end = b"\x87\x94K\x02K\x03K\x04\x87\x94es\x8c\x04unit\x94G" + struct.pack(">d", 1e-9) + b"ub."
    return [text.encode("latin-1"), b"\x80\x04" + stats + timings + end]


TARGETS: dict[str, Target] = {
    "tar": Target(check=check_tar, seeds=tar_seeds, repair=repair_tar, max_bytes=12288),
    "jpeg": Target(check=check_jpeg, seeds=jpeg_seeds, max_bytes=4096),
    "manifest": Target(check=check_manifest, seeds=manifest_seeds, max_bytes=4096),
    "index": Target(check=check_index, seeds=index_seeds, repair=other_index),
    "recording": Target(check=check_recording, seeds=recording_seeds),
    "lprof": Target(check=check_lprof, seeds=lprof_seeds, max_bytes=2048),
}
