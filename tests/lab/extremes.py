"""Datasets at the edge of what is sensible: each must work, or be refused in one line.

    python -m tests.lab.extremes --work DIR        DIR: some hundred MB for a minute, removed again

    shards    100,000 shards of one sample each (hard links to 200 files)
    large     one shard of 20 GiB, sparse: samples behind the fourth gigabyte, walked and loaded
    rows      an index of 1,281,167 rows: opened, planned, first batches
    classes   10,000 classes, most of them with a single sample, trained and evaluated
    small     fewer samples than a batch, with every policy, and trained

Each runs in a process of its own. Writes results/extremes.json: what was seen, seconds, peak memory.
"""

import argparse
import json
import os
import resource
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from feedline.pipeline.format import manifest as shards
from feedline.pipeline.format import shard_tar
from feedline.profiling.record.host import describe_host
from tests.lab import tiny_split
from tests.lab.chaos_steps import in_child

RESULT = Path(__file__).parents[2] / "benchmarks" / "results" / "extremes.json"
MANY_SHARDS, IMAGENET, MANY_CLASSES = 100_000, 1_281_167, 10_000
GIBIBYTE = 1 << 30
LARGE_GIB = 20
PX = 24
STUCK_S = 420.0


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.lab.extremes", description=__doc__)
    parser.add_argument("cases", nargs="*", default=list(CASES), help=", ".join(CASES))
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--scale", type=float, default=1, help="of the sizes, for a try")
    parser.add_argument("--out", type=Path, default=RESULT)
    said = parser.parse_args()
    record: dict[str, Any] = json.loads(said.out.read_text()) if said.out.exists() else {"cases": {}}
    record |= {"command": "python -m tests.lab.extremes --work DIR", "scale": said.scale}
    record |= {"host": describe_host()}
    for name in said.cases:
        folder = said.work / name
        folder.mkdir(parents=True)
        ended = in_child(lambda n=name, f=folder: measured(CASES[n], f, said.scale), stuck_s=STUCK_S)
        shutil.rmtree(folder)
        record["cases"][name] = {"ok": ended.status == 0} | (
            ended.said if not ended.status else {"error": ended.said}
        )
        said.out.write_text(json.dumps(record, indent=1) + "\n")
        print(name, json.dumps(record["cases"][name]), flush=True)
    sys.exit(not all(one["ok"] for one in record["cases"].values()))


def measured(case: Callable[[Path, float], dict[str, Any]], folder: Path, scale: float) -> dict[str, Any]:
    figures = case(folder, scale)
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return figures | {"peak_memory_mib": round(peak_bytes / (1 << 20))}


def take(split: Path, batches: int, **options: Any) -> dict[str, Any]:
    """Opens a loader, takes some batches with two workers and checks what they show."""
    from feedline.pipeline.loader import Loader

    started_s = time.perf_counter()
    given: dict[str, Any] = {"batch_size": 32, "image_size": PX, "train": True, "num_workers": 2}
    given |= {"rank": 0, "world_size": 1}
    loader = Loader(split, **(given | options))
    opened_s = time.perf_counter()
    first_s, seen = 0.0, 0
    for number, (images_NHWC, labels_N) in enumerate(loader):
        first_s = first_s or time.perf_counter() - opened_s
        check(list(tiny_split.shown(np.asarray(images_NHWC))), [int(label) for label in labels_N])
        seen += len(labels_N)
        if number + 1 == batches:
            break
    loader.close()
    return {"open_s": round(opened_s - started_s, 3), "first_batch_s": round(first_s, 3), "samples_checked": seen}


def check(shown: list[int], labels: list[int]) -> None:
    """Padding (label -1) shows nothing."""
    wrong = [
        label for one, label in zip(shown, labels, strict=True) if label >= 0 and one != label % tiny_split.LEVELS
    ]
    if wrong:
        raise AssertionError(f"a wrong picture for label {wrong[0]}")


# --- the cases ----------------------------------------------------------------------------------------


def shards_case(folder: Path, scale: float) -> dict[str, Any]:
    count = round(MANY_SHARDS * scale)
    models = tiny_split.write(folder / "models", tiny_split.LEVELS, tiny_split.LEVELS, px=PX)
    rows = shards.read_index(folder / "models", models)
    split = folder / "train"
    split.mkdir()
    infos: list[shards.ShardInfo] = []
    for number in range(count):
        model = models.shards[number % tiny_split.LEVELS]
        infos.append(replace(model, name=shard_tar.shard_name("train", number)))
        os.link(folder / "models" / model.name, split / infos[-1].name)
    numbers_N = np.arange(count)
    at_N = numbers_N % tiny_split.LEVELS
    write_index(split, numbers_N, numbers_N, rows.offsets_N[at_N], rows.lengths_N[at_N], rows.crc32_N[at_N])
    manifest = tiny_split.describe(infos, count, count, PX)
    (split / shards.MANIFEST).write_text(manifest.to_json())
    return {"shards": count, "manifest_bytes": (split / shards.MANIFEST).stat().st_size} | take(split, 100)


