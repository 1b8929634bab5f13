"""How fast a tar of tars is indexed in place, and what all of ImageNet's index costs.

    python -m feedline.benchmarks.experiments.indexing [--classes 100 --images 1300 --rounds 7]

The archive is ILSVRC's train tar in structure and distances (115 KB a member), with holes for pictures: 4 KiB of disk
per member, all of it in the page cache after the first pass. Rates are per second of CPU, for other work may be
running here.
"""

import argparse
import json
import resource
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from feedline.benchmarks.commands import this_command
from feedline.pipeline.format.shard_tar import BLOCK_BYTES, member_header
from feedline.preprocess.sources.base import Part, joined, open_source
from feedline.preprocess.sources.imagenet import IlsvrcSource, TarTask
from feedline.profiling.record.host import describe_host

RESULT = Path(__file__).parents[1] / "results" / "index.json"
MEMBER_BYTES = 115_000
IMAGENET = (1000, 1_281_167)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m feedline.benchmarks.experiments.indexing", description=__doc__)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--images", type=int, default=1300, help="per class")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, default=RESULT)
    said = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="feedline-indexing-") as folder:
        archive = Path(folder) / "ILSVRC2012_img_train.tar"
        write_archive(archive, said.classes, said.images)
        found = walks(archive, said.rounds)
    found |= whole_imagenet()
    said.out.write_text(json.dumps({"command": this_command(), "host": describe_host()} | found, indent=1) + "\n")
    print(json.dumps({key: value for key, value in found.items() if key != "by_round"}, indent=1))


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
    task = TarTask(split="train", tars=source.class_tars)
    members = len(task.run())  # warm-up, and the page cache
    rates: list[float] = []
    for _ in range(count):
        started = time.process_time()
        task.run()
        rates.append(members / (time.process_time() - started))
    return {
        "members": members,
        "rounds": count,
        "warm_up_rounds": 1,
        "members_per_cpu_s": round(median(rates)),
        "low": round(min(rates)),
        "high": round(max(rates)),
        "by_round": rates,
    }


def whole_imagenet() -> dict[str, Any]:
    """Putting the parts of all 1000 class tars together: CPU seconds and memory of the driver."""
    classes, images = IMAGENET
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    parts = [generated_part(label, images // classes + (label < images % classes)) for label in range(classes)]
    started = time.process_time()
    columns = joined(parts)
    return {
        "imagenet_samples": len(columns),
        "imagenet_join_cpu_s": round(time.process_time() - started, 2),
        "imagenet_peak_growth_bytes": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024,
    }


def generated_part(label: int, count: int) -> Part:
    offsets_N = np.arange(count, dtype=np.int64) * MEMBER_BYTES
    return Part(
        split="train",
        names=[f"n{label:08d}_{place}.JPEG" for place in range(count)],
        labels_N=np.full(count, label, np.int32),
        paths=["ILSVRC2012_img_train.tar"],
        path_N=np.zeros(count, np.int32),
        offsets_N=offsets_N,
        lengths_N=np.full(count, MEMBER_BYTES, np.int64),
    )


if __name__ == "__main__":
    main()
