"""How fast a tar of tars is indexed in place, beside Python's own `tarfile`; and what all of ImageNet's index costs.

    python -m feedline.benchmarks.experiments.indexing [--classes 100 --images 1300 --rounds 7]

The archive is ILSVRC's train tar in structure and distances (115 KB a member), with holes for pictures: 4 KiB of disk
per member, all of it in the page cache after the first pass. Both walkers read the same members in every round, in an
order drawn anew; rates are per second of CPU, for other work may be running here.
"""

import json
import resource
import tarfile
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from feedline.benchmarks.experiments.harness import column, end_with, in_rounds, options, spread, write
from feedline.pipeline.format.shard_tar import BLOCK_BYTES, member_header
from feedline.preprocess.sources.base import Part, joined, open_source
from feedline.preprocess.sources.imagenet import ClassTar, IlsvrcSource, walk_tars

MEMBER_BYTES = 115_000
TARFILE_CLASSES = 10
"""tarfile walks this many class tars in a round; all of them would take a minute."""
IMAGENET = (1000, 1_281_167)


def main() -> None:
    given = options(__doc__, "index.json", classes=100, images=1300, rounds=7)
    with tempfile.TemporaryDirectory(prefix="feedline-indexing-") as folder:
        archive = Path(folder) / "ILSVRC2012_img_train.tar"
        write_archive(archive, given.classes, given.images)
        figures = walks(archive, given.rounds) | whole_imagenet()
    write(given.out, figures)
    print(json.dumps({key: value for key, value in figures.items() if key != "by_round"}, indent=1))


def write_archive(path: Path, classes: int, images: int) -> None:
    """A sparse tar of tars: real headers at real distances, holes for data."""
    rng = np.random.default_rng(0)
    with path.open("wb") as file:
        for number in range(classes):
            lengths = rng.integers(MEMBER_BYTES // 2, MEMBER_BYTES * 3 // 2, images).tolist()
            blocks = [BLOCK_BYTES + -(-length // BLOCK_BYTES) * BLOCK_BYTES for length in lengths]
            file.write(member_header(f"n{number:08d}.tar", sum(blocks) + 2 * BLOCK_BYTES))
            for place, (length, room) in enumerate(zip(lengths, blocks, strict=True)):
                start = file.tell()
                file.write(member_header(f"n{number:08d}_{place}.JPEG", length))
                file.seek(start + room)
            file.seek(2 * BLOCK_BYTES, 1)
        file.truncate(file.tell() + 2 * BLOCK_BYTES)


def walks(archive: Path, count: int) -> dict[str, Any]:
    source = open_source(str(archive))
    assert isinstance(source, IlsvrcSource)
    tars = source.class_tars

    def ours() -> int:
        return len(walk_tars("train", tars, {}))

    def theirs() -> int:
        return sum(map(members, tars[:TARFILE_CLASSES]))

    cells = {"feedline": partial(per_cpu_s, ours), "tarfile": partial(per_cpu_s, theirs)}
    in_rounds(cells, 1)  # warm-up, and the page cache
    by_round = in_rounds(cells, count)
    rates = {name: spread(column(by_round, name), 0) for name in cells}
    ends = {what: {name: rates[name][end] for name in cells}
            for what, end in (("members_per_cpu_s", "median"), ("low", "low"), ("high", "high"))}  # fmt: skip
    times = spread([one["feedline"] / one["tarfile"] for one in by_round], 2)["median"]
    return {"members": ours(), "rounds": count, "warm_up_rounds": 1, **ends, "times_tarfile": times,
            "by_round": by_round}  # fmt: skip


def per_cpu_s(walk: Callable[[], int]) -> float:
    started_s = time.process_time()
    return walk() / (time.process_time() - started_s)


def members(tar: ClassTar) -> int:
    with Path(tar.path).open("rb") as file:
        file.seek(tar.offset)
        with tarfile.open(fileobj=file, mode="r:") as archive:
            return len([(member.name, member.offset_data, member.size) for member in archive])


def whole_imagenet() -> dict[str, Any]:
    """Putting the parts of all 1000 class tars together: CPU seconds and memory of the driver."""
    classes, images = IMAGENET
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    parts = [generated_part(label, images // classes + (label < images % classes)) for label in range(classes)]
    started_s = time.process_time()
    columns = joined(parts, {f"n{label:08d}": label for label in range(classes)})
    return {
        "imagenet_samples": len(columns),
        "imagenet_join_cpu_s": round(time.process_time() - started_s, 2),
        "imagenet_peak_growth_bytes": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024,
    }


def generated_part(label: int, count: int) -> Part:
    return Part(
        split="train",
        names=[f"n{label:08d}_{place}.JPEG" for place in range(count)],
        labels=[f"n{label:08d}"] * count,
        paths=["ILSVRC2012_img_train.tar"],
        path_N=np.zeros(count, np.int32),
        offsets_N=np.arange(count, dtype=np.int64) * MEMBER_BYTES,
        lengths_N=np.full(count, MEMBER_BYTES, np.int64),
    )


if __name__ == "__main__":
    end_with(main)
