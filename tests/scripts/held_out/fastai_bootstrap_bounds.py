"fastai on thumbnails in memory; the recorder gives every rate with its bounds, not as a bare number."

import argparse
import csv
import random
import statistics
from collections import deque
from contextlib import ExitStack
from pathlib import Path

import torch
from fastai.data.core import DataLoaders
from fastai.data.load import DataLoader
from fastai.learner import Learner
from fastai.optimizer import RAdam
from fastai.callback.core import Callback
from fastai.callback.progress import ProgressCallback
from fastai.callback.schedule import *  # noqa: F403
from PIL import Image
from torch import nn
from torchvision.transforms.functional import pil_to_tensor

from stopwatch import lap


def load(root, count, side=40):
    files = sorted(root.glob("*/*.JPEG"))
    names = sorted({file.parent.name for file in files})
    samples = []
    for file in random.sample(files, count):
        with Image.open(file) as photo:
            photo.draft("RGB", (side, side))
            samples.append((pil_to_tensor(photo.convert("RGB").resize((side, side))), names.index(file.parent.name)))
    return samples, names


class Thumbnails:
    def __init__(self, samples, times=1):
        self.samples, self.times = samples, times

    def __len__(self):
        return len(self.samples) * self.times

    def __getitem__(self, index):
        image, label = self.samples[index % len(self.samples)]
        if self.times > 1 and random.random() < 0.5:
            image = image.flip(2)
        return image.float().div(127.5).sub(1), torch.tensor(label)


class Laps(Callback):
    order, stack = 60, ExitStack()

    def turn(self, name=None):
        self.stack.close()
        if name and self.training:
            self.stack.enter_context(lap(name))

    def before_batch(self):
        self.turn("compute")

    def after_step(self):
        self.turn("own")

    def after_batch(self):
        self.turn("wait")

    def after_train(self):
        self.turn()


class Bounds(Callback):
    "Bounds of 90 % for the recent training accuracy, by the bootstrap"

    order = 65

    def __init__(self, file, last=300, draws=600):
        self.file, self.draws, self.hits = file, draws, deque(maxlen=last)

    def before_fit(self):
        self.stream = self.file.open("w", newline="")
        self.table = csv.writer(self.stream)
        self.table.writerow(["step", "low", "accuracy", "high"])

    def interval(self, values):
        means = sorted(statistics.mean(random.choices(values, k=len(values))) for _ in range(self.draws))
        return means[round(0.05 * self.draws)], means[round(0.95 * self.draws) - 1]

    def after_step(self):
        self.hits.extend((self.pred.argmax(1) == self.yb[0]).int().tolist())
        values = list(self.hits)
        low, high = self.interval(values)
        self.table.writerow([self.train_iter, f"{low:.4f}", f"{statistics.mean(values):.4f}", f"{high:.4f}"])

    def after_fit(self):
        self.stream.close()


def network(classes, width=24):
    return nn.Sequential(
        nn.Conv2d(3, width, 3, stride=2, padding=1), nn.BatchNorm2d(width), nn.GELU(),
        nn.Conv2d(width, width * 2, 3, stride=2, padding=1), nn.BatchNorm2d(width * 2), nn.GELU(),
        nn.Conv2d(width * 2, width * 2, 3, padding=1), nn.GELU(),
        nn.AdaptiveMaxPool2d(2), nn.Flatten(), nn.Dropout(0.1), nn.Linear(width * 8, classes),
    )  # fmt: skip


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/fastai_bootstrap_bounds"))
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--bs", type=int, default=32)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    random.seed(2)
    torch.set_num_threads(1)
    samples, names = load(args.data / "photos", count=900)
    train = DataLoader(Thumbnails(samples[100:], times=8), bs=args.bs, shuffle=True, drop_last=True, num_workers=0)
    valid = DataLoader(Thumbnails(samples[:100]), bs=args.bs, num_workers=0)
    loaders = DataLoaders(train, valid, device=torch.device("cpu"))
    learner = Learner(
        loaders, network(len(names)), nn.CrossEntropyLoss(label_smoothing=0.1), opt_func=RAdam, path=args.out,
        cbs=[Laps(), Bounds(args.out / "bounds.csv")],
    )  # fmt: skip
    learner.remove_cb(ProgressCallback)
    learner.fit_one_cycle(args.epochs, 4e-3)
    learner.save("thumbnails")


if __name__ == "__main__":
    main()
