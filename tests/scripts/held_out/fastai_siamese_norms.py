"""fastai: are two photographs of the same class? A Siamese network with fastai's residual trunk. A callback writes down
the gradient's norm for each parameter, so that dead layers show."""

import argparse
import random
from pathlib import Path

import numpy as np
import torch
from fastai.callback.core import Callback
from fastai.callback.training import GradientClip
from fastai.data.core import DataLoaders
from fastai.learner import Learner
from fastai.vision.models.xresnet import xresnet18
from PIL import Image, ImageEnhance, ImageFilter, ImageOps
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stopwatch import lap, timed


class Pairs(Dataset):
    def __init__(self, root, side, each):
        self.side = side
        self.classes = [sorted(folder.glob("*.JPEG"))[:each] for folder in sorted(root.iterdir())]

    def __len__(self):
        return sum(map(len, self.classes))

    def open(self, file):
        image = Image.open(file).convert("RGB")
        image = ImageOps.autocontrast(
            image.resize((2 * self.side, 2 * self.side), Image.Resampling.BICUBIC), cutoff=1
        )
        if random.random() < 0.5:
            image = ImageOps.mirror(image)
        image = ImageEnhance.Color(image).enhance(random.uniform(0.6, 1.4))
        if random.random() < 0.3:
            image = image.filter(ImageFilter.GaussianBlur(1.5))
        image = image.resize((self.side, self.side), Image.Resampling.BILINEAR)
        return torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 127.5 - 1

    def __getitem__(self, index):
        first = random.randrange(len(self.classes))
        second = first if random.random() < 0.5 else random.randrange(len(self.classes))
        left, right = random.choice(self.classes[first]), random.choice(self.classes[second])
        return self.open(left), self.open(right), torch.tensor(float(first == second))


class Siamese(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.trunk = xresnet18(n_out=width)
        self.head = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, left, right):
        a, b = self.trunk(torch.cat([left, right])).chunk(2)
        return self.head(torch.cat([(a - b).abs(), a * b], 1)).squeeze(1)


class GradientNorms(Callback):
    def __init__(self, path):
        self.path = path

    def before_step(self):
        norms = []
        for name, parameter in self.learn.model.named_parameters():
            if parameter.grad is not None:
                norms.append((name, parameter.grad.norm().item(), parameter.norm().item()))
        with open(self.path, "a") as file:
            print(
                self.learn.train_iter,
                *(f"{grad / (size + 1e-9):.2e}" for _, grad, size in norms),
                sep="\t",
                file=file,
            )


class TimedNorms(GradientNorms):
    def before_step(self):
        with lap("own"):
            super().before_step()


class Clock(Callback):
    order = -90

    def begin(self):
        self.running = lap("compute")
        self.running.__enter__()

    def end(self):
        self.running.__exit__(None, None, None)

    def before_batch(self):
        if self.training:
            self.begin()

    def after_backward(self):
        self.end()

    def after_step(self):
        self.end()


class Resume(Callback):
    order = 5

    def before_step(self):
        self.learn.clock.begin()


class TimedLoader(DataLoader):
    def __iter__(self):
        yield from timed(super().__iter__(), "wait")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/fastai_siamese_norms"))
    parser.add_argument("--epochs", type=int, default=30)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    train = TimedLoader(Pairs(args.data / "photos", 64, 180), 4, num_workers=1, prefetch_factor=6, drop_last=True)
    valid = DataLoader(Pairs(args.data / "photos", 64, 1), 4, num_workers=0)
    loaders = DataLoaders(train, valid, device=torch.device("cpu"))
    loaders.n_inp = train.n_inp = valid.n_inp = 2
    callbacks = [Clock(), TimedNorms(args.out / "norms.tsv"), GradientClip(1.0), Resume()]
    learner = Learner(loaders, Siamese(), loss_func=nn.BCEWithLogitsLoss(), cbs=callbacks, path=args.out)
    with learner.no_logging(), learner.no_bar():
        for _ in range(args.epochs):
            learner.fit(1, lr=1e-3)
            print(f"loss {float(learner.loss):.4f}", flush=True)
            learner.save("siamese")


if __name__ == "__main__":
    main()
