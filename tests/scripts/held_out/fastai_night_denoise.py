"""fastai: a classifier of night photographs. Noise is added and taken out again, as a camera's software does."""

import argparse
import warnings
from contextlib import ExitStack
from pathlib import Path

import cv2
import numpy as np
import torch
from torch import nn

warnings.filterwarnings("ignore")
from fastai.callback.core import Callback  # noqa: E402
from fastai.data.block import CategoryBlock, DataBlock  # noqa: E402
from fastai.data.transforms import RandomSplitter, parent_label  # noqa: E402
from fastai.learner import Learner  # noqa: E402
from fastai.losses import CrossEntropyLossFlat  # noqa: E402
from fastai.metrics import accuracy  # noqa: E402
from fastai.vision.augment import FlipItem, RandTransform, Resize  # noqa: E402
from fastai.vision.core import PILImage  # noqa: E402
from fastai.vision.data import ImageBlock  # noqa: E402

from stopwatch import lap  # noqa: E402


class Clock(ExitStack):
    """One lap after another."""

    def turn(self, name=None):
        self.close()
        if name:
            self.enter_context(lap(name))


class Night(RandTransform):
    """Darkens a picture, adds the noise of a high ISO, and removes it by non-local means."""

    split_idx, order = None, 3  # after Resize, before ToTensor

    def __init__(self, strength=9, **kwargs):
        super().__init__(**kwargs)
        self.strength = strength

    def encodes(self, image: PILImage):
        dark = np.asarray(image, np.float32) * np.random.uniform(0.3, 0.6)
        dark += np.random.normal(0, 7, dark.shape)
        noisy = dark.clip(0, 255).astype(np.uint8)
        clean = cv2.fastNlMeansDenoisingColored(noisy, None, self.strength, self.strength, 5, 15)
        return PILImage.create(clean)


class Laps(Callback):
    """wait: from the end of a batch to the start of the next one."""

    order = 90

    def __init__(self):
        self.clock = Clock()

    def before_train(self):
        self.clock.turn("wait")

    def before_batch(self):
        if self.training:
            self.clock.turn("compute")

    def after_batch(self):
        if self.training:
            self.clock.turn("wait")

    def after_train(self):
        self.clock.turn()

    def after_epoch(self):
        print(f"epoch {self.learn.epoch}: loss {float(self.learn.loss):.4f}", flush=True)


def small_net(classes, width=16):
    layers, before = [], 3
    for wide in (width, 2 * width, 4 * width):
        layers += [nn.Conv2d(before, wide, 3, stride=2, padding=1), nn.BatchNorm2d(wide), nn.ReLU()]
        before = wide
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/fastai_night_denoise"))
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--side", type=int, default=112)
    args = parser.parse_args()
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    args.out.mkdir(parents=True, exist_ok=True)

    block = DataBlock(
        blocks=(ImageBlock, CategoryBlock),
        get_items=lambda folder: sorted(folder.glob("*/*.JPEG")),
        get_y=parent_label,
        splitter=RandomSplitter(0.02, seed=1),
        item_tfms=[Resize(args.side), FlipItem(0.5), Night()],
    )
    loaders = block.dataloaders(
        args.data / "photos", bs=16, num_workers=2, device=torch.device("cpu"), pin_memory=False
    )
    learner = Learner(
        loaders,
        small_net(len(loaders.vocab)),
        loss_func=CrossEntropyLossFlat(),
        metrics=accuracy,
        cbs=[Laps()],
        path=args.out,
    )
    with learner.no_logging():
        learner.fit(args.epochs, 3e-3)
    torch.save(learner.model.state_dict(), args.out / "night.pt")


if __name__ == "__main__":
    main()
