"""fastai: which kind of ground? A table of pixels (colours, slopes, place, camera) and a wide tabular model."""

import argparse
import warnings
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from PIL import Image

warnings.filterwarnings("ignore")
from fastai.callback.core import Callback  # noqa: E402
from fastai.data.block import CategoryBlock  # noqa: E402
from fastai.metrics import accuracy  # noqa: E402
from fastai.tabular.core import Categorify, Normalize, TabularPandas  # noqa: E402
from fastai.tabular.learner import tabular_learner  # noqa: E402

from stopwatch import lap  # noqa: E402

SIDE = 48


def survey(photos: Path, each=30, per_photo=200, seed=0):
    """One row for each of many pixels of small photographs."""
    rng, tables = np.random.default_rng(seed), []
    for folder in sorted(p for p in photos.iterdir() if p.is_dir()):
        for number, file in enumerate(sorted(folder.iterdir())[:each]):
            image = Image.open(file)
            image.draft("RGB", (2 * SIDE, 2 * SIDE))
            pixels = np.asarray(image.convert("RGB").resize((SIDE, SIDE)), np.float32) / 255
            y, x = rng.integers(2, SIDE - 2, (2, per_photo))
            columns = {}
            for dy in (-2, 0, 2):
                for dx in (-2, 0, 2):
                    for band, name in enumerate("rgb"):
                        columns[f"{name}_{dy:+d}{dx:+d}"] = pixels[y + dy, x + dx, band]
            down, across = np.gradient(pixels.mean(2))
            columns["slope_y"], columns["slope_x"] = down[y, x], across[y, x]
            columns["row"], columns["column"] = (y // 6).astype(str), (x // 6).astype(str)
            columns["camera"] = np.full(per_photo, f"cam{number % 7}")
            columns["cover"] = np.full(per_photo, folder.name)
            tables.append(pd.DataFrame(columns))
    return pd.concat(tables, ignore_index=True)


class Laps(Callback):
    """wait: from the end of one batch to the start of the next, in training."""

    def __init__(self):
        self.open = ExitStack()

    def turn(self, name=None):
        self.open.close()
        if name:
            self.open.enter_context(lap(name))

    def before_train(self):
        self.turn("wait")

    def before_batch(self):
        if self.training:
            self.turn("compute")

    def after_batch(self):
        if self.training:
            self.turn("wait")

    def after_train(self):
        self.turn()


class EpochLine(Callback):
    order = 60

    def after_epoch(self):
        values = " ".join(f"{value:.3f}" for value in self.learn.recorder.values[-1])
        print(f"epoch {self.learn.epoch}: {values}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/fastai_tabular_terrain"))
    parser.add_argument("--epochs", type=int, default=8)
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    table = survey(args.data / "photos")
    categories = ["row", "column", "camera"]
    numbers = [name for name in table.columns if name not in (*categories, "cover")]
    order = np.random.default_rng(1).permutation(len(table))
    rows = TabularPandas(
        table,
        procs=[Categorify, Normalize],
        cat_names=categories,
        cont_names=numbers,
        y_names="cover",
        y_block=CategoryBlock(),
        splits=(order[3000:].tolist(), order[:3000].tolist()),
    )
    loaders = rows.dataloaders(bs=1024, val_bs=1500, device=torch.device("cpu"))
    learner = tabular_learner(
        loaders, layers=[2048, 1536], metrics=accuracy, cbs=[Laps(), EpochLine()], path=args.out
    )
    with learner.no_logging():
        learner.fit(args.epochs, lr=1e-3, wd=0.05)
    learner.save("terrain")


if __name__ == "__main__":
    main()
