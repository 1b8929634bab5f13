"""fastai on a table in the manner of FER-2013: a CSV file with one row a picture, its pixels as numbers in a column."""

import argparse
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from fastai.callback.core import Callback
from fastai.callback.progress import ProgressCallback
from fastai.callback.schedule import Learner
from fastai.data.block import CategoryBlock, DataBlock
from fastai.data.transforms import ColReader, ColSplitter
from fastai.metrics import accuracy
from fastai.vision.augment import Flip
from fastai.vision.core import PILImage
from fastai.vision.data import ImageBlock
from PIL import Image
from torch import nn

from stopwatch import lap

SIDE = 112


def write_table(photos: Path, path: Path, count=360):
    """emotion,pixels,Usage: as on Kaggle, but in colour and larger."""
    if path.exists():
        return
    files = sorted(photos.glob("*/*.JPEG"))
    names = sorted({file.parent.name for file in files})
    rows = []
    for number, file in enumerate(files[:: len(files) // count][:count]):
        photo = Image.open(file)
        photo.draft("RGB", (SIDE, SIDE))
        numbers = np.asarray(photo.convert("RGB").resize((SIDE, SIDE))).ravel().tolist()
        usage = "PublicTest" if number % 12 == 0 else "Training"
        rows.append((names.index(file.parent.name), " ".join(map(str, numbers)), usage))
    part = path.with_suffix(".part")
    pd.DataFrame(rows, columns=["emotion", "pixels", "Usage"]).to_csv(part, index=False)
    part.replace(path)


def picture_of(row):
    with lap("decode"):
        values = [int(value) for value in row["pixels"].split(" ")]
        return PILImage.create(np.array(values, dtype=np.uint8).reshape(SIDE, SIDE, 3))


class Laps(Callback):
    """compute: from the batch to the step; wait: from the end of one batch to the next one."""

    order, open = 80, ExitStack()

    def turn(self, name=None):
        self.open.close()
        if name and self.training:
            self.open.enter_context(lap(name))

    def before_batch(self):
        self.turn("compute")

    def after_step(self):
        self.turn()

    def after_batch(self):
        self.turn("wait")

    def after_train(self):
        self.turn()


class Report(Callback):
    def __init__(self, path: Path):
        self.path = path

    def after_epoch(self):
        print(f"epoch {self.epoch}: " + ", ".join(f"{value:.4f}" for value in self.recorder.log[1:3]), flush=True)
        torch.save(self.learn.model.state_dict(), self.path)


def body(classes):
    layers, before = [], 3
    for after in (8, 16, 32):
        layers += [nn.Conv2d(before, after, 5, 3, 2, bias=False), nn.BatchNorm2d(after), nn.ReLU(True)]
        before = after
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(before, classes))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/expressions_fastai"))
    parser.add_argument("--epochs", type=int, default=12)
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    write_table(args.data / "photos", args.out / "icml_face_data.csv")
    table = pd.read_csv(args.out / "icml_face_data.csv")
    table["valid"] = table["Usage"] != "Training"
    table = pd.concat([table[table["valid"]], *[table[~table["valid"]]] * 8], ignore_index=True)
    block = DataBlock(
        blocks=(ImageBlock, CategoryBlock),
        get_x=picture_of,
        get_y=ColReader("emotion"),
        splitter=ColSplitter("valid"),
        batch_tfms=[Flip()],
    )
    loaders = block.dataloaders(table, bs=32, num_workers=2, persistent_workers=True, device=torch.device("cpu"))
    learner = Learner(
        loaders,
        body(loaders.c),
        nn.CrossEntropyLoss(),
        path=args.out,
        metrics=accuracy,
        cbs=[Laps(), Report(args.out / "expressions.pt")],
    )
    learner.remove_cb(ProgressCallback)
    learner.fit_one_cycle(args.epochs, 2e-3)


if __name__ == "__main__":
    main()
