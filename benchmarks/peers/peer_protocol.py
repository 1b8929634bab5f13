"""What every peer's script shares: how it is told what to do, and how its rate is taken. Standard library only.

A peer runs in an environment of its own, where feedline is not installed: `python peer_NAME.py prepare|measure SPEC`,
SPEC being JSON: `folder` (an image folder), `shards` (our tars), `work` (where the peer's own format goes),
`batch_size`, `px`, `workers`, `seconds`. `measure` prints one JSON line.
"""

import itertools
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

Spec = dict[str, Any]
WARM_S = 1.5
"""From the first batch to the start of the window: readers, thread pools and page cache get going."""


def serve(batches: Callable[[Spec], Iterable[Any]], prepare: Callable[[Spec], None] | None = None) -> None:
    """`batches(spec)` gives the image batches of an epoch on each call; `prepare` writes the peer's own format."""
    spec = json.loads(sys.argv[2])
    if sys.argv[1] == "prepare":
        if prepare is not None:
            _once(prepare, spec)
        return
    print(json.dumps(measure(endless(batches, spec), spec["seconds"])), flush=True)


def _once(prepare: Callable[[Spec], None], spec: Spec) -> None:
    ready = Path(spec["work"]) / ".ready"
    if not ready.exists():
        ready.parent.mkdir(parents=True, exist_ok=True)
        prepare(spec)
        ready.touch()


def endless(batches: Callable[[Spec], Iterable[Any]], spec: Spec) -> Iterator[Any]:
    for epoch in itertools.count():
        some = False
        for batch in batches(spec):
            some = True
            yield batch
        if not some:
            raise RuntimeError(f"epoch {epoch} had no batches")


def measure(stream: Iterator[Any], seconds: float) -> dict[str, Any]:
    """Samples per second over a window that starts and ends with a batch."""
    began_s = time.perf_counter()
    first = next(stream)
    first_batch_s = time.perf_counter() - began_s
    described = f"{getattr(first, 'dtype', type(first).__name__)} {tuple(getattr(first, 'shape', (len(first),)))}"
    del first
    while time.perf_counter() - began_s < first_batch_s + WARM_S:
        next(stream)
    started_s = time.perf_counter()
    samples, taken_s = 0, 0.0
    while taken_s < seconds:
        samples += len(next(stream))
        taken_s = time.perf_counter() - started_s
    return {"samples_per_s": samples / taken_s, "samples": samples, "seconds": taken_s,
            "first_batch_s": first_batch_s, "batch": described}  # fmt: skip


def image_files(spec: Spec) -> list[tuple[Path, int]]:
    """The image folder's files and class numbers."""
    classes = sorted(path for path in Path(spec["folder"]).iterdir() if path.is_dir())
    return [(file, label) for label, folder in enumerate(classes) for file in sorted(folder.iterdir())]
