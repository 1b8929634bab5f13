"""What is written durably, each as a small act that can be struck at every step and then done again.

A subject's `make()` draws what it works on, `fresh(folder)` what is there at first. `act(folder)` does the whole work
in `folder`; `left(folder)` is what counts of the result, file by file; `unsound(folder)` says what is wrong with a
struck folder before anything is done again: a finished dataset is complete or it is not there.
"""

import hashlib
import json
import shutil
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from feedline.pipeline.base.errors import DatasetError
from feedline.pipeline.format import manifest as shards
from feedline.preprocess.engine import Engine, EngineRun
from tests.lab import tiny_split

MANIFEST, INDEX = shards.MANIFEST, shards.INDEX


def digests(folder: Path, *leave_out: str) -> dict[str, str]:
    """SHA-256 of every file but those named; empty folders count too."""
    found: dict[str, str] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name not in leave_out:
            found[str(path.relative_to(folder))] = hashlib.sha256(path.read_bytes()).hexdigest()
        elif path.is_dir() and not any(path.iterdir()):
            found[f"{path.relative_to(folder)}/"] = "empty"
    return found


def unsound_splits(folder: Path) -> str | None:
    """Of every manifest that is there: its shards have their bytes and its index fits."""
    for manifest_path in folder.rglob(MANIFEST):
        try:
            manifest = shards.read_manifest(manifest_path.parent)
            shards.read_index(manifest_path.parent, manifest)
        except DatasetError as error:
            return f"a manifest without its dataset: {error}"
        for one in manifest.shards:
            path = manifest_path.parent / one.name
            if not path.exists() or hashlib.sha256(path.read_bytes()).hexdigest() != one.sha256:
                return f"a manifest without its shard {one.name}"
    return None


class Prepare:
    """`feedline prepare` with all that it does but Spark: plan, write, receipts, commit, resume."""

    name = "prepare, without Spark"

    def __init__(self, work: Path) -> None:
        import_module("feedline.preprocess.prepare")  # before the forks: each would need a second for it

        self._source = work / "raw"

    def make(self) -> None:
        from PIL import Image

        rng = np.random.default_rng(0)
        for label in ("ant", "bee"):
            (self._source / label).mkdir(parents=True)
            for number in range(8):
                image = Image.fromarray(rng.integers(0, 256, (9, 12, 3), np.uint8)).resize((48, 36))
                image.save(self._source / label / f"{label}{number}.jpg", quality=80)
        (self._source / "bee" / "odd.jpg").write_bytes(b"no image")

    def fresh(self, folder: Path) -> None:
        """Nothing is there at first."""

    def act(self, folder: Path) -> None:
        from feedline.preprocess.config import PrepareConfig
        from feedline.preprocess.picture import Output
        from feedline.preprocess.prepare import prepare

        config = PrepareConfig(
            source=str(self._source),
            out=str(folder / "out"),
            outputs=(Output(size_px=32),),
            shards=4,
            max_bad=1,
            val_fraction=0.25,
        )
        prepare(config, engine=_Here())

    def left(self, folder: Path) -> dict[str, str]:
        return digests(folder, "report.json")

    def unsound(self, folder: Path) -> str | None:
        return unsound_splits(folder)


class _Here(Engine):
    """An engine: the tasks in this process."""

    def run(self, order: Any, tasks: Any, on_outcome: Callable[[Any], None]) -> EngineRun:
        from feedline.preprocess.write_shard import write_shards

        for task in tasks:
            write_shards(order, [task], on_outcome)
        return EngineRun(master="none")


class Index:
    """`feedline index` over shards of others."""

    name = "index of foreign shards"

    def __init__(self, work: Path) -> None:
        import_module("feedline.preprocess.index_tars")

        self._shards = work / "foreign"

    def make(self) -> None:
        tiny_split.write(self._shards, 24, 2, px=16, classes=3)
        (self._shards / MANIFEST).unlink()
        (self._shards / INDEX).unlink()

    def fresh(self, folder: Path) -> None:
        shutil.copytree(self._shards, folder / "train")

    def act(self, folder: Path) -> None:
        from feedline.preprocess.index_tars import index_shards

        index_shards(folder / "train", overwrite=True)

    def left(self, folder: Path) -> dict[str, str]:
        return digests(folder)

    def unsound(self, folder: Path) -> str | None:
        return unsound_splits(folder)


