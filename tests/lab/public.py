"""What `feedline profile` says of training scripts that others published, and whether a first remedy keeps its word.

    python -m tests.lab.public --checkouts DIR --work DIR [--only NAME…]

DIR/OWNER+NAME/repo is a clone of each repository of tests/scripts/public.toml (a bare one will do). Each script runs
for 20 s under the profiler, from a copy in the work folder. Where its first remedy is of the environment, the script
runs with and without it in turns, and the rates of the loop are compared.

Prints a table and writes benchmarks/results/public.json; with --only, the other scripts' figures stay in it.
"""

import argparse
import json
import math
import os
import pickle
import pty
import statistics
import struct
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from feedline.benchmarks.experiments.harness import RESULTS, end_with, say, show, write
from feedline.pipeline.base.errors import UsageError
from tests.lab.collection import FRAMEWORKS
from tests.lab.collection_gains import carried_out_by, gain_of
from tests.lab.collection_runs import IMAGES, PROFILE_S, SCRIPTS, Script

IMAGES_OF_SETS = 10_000
PAIRS = 4  # one of 20 s has an error of 6 %


@dataclass(frozen=True, kw_only=True)
class Public:
    name: str
    repository: str
    script: str
    arguments: list[str] = field(default_factory=list)
    edits: list[tuple[str, str]] = field(default_factory=list)
    options: list[str] = field(default_factory=list)
    """Of `feedline profile`."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.lab.public", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--checkouts", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True, help="data and copies of the scripts")
    parser.add_argument("--only", nargs="+", metavar="NAME", default=())
    args = parser.parse_args()
    packages = next(iter(sorted((FRAMEWORKS / "lib").glob("python*/site-packages"))), None)
    if packages is None:
        raise UsageError(f"no packages in {FRAMEWORKS}: run make test-frameworks")
    work = args.work.resolve()
    make_data(work / "data")
    tables = tomllib.loads((SCRIPTS / "public.toml").read_text())
    found = {
        name: studied(Public(name=name, **table), args.checkouts, work, packages)
        for name, table in tables.items()
        if not args.only or name in args.only
    }
    show(
        ("script", "verdict", "first remedy", "predicted", "measured"),
        [row(name, one) for name, one in found.items()],
    )
    out, without_paths = RESULTS / "public.json", json.loads(json.dumps(found).replace(str(work), "WORK"))
    kept = json.loads(out.read_text())["scripts"] if args.only and out.exists() else {}
    write(out, {"n": len({**kept, **found}), "seconds": PROFILE_S, "scripts": {**kept, **without_paths}})
    return 0


def studied(public: Public, checkouts: Path, work: Path, packages: Path) -> dict[str, Any]:
    say(f"{public.name}: {public.repository} {public.script}")
    repository = checkouts / public.repository.replace("/", "+") / "repo"
    commit = subprocess.check_output(["git", "-C", repository, "rev-parse", "--short", "HEAD"], text=True).strip()
    copy = work / public.name
    script = copied(public, repository, copy, work / "data")
    environment = {name: v for name, v in os.environ.items() if not name.startswith(("FEEDLINE_", "MALLOC_"))}
    environment |= {"PYTHONPATH": str(packages), "HF_HUB_OFFLINE": "1", "HOME": str(work / "home")}
    words = [word.format(data=work / "data") for word in public.arguments]

    def profiled(more: Mapping[str, str] | None = None, *options: str) -> dict[str, Any]:
        record = work / f"{public.name}.json"
        record.unlink(missing_ok=True)
        command = [Path(sys.executable).with_name("feedline"), "profile", "--seconds", str(PROFILE_S), *options,
                   "--json", record, script.path, *words]  # fmt: skip
        ours, terminal = pty.openpty()  # as people start it
        with (work / f"{public.name}.txt").open("w") as printed:
            subprocess.run(command, cwd=script.path.parent, env=environment | dict(more or {}), stdout=printed,
                           stderr=subprocess.STDOUT, stdin=terminal, check=False)  # fmt: skip
        os.close(ours)
        os.close(terminal)
        if not record.exists():
            raise UsageError(f"{public.name} left no recording: see {work / public.name}.txt")
        return json.loads(record.read_text())

    profile = profiled(None, *public.options)
    verdict = profile["verdict"]
    first = next((one for one in profile["predictions"] if one["remedy"] == verdict["first"]), None)
    way = carried_out_by(script, first) if first else None
    gain, logs = None, list[float]()
    if first and way and not way[0]:
        for _ in range(PAIRS):
            options = ("--no-trials", *(word for word in public.options if word != "--legs"))
            with_it, without = (profiled(more, *options)["verdict"]["samples_per_s"] for more in (way[1], None))
            logs.append(math.log(with_it / without))
        gain = gain_of(script, first, math.exp(statistics.mean(logs)), rank=1)
    return {
        "repository": public.repository, "commit": commit, "script": public.script, "arguments": public.arguments,
        "edits": public.edits, "verdict": {name: verdict[name] for name in ("headline", "bound", "close", "shares",
        "errors", "cause", "samples_per_s")}, "first": first and {name: first[name] for name in ("remedy", "gain",
        "gain_low", "gain_high", "command")}, "gain": gain and asdict(gain)
        | {"inside": gain.inside, "measured_each": [math.exp(log) for log in logs]},
    }  # fmt: skip


def copied(public: Public, repository: Path, to: Path, data: Path) -> Script:
    """The script in a copy of its folder, with its edits."""
    if not to.exists():
        to.mkdir(parents=True)
        folder = str(Path(public.script).parent)
        archive = subprocess.Popen(["git", "-C", repository, "archive", "HEAD", folder], stdout=subprocess.PIPE)
        subprocess.run(["tar", "-x", "-C", to], stdin=archive.stdout, check=True)
        path = to / public.script
        text = path.read_text()
        for old, new in public.edits:
            if old not in text:
                raise UsageError(f"{public.repository}:{public.script} has no {old!r}")
            text = text.replace(old, new.replace("{data}", str(data)))
        path.write_text(text)
    path = to / public.script
    return Script(
        name=path.stem, framework=public.repository, launch="python", arguments=public.arguments, bound=(), cause=(),
        remedies=(), truth="", why="", share="wait", writes=(), folder=path.parent,
    )  # fmt: skip


def row(name: str, one: Mapping[str, Any]) -> tuple[str, ...]:
    first, gain = one["first"], one["gain"]
    return (
        name,
        one["verdict"]["headline"],
        first["remedy"] if first else "nothing",
        f"{first['gain']:.2f} ({first['gain_low']:.2f}-{first['gain_high']:.2f})" if first else "",
        f"{gain['measured']:.2f}" if gain else "",
    )


def make_data(data: Path) -> None:
    """Photographs of `feedline synth` as an ImageFolder and by name, and random digits and CIFAR pictures."""
    if data.exists():
        return
    making = data.with_name("data-being-made")
    feedline = Path(sys.executable).with_name("feedline")
    photos = making / "photos"
    subprocess.run([feedline, "synth", photos, "--layout", "folder", "--images", str(IMAGES)], check=True)
    for part in ("imagenet", "pets", "MNIST/raw", "cifar-10-batches-py"):
        (making / part).mkdir(parents=True)
    for part in ("train", "val"):
        (making / "imagenet" / part).symlink_to("../photos/train")
    for number, file in enumerate(sorted((photos / "train").glob("*/*.JPEG"))):
        os.link(file, making / "pets" / f"{file.parent.name}_{number}.jpg")
    rng = np.random.default_rng(0)
    for part, count in (("train", IMAGES_OF_SETS), ("t10k", IMAGES_OF_SETS // 10)):
        for name, shape in (("images-idx3", (count, 28, 28)), ("labels-idx1", (count,))):
            header = struct.pack(f">BBBB{len(shape)}I", 0, 0, 8, len(shape), *shape)
            values = rng.integers(0, 10 if len(shape) == 1 else 256, shape, dtype=np.uint8)
            (making / "MNIST" / "raw" / f"{part}-{name}-ubyte").write_bytes(header + values.tobytes())
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        count = IMAGES_OF_SETS // 5
        pictures = rng.integers(0, 256, (count, 3072), dtype=np.uint8)
        batch = {"data": pictures, "labels": rng.integers(0, 10, count).tolist()}
        (making / "cifar-10-batches-py" / name).write_bytes(pickle.dumps(batch))
    meta = {"label_names": [str(number) for number in range(10)]}
    (making / "cifar-10-batches-py" / "batches.meta").write_bytes(pickle.dumps(meta))
    making.rename(data)


if __name__ == "__main__":
    end_with(main)
