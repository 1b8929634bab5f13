"fastai: cleans noisy photographs without clean ones (Noise2Void): hidden pixels have to be guessed by a U-Net."

import argparse
import random
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch
from fastai.callback.core import Callback
from fastai.callback.progress import ProgressCallback
from fastai.data.core import DataLoaders
from fastai.data.load import DataLoader
from fastai.learner import Learner
from fastai.optimizer import ranger
from PIL import Image
from torch import nn

from stopwatch import lap


class Noisy:
    def __init__(self, files, side=72, hidden=0.03):
        self.files, self.side, self.hidden = files, side, hidden

    def __len__(self):
        return len(self.files)

    def crop(self, file):
        photo = Image.open(file)
        photo.draft("RGB", (photo.width // 2, photo.height // 2))
        photo = photo.convert("RGB")
        left = random.randrange(max(1, photo.width - self.side))
        top = random.randrange(max(1, photo.height - self.side))
        return np.asarray(photo.crop((left, top, left + self.side, top + self.side)), np.float32) / 255

    def hide(self, image):
        "Puts a neighbour's value in the place of a pixel, here and there"
        masked, spots = image.copy(), np.zeros((self.side, self.side), np.float32)
        for _ in range(int(self.hidden * self.side**2)):
            row, column = random.randrange(self.side), random.randrange(self.side)
            near = min(max(row + random.randint(-2, 2), 0), self.side - 1)
            beside = min(max(column + random.randint(-2, 2), 0), self.side - 1)
            masked[row, column] = image[near, beside]
            spots[row, column] = 1
        return masked, spots

    def __getitem__(self, index):
        image = self.crop(self.files[index])
        image = image + np.random.default_rng().normal(0, 0.1, image.shape).astype(np.float32)
        masked, spots = self.hide(image)
        target = np.concatenate([image, spots[..., None]], 2)
        return torch.from_numpy(masked).permute(2, 0, 1), torch.from_numpy(target).permute(2, 0, 1)


def hidden_loss(guess, target):
    image, spots = target[:, :3], target[:, 3:]
    return ((guess - image) ** 2 * spots).sum() / (3 * spots.sum() + 1)


def block(inner, outer):
    return nn.Sequential(nn.Conv2d(inner, outer, 3, padding=1), nn.BatchNorm2d(outer), nn.LeakyReLU(0.1),
                         nn.Conv2d(outer, outer, 3, padding=1), nn.LeakyReLU(0.1))  # fmt: skip


class UNet(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.one, self.two, self.three = block(3, width), block(width, 2 * width), block(2 * width, 4 * width)
        self.up_two, self.up_one = block(6 * width, 2 * width), block(3 * width, width)
        self.out = nn.Conv2d(width, 3, 1)

    def forward(self, x):
        fine = self.one(x)
        middle = self.two(nn.functional.max_pool2d(fine, 2))
        deep = self.three(nn.functional.max_pool2d(middle, 2))
        middle = self.up_two(torch.cat([middle, nn.functional.interpolate(deep, scale_factor=2)], 1))
        return self.out(self.up_one(torch.cat([fine, nn.functional.interpolate(middle, scale_factor=2)], 1)))


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


class Diary(Callback):
    "Quality of the guess in decibels, band by band, a line for each batch"

    order = 65

    def __init__(self, file):
        self.file = file

    def after_step(self):
        error = (self.pred.detach() - self.yb[0][:, :3]).pow(2)
        bands = [f"{-10 * float(np.log10(error[:, k].mean().item() + 1e-9)):.3f}" for k in range(3)]
        quantiles = np.quantile(error.numpy()[:, :, ::4, ::4], [0.5, 0.9, 0.99])
        with self.file.open("a") as file:
            print(self.train_iter, f"{self.loss.item():.5f}", *bands, *(f"{q:.5f}" for q in quantiles), file=file)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/fastai_blind_spots"))
    parser.add_argument("--epochs", type=int, default=50)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    files = random.sample(sorted((args.data / "photos").glob("*/*.JPEG")), 1600)
    train = DataLoader(Noisy(files[40:]), bs=4, shuffle=True, drop_last=True, num_workers=1)
    valid = DataLoader(Noisy(files[:40]), bs=4, num_workers=0)
    learner = Learner(
        DataLoaders(train, valid, device=torch.device("cpu")), UNet(), hidden_loss, opt_func=ranger, path=args.out,
        cbs=[Laps(), Diary(args.out / "quality.txt")],
    )  # fmt: skip
    learner.remove_cb(ProgressCallback)
    learner.fit(args.epochs, 1e-3)
    learner.save("blind")


if __name__ == "__main__":
    main()