def large_case(folder: Path, scale: float) -> dict[str, Any]:
    """Members of a GiB of nothing between the samples: sizes and offsets are real, the blocks on disk are not."""
    from feedline.preprocess.sources.tar_headers import reader, walk

    gibibytes = max(1, round(LARGE_GIB * scale))
    split = folder / "train"
    split.mkdir()
    name = shard_tar.shard_name("train", 0)
    with (split / name).open("wb") as file, shard_tar.ShardWriter(file, 0) as writer:
        for number in range(20 * gibibytes):
            if number % 20 == 0:
                file.write(shard_tar.member_header(f"pad{number}.bin", GIBIBYTE))
                file.seek(GIBIBYTE, os.SEEK_CUR)
                writer.bytes = file.tell()
            picture = tiny_split.picture(number, PX)
            writer.add(f"s{number}", picture, "jpg", label=number, width=PX, height=PX)
    (split / shards.INDEX).write_bytes(shards.index_bytes(writer.rows))
    samples = len(writer.rows)
    info = shards.ShardInfo(
        name=name, samples=samples, planned_samples=samples, bytes=writer.bytes, sha256=writer.sha256
    )
    (split / shards.MANIFEST).write_text(tiny_split.describe([info], samples, samples, PX).to_json())
    started_s = time.perf_counter()
    with reader(str(split / name), {}) as (read, size_bytes):
        walked = [member.offset for member in walk(read, 0, size_bytes, name) if member.name.endswith(".jpg")]
    if walked != [row.offset for row in writer.rows]:
        raise AssertionError("walking the tar gives other offsets than writing it")
    walked_s = round(time.perf_counter() - started_s, 3)
    return {"shard_bytes": size_bytes, "walk_s": walked_s} | take(split, 12)


def rows_case(folder: Path, scale: float) -> dict[str, Any]:
    count = round(IMAGENET * scale)
    split = folder / "train"
    manifest = tiny_split.write(split, tiny_split.LEVELS, 4, px=PX)
    rows = shards.read_index(split, manifest)
    at_N = np.arange(count) % tiny_split.LEVELS
    write_index(split, rows.labels_N[at_N], rows.shards_N[at_N], rows.offsets_N[at_N], rows.lengths_N[at_N],
                rows.crc32_N[at_N])  # fmt: skip
    manifest = replace(manifest, samples=count)
    (split / shards.MANIFEST).write_text(manifest.to_json())
    started_s = time.perf_counter()
    shards.read_index(split, manifest)
    read_s = round(time.perf_counter() - started_s, 3)
    return {"rows": count, "index_bytes": (split / shards.INDEX).stat().st_size, "index_s": read_s} | take(split, 50)


def write_index(split: Path, labels_N: Any, shards_N: Any, offsets_N: Any, lengths_N: Any, crc32_N: Any) -> None:
    count = len(labels_N)
    keys = pa.array([f"s{number:07d}" for number in range(count)])
    sides = np.full(count, PX)
    columns = [keys, labels_N, shards_N, offsets_N, lengths_N, sides, sides, crc32_N]
    arrays = [pa.array(one).cast(field.type) for one, field in zip(columns, shards.INDEX_SCHEMA, strict=True)]
    (split / shards.INDEX).write_bytes(
        shards.index_table_bytes(pa.Table.from_arrays(arrays, schema=shards.INDEX_SCHEMA))
    )


def classes_case(folder: Path, scale: float) -> dict[str, Any]:
    """All classes but a few have one sample: a balanced order, a training step and an evaluation go through."""
    count = round(MANY_CLASSES * scale)
    tiny_split.write(folder / "data" / "train", count + 100, 4, px=PX, classes=count)
    tiny_split.write(folder / "data" / "val", 300, 1, px=PX, classes=count)
    from feedline.pipeline.loader import Loader

    loader = Loader(folder / "data" / "train", batch_size=32, image_size=PX, num_workers=0, class_balanced=True,
                    rank=0, world_size=1)  # fmt: skip
    labels = np.concatenate([labels_N for _, labels_N in loader])
    spread = int(np.bincount(labels, minlength=count).max())
    record = _trained(folder / "data", folder / "run", steps=5)
    return {"classes": count, "most_of_a_class": spread, "val_samples": record["epochs"][-1]["val_samples"]}


def _trained(dataset: Path, run: Path, **options: Any) -> dict[str, Any]:
    from feedline.train.config import TrainConfig
    from feedline.train.loop import train

    settings: dict[str, Any] = {"model": "small_cnn", "epochs": 1, "image_size": 28, "batch_size": 64, "threads": 1}
    settings |= {"num_workers": 0, "device": "cpu", "tensorboard": False} | options
    return train(TrainConfig(dataset=dataset, run=run, **settings))


def small_case(folder: Path, scale: float) -> dict[str, Any]:
    """Five samples and a batch of 64: `drop` has no batch and says so, `pad` and `wrap` have one."""
    from feedline.pipeline.base.errors import FeedlineError
    from feedline.pipeline.loader import Loader

    data = folder / "data"
    tiny_split.write(data / "train", 5, 1, px=PX)
    tiny_split.write(data / "val", 1, 1, px=PX, classes=5)
    batches: dict[str, Any] = {}
    for policy in ("drop", "pad", "wrap"):
        loader = Loader(
            data / "train", batch_size=64, image_size=PX, num_workers=1, policy=policy, rank=0, world_size=1
        )
        labels = [[int(label) for label in labels_N] for _, labels_N in loader]
        if policy != "drop" and (len(labels) != 1 or {*range(5)} - {*labels[0]}):
            raise AssertionError(f"{policy}: {labels}")
        batches[policy] = [len(one) for one in labels]
        loader.close()
    try:
        _trained(data, folder / "dropped")
        said = "trained on nothing"
    except FeedlineError as error:
        said = str(error).replace(str(folder), "DIR")
    if said == "trained on nothing":
        raise AssertionError(said)
    padded = _trained(data, folder / "padded", policy="pad")
    return {"batches": batches, "train_with_drop": said, "val_samples_with_pad": padded["epochs"][-1]["val_samples"]}


CASES: dict[str, Callable[[Path, float], dict[str, Any]]] = {
    "shards": shards_case, "large": large_case, "rows": rows_case, "classes": classes_case, "small": small_case,
}  # fmt: skip

if __name__ == "__main__":
    main()
