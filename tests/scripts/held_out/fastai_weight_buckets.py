"""fastai with a callback that follows how the weights' magnitudes spread over powers of two."""

import argparse
import math
from contextlib import ExitStack
from pathlib import Path

import torch
from fastai.callback.core import Callback
from fastai.callback.progress import CSVLogger, ProgressCallback
from fastai.callback.schedule import Learner
from fastai.data.core import DataLoaders
from fastai.metrics import accuracy
from PIL import Image
from stopwatch import lap
from torch import nn
from torchvision.transforms.functional import pil_to_tensor


class Remembered:
    """(image, label) from memory; fastai needs no more than len() and []."""

    def __init__(self, files, names, length, side=64):
        self.length, self.items = length, []
        for file in files:
            with Image.open(file) as photo:
                photo.draft("RGB", (side, side))
                pixels = pil_to_tensor(photo.convert("RGB").resize((side, side)))
            self.items.append((pixels.float() / 127.5 - 1, torch.tensor(names.index(file.parent.name))))

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return self.items[index % len(self.items)]


class WeightBuckets(Callback):
    """For each tensor the number of weights in each bucket of magnitude, after every batch."""

    def __init__(self, lowest=-20):
        self.lowest, self.pages = lowest, []

    def spread(self, values):
        counts = {}
        for value in values:
            power = math.frexp(value)[1] if value else self.lowest
            power = max(power, self.lowest)
            counts[power] = counts.get(power, 0) + 1
        return counts

    def after_batch(self):
        if not self.training:
            return
        with lap("own"):
            named = self.learn.model.named_parameters()
            page = {name: self.spread(tensor.detach().flatten().tolist()) for name, tensor in named}
            self.pages = [*self.pages[-199:], page]


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


def conv(before, after, stride=1):
    return nn.Sequential(nn.Conv2d(before, after, 3, stride, 1), nn.BatchNorm2d(after), nn.ReLU())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--epochs", type=int, default=80)
    parser.add_argument("--out", type=Path, default=Path("runs/fastai_weight_buckets"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)

    files = sorted((args.data / "photos").glob("*/*.[jJ]*"))
    names = sorted({file.parent.name for file in files})
    train, valid = files[1::2][:250], files[::12][:50]
    loaders = DataLoaders.from_dsets(
        Remembered(train, names, 800), Remembered(valid, names, 48), bs=32, num_workers=0, device="cpu"
    )
    model = nn.Sequential(
        conv(3, 32), conv(32, 48, 2), conv(48, 96, 2), conv(96, 128, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(128, len(names)),
    )  # fmt: skip
    callbacks = [WeightBuckets(), Laps(), CSVLogger(fname="history.csv")]
    learner = Learner(loaders, model, nn.CrossEntropyLoss(), path=args.out, metrics=accuracy, cbs=callbacks)
    learner.remove_cb(ProgressCallback)
    learner.fit_one_cycle(args.epochs, 3e-3)
    learner.save("last")


if __name__ == "__main__":
    main()
