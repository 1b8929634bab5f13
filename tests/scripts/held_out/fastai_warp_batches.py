"""fastai: DataBlock, squares of photographs, aug_transforms on whole batches."""

import argparse
import warnings
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

warnings.filterwarnings("ignore")
from fastai.callback.core import Callback  # noqa: E402
from fastai.data.block import CategoryBlock, DataBlock  # noqa: E402
from fastai.data.core import TfmdDL  # noqa: E402
from fastai.data.transforms import Normalize, RandomSplitter  # noqa: E402
from fastai.learner import Learner  # noqa: E402
from fastai.losses import LabelSmoothingCrossEntropyFlat  # noqa: E402
from fastai.metrics import accuracy  # noqa: E402
from fastai.vision.augment import aug_transforms  # noqa: E402
from fastai.vision.core import imagenet_stats  # noqa: E402
from fastai.vision.data import ImageBlock  # noqa: E402

from stopwatch import lap, timed  # noqa: E402

SIDE, SQUARES = 144, 3


def open_all(root: Path, every=2):
    """Every second photograph, 144 px high or wide, in memory."""
    photos = []
    for path in sorted(root.glob("*/*.JPEG"))[::every]:
        image = Image.open(path)
        image.draft("RGB", (SIDE, SIDE))
        image = image.convert("RGB")
        scale = SIDE / min(image.size)
        size = [max(SIDE, round(length * scale)) for length in image.size]
        photos.append((np.array(image.resize(size, Image.Resampling.BILINEAR)), path.parent.name))
    return photos


def getters(photos):
    def square(number):
        image = photos[number // SQUARES][0]
        height, width = image.shape[:2]
        part = number % SQUARES / (SQUARES - 1)
        y, x = round(part * (height - SIDE)), round(part * (width - SIDE))
        return np.ascontiguousarray(image[y : y + SIDE, x : x + SIDE])

    def name(number):
        return photos[number // SQUARES][1]

    return square, name


class TimedDL(TfmdDL):
    def __iter__(self):
        if not self.shuffle:
            yield from super().__iter__()
        else:
            yield from timed(super().__iter__(), "wait")


class Laps(Callback):
    def __init__(self, out: Path):
        self.out = out

    def before_batch(self):
        if self.training:
            self.open = lap("compute")
            self.open.__enter__()

    def after_batch(self):
        if self.training:
            self.open.__exit__(None, None, None)

    def after_epoch(self):
        values = [f"{float(value):.4f}" for value in self.learn.recorder.log[1:]]
        print(f"epoch {self.epoch}: {' '.join(values)}", flush=True)
        torch.save(self.learn.model.state_dict(), self.out / "squares.pth")


def small_net(classes):
    def layer(inputs, outputs, kernel, stride):
        return [nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2), nn.BatchNorm2d(outputs), nn.ReLU(True)]

    return nn.Sequential(
        *layer(3, 16, 7, 4),
        *layer(16, 24, 3, 2),
        *layer(24, 40, 3, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(40, classes),
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/fastai_warp_batches"))
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=32)
    args = parser.parse_args()
    torch.manual_seed(34)
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)

    photos = open_all(args.data / "photos")
    square, name = getters(photos)
    block = DataBlock(
        blocks=(ImageBlock, CategoryBlock),
        dl_type=TimedDL,
        get_x=square,
        get_y=name,
        splitter=RandomSplitter(0.05, seed=34),
        batch_tfms=[
            *aug_transforms(
                max_rotate=20.0, max_zoom=1.3, max_lighting=0.4, max_warp=0.3, p_affine=1.0, p_lighting=1.0
            ),
            Normalize.from_stats(*imagenet_stats, cuda=False),
        ],
    )
    loaders = block.dataloaders(
        list(range(SQUARES * len(photos))),
        path=args.out,
        bs=args.batch_size,
        num_workers=2,
        device=torch.device("cpu"),
    )
    learner = Learner(
        loaders,
        small_net(len(loaders.vocab)),
        loss_func=LabelSmoothingCrossEntropyFlat(),
        metrics=accuracy,
        cbs=Laps(args.out),
        path=args.out,
    )
    with learner.no_logging():
        learner.fit(args.epochs, lr=2e-3)


if __name__ == "__main__":
    main()
