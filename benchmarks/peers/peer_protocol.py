"""What every peer's script shares: how it is told what to do, and how its rate is taken. Standard library only, and
Pillow for those that write.

A peer runs in an environment of its own, where feedline is not installed. Loading: `python peer_NAME.py
prepare|measure SPEC`, SPEC being JSON: `peer`, `folder` (an image folder), `shards` (our tars), `work` (where the
peer's own format goes), `batch_size`, `px`, `workers`, `seconds`, `cold` (nothing is read twice). Preparing: `python
peer_NAME.py write SOURCE OUT PROCESSES`. `measure` and `write` print one JSON line. Pictures are written as feedline
writes them: its defaults are in the environment (`environments.environment`), so that each process has them.
"""

import io
import itertools
import json
import os
import random
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from multiprocessing import Pool
from pathlib import Path
from typing import Any

Spec = dict[str, Any]
Epoch = Callable[[], Iterable[Any]]
"""The image batches of an epoch, on each call."""
WARM_S = 1.5
"""From the first batch to the start of the window: readers, thread pools and page cache get going."""
LEFT_OUT = 4
"""Batches of a cold epoch, of which nothing is read twice: by then two workers hand over as they make them."""


def serve(
    make: Callable[[Spec], Epoch] | None = None,
    prepare: Callable[[Spec], None] | None = None,
    write: Callable[[list["Item"], str, int], Iterator[str]] | None = None,
) -> None:
    """`make` opens the loader; `prepare` writes the peer's own format, once; `write`: see `measure_writing`."""
    verb, spec = sys.argv[1], json.loads(sys.argv[2]) if sys.argv[1] != "write" else {}
    if verb == "write" and write is not None:
        measure_writing(write, sys.argv[2], sys.argv[3], int(sys.argv[4]))
    elif verb == "measure" and make is not None:
        epoch = make(spec)
        cold = bool(spec.get("cold"))
        stream = iter(epoch()) if cold else endless(epoch)
        print(json.dumps(measure(stream, spec["seconds"], cold=cold)), flush=True)
    elif prepare is not None and not (ready := Path(spec["work"]) / ".ready").exists():
        ready.parent.mkdir(parents=True, exist_ok=True)
        prepare(spec)
        ready.touch()


def endless(epoch: Epoch) -> Iterator[Any]:
    for number in itertools.count():
        some = False
        for batch in epoch():
            some = True
            yield batch
        if not some:
            raise RuntimeError(f"epoch {number} had no batches")


def measure(stream: Iterator[Any], seconds: float, *, cold: bool) -> dict[str, Any]:
    """Samples per second over a window that starts and ends with a batch; `cold`: at most to the end of the epoch. No
    batch is kept: its memory may be the loader's next."""
    began_s = time.perf_counter()
    first = next(stream)
    first_batch_s = time.perf_counter() - began_s
    described = f"{getattr(first, 'dtype', type(first).__name__)} {tuple(getattr(first, 'shape', (len(first),)))}"
    del first
    left_out = itertools.islice(stream, LEFT_OUT - 1 if cold else None)
    while next(left_out, None) is not None:
        if not cold and time.perf_counter() - began_s >= first_batch_s + WARM_S:
            break
    started_s = time.perf_counter()
    samples, taken_s = 0, 0.0
    for batch in stream:
        samples, taken_s = samples + len(batch), time.perf_counter() - started_s
        del batch
        if taken_s >= seconds:
            break
    if not samples:
        raise RuntimeError("the epoch was over before it could be measured")
    return {"samples_per_s": samples / taken_s, "samples": samples, "seconds": taken_s,
            "first_batch_s": first_batch_s, "batch": described}  # fmt: skip


def image_files(folder: str) -> list[tuple[Path, int]]:
    """An image folder's files and class numbers."""
    classes = sorted(path for path in Path(folder).iterdir() if path.is_dir())
    return [(file, label) for label, inner in enumerate(classes) for file in sorted(inner.iterdir())]


# --- writing ------------------------------------------------------------------------------------------

Item = tuple[Path, int]


def measure_writing(
    write: Callable[[list[Item], str, int], Iterator[str]], source: str, out: str, processes: int
) -> None:
    """`write(files, out, processes)`, files in a fixed random order, may yield "start" (from here to "ready" is its
    start, to be taken off again), yields "ready" when its work begins, and "end" when all is written."""
    files = image_files(source)
    random.Random(0).shuffle(files)
    answer = os.dup(1)
    os.dup2(2, 1)  # peers print; only the figures go to standard output
    marks: dict[str, float] = {}
    for mark in write(files, out, processes):
        marks[mark] = time.perf_counter()
    start_s = marks["ready"] - marks["start"] if "start" in marks else 0.0
    seconds = max(marks["end"] - marks["ready"] - start_s, 1e-9)
    os.write(answer, (json.dumps({"seconds": seconds, "samples": len(files)}) + "\n").encode())


def started_apart(
    run: Callable[[list[Item], str], object], files: list[Item], out: str, processes: int
) -> Iterator[str]:
    """For `write`: the time of a run over one image per process is taken for its start."""
    yield "start"
    run(files[:processes], out + "-start")
    yield "ready"
    run(files, out)
    yield "end"


@contextmanager
def resizing(processes: int) -> Generator[Callable[[list[Item]], Iterable[tuple[bytes, int]]]]:
    """What makes JPEGs of files, in so many processes that have begun; in this one where it is one."""
    warm(0)
    if processes == 1:
        yield lambda files: map(resized_jpeg, files)
        return
    with Pool(processes) as pool:
        pool.map(warm, range(processes * 4), 1)
        yield lambda files: pool.imap(resized_jpeg, files, 16)


def short_side_px() -> int:
    return int(os.environ["SHORT_SIDE_PX"])


def jpeg_quality() -> int:
    return int(os.environ["JPEG_QUALITY"])


def resized(path: Path) -> Any:
    """Short side as feedline's, bicubic."""
    from PIL import Image

    with Image.open(path) as opened:
        image = opened.convert("RGB")
    width, height = image.size
    short, px = min(width, height), short_side_px()
    return image.resize((px * width // short, px * height // short), Image.Resampling.BICUBIC)


def resized_jpeg(item: Item) -> tuple[bytes, int]:
    """The same as JPEG."""
    file = io.BytesIO()
    resized(item[0]).save(file, "JPEG", quality=jpeg_quality())
    return file.getvalue(), item[1]


def warm(_: int) -> None:
    import PIL.JpegImagePlugin  # noqa: F401  # pyright: ignore[reportUnusedImport]