class Cached:
    """The cache of remote shards: fetched, checked, put in place, evicted."""

    name = "shard cache"

    def __init__(self, work: Path) -> None:
        self._source = work / "remote"

    def make(self) -> None:
        tiny_split.write(self._source, 24, 3, px=16)

    def fresh(self, folder: Path) -> None:
        (folder / "cache" / "identity").mkdir(parents=True)

    def act(self, folder: Path) -> None:
        from feedline.pipeline.format.remote import ShardCache

        manifest = shards.read_manifest(self._source)
        size = manifest.shards[0].bytes
        cache = ShardCache(folder / "cache" / "identity", 2 * size, self._fetch)
        for shard in manifest.shards:
            cache.ensure(shard)
        if sum(path.stat().st_size for path in (folder / "cache").rglob("*.tar")) > 2 * size:
            raise AssertionError("the cache is larger than allowed")

    def _fetch(self, shard: shards.ShardInfo, path: Path) -> None:
        path.write_bytes((self._source / shard.name).read_bytes())

    def left(self, folder: Path) -> dict[str, str]:
        """The last shard is there whole; which others had to go depends on when it was struck."""
        found = digests(folder / "cache" / "identity")
        last = shards.read_manifest(self._source).shards[-1].name
        return {
            name: digest for name, digest in found.items() if name == last or not name.endswith((".tar", ".lock"))
        }

    def unsound(self, folder: Path) -> str | None:
        for path in folder.rglob("*.tar"):
            if path.read_bytes() != (self._source / path.name).read_bytes():
                return f"a cached shard with other bytes: {path.name}"
        return None


class Saved:
    """A recording written over an older one."""

    name = "recording"

    def __init__(self, work: Path) -> None:
        from feedline.profiling.record.recording import Recording, Script

        self._old = Recording(script=Script(argv=["old.py"]))
        self._new = Recording(script=Script(argv=["new.py"]))

    def make(self) -> None:
        """Nothing is needed."""

    def fresh(self, folder: Path) -> None:
        self._old.save(folder / "run.json")

    def act(self, folder: Path) -> None:
        self._new.save(folder / "run.json")

    def left(self, folder: Path) -> dict[str, str]:
        return digests(folder)

    def unsound(self, folder: Path) -> str | None:
        text = json.loads((folder / "run.json").read_text())
        return None if text in (self._old.to_dict(), self._new.to_dict()) else "neither the old nor the new recording"


class Train:
    """Training with checkpoints, resumed: the same numbers as in one piece."""

    name = "train"
    most_faults = 60  # each trains twice

    def __init__(self, work: Path) -> None:
        import_module("feedline.train.loop")

        self._dataset = work / "dataset"

    def make(self) -> None:
        tiny_split.write(self._dataset / "train", 48, 2, px=32, classes=4)
        tiny_split.write(self._dataset / "val", 12, 1, px=32, classes=4)

    def fresh(self, folder: Path) -> None:
        """A run folder is made by the run."""

    def act(self, folder: Path) -> None:
        import torch

        from feedline.train.config import TrainConfig
        from feedline.train.loop import train

        torch.set_num_threads(1)
        train(
            TrainConfig(
                dataset=self._dataset, run=folder / "run", resume="auto", model="small_cnn", epochs=2, batch_size=16,
                image_size=28, num_workers=0, device="cpu", threads=1, seed=1, checkpoint_every=2,
                tensorboard=False,
            )
        )  # fmt: skip

    def left(self, folder: Path) -> dict[str, str]:
        """Weights, momentum and place of the last checkpoint, and the names of all files."""
        from feedline.train import checkpoint

        found = {str(path.relative_to(folder)): "" for path in folder.rglob("*") if path.is_file()}
        found = {name: "" for name in found if "step-" not in name and "tfevents" not in name}
        newest = checkpoint.Checkpoints(folder / "run").newest_good()
        if newest is not None:
            model = newest.state["model"]
            weights = b"".join(model[name].numpy().tobytes() for name in sorted(model))
            found["weights"] = hashlib.sha256(weights).hexdigest()
        return found

    def unsound(self, folder: Path) -> str | None:
        from feedline.train import checkpoint

        for path in (folder / "run" / "checkpoints").glob("*.pt"):
            try:
                checkpoint.read(path)
            except checkpoint.CheckpointError as error:
                return f"a checkpoint that is not whole: {error}"
        return None


SUBJECTS = (Prepare, Index, Cached, Saved, Train)
