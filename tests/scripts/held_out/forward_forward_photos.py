"""Hinton's forward-forward algorithm on photographs: no gradient leaves a layer. Each layer has an optimizer of its own
and learns to be lively when the label that is painted into the picture is right, and calm when it is wrong."""

import argparse
import csv
import random
from pathlib import Path

import torch
from PIL import Image, ImageFilter, ImageOps
from torch import nn
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from stopwatch import lap, timed


class Paint:
    """A band of bright squares on top: the square of the label is white."""

    def __init__(self, kinds, side):
        self.kinds, self.step = kinds, side // kinds

    def __call__(self, images, labels):
        images = images.clone()
        images[:, :, : self.step] = -1
        for image, label in zip(images, labels.tolist()):
            image[:, : self.step, label * self.step : (label + 1) * self.step] = 1
        return images

    def wrong(self, labels):
        return (labels + torch.randint(1, self.kinds, labels.shape)) % self.kinds


class Weathered:
    def __call__(self, photo):
        if random.random() < 0.3:
            photo = photo.filter(ImageFilter.GaussianBlur(random.uniform(0.2, 1.0)))
        if random.random() < 0.2:
            photo = ImageOps.autocontrast(photo, cutoff=1)
        if random.random() < 0.2:
            photo = ImageOps.posterize(photo, random.randint(4, 7))
        return photo


def opened(path):
    photo = Image.open(path)
    photo.draft("RGB", (100, 100))
    return photo.convert("RGB")


class Layer(nn.Module):
    def __init__(self, inner, outer, stride, threshold=1.5, lr=1e-3):
        super().__init__()
        self.conv = nn.Conv2d(inner, outer, 5, stride, 2)
        self.threshold = threshold
        self.optimizer = torch.optim.Adam(self.parameters(), lr=lr)

    def forward(self, x):
        x = x / (x.square().mean((1, 2, 3), keepdim=True).sqrt() + 1e-4)
        return torch.relu(self.conv(x))

    def learn(self, right, wrong):
        lively, calm = self(right), self(wrong)
        good, bad = lively.square().mean((1, 2, 3)), calm.square().mean((1, 2, 3))
        margins = torch.cat([self.threshold - good, bad - self.threshold])
        loss = nn.functional.softplus(4 * margins).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return lively.detach(), calm.detach(), (loss.detach(), good.detach().mean(), bad.detach().mean())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/forward_forward_photos"))
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--batch", type=int, default=12)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    side = 40
    look = v2.Compose(
        [
            v2.RandomResizedCrop(side, scale=(0.5, 1.0)),
            v2.RandomHorizontalFlip(),
            Weathered(),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize([0.48, 0.46, 0.41], [0.27, 0.26, 0.28]),
        ]
    )
    photos = ImageFolder(args.data / "photos", look, loader=opened)
    loader = DataLoader(photos, args.batch, shuffle=True, num_workers=1, drop_last=True, prefetch_factor=4)
    paint = Paint(len(photos.classes), side)
    layers = [Layer(3, 32, 1), Layer(32, 48, 2), Layer(48, 64, 2), Layer(64, 64, 1)]
    with open(args.out / "goodness.csv", "w", newline="") as file:
        table, step = csv.writer(file), 0
        table.writerow(["step", *(f"{name}{k}" for k in range(len(layers)) for name in ("loss", "good", "bad"))])
        for epoch in range(args.epochs):
            for images, labels in timed(loader, "wait"):
                with lap("compute"):
                    right, wrong, facts = paint(images, labels), paint(images, paint.wrong(labels)), []
                    for layer in layers:
                        right, wrong, fact = layer.learn(right, wrong)
                        facts.extend(fact)
                step += 1
                with lap("own"):
                    table.writerow([step, *(f"{fact.item():.4f}" for fact in facts)])
                    file.flush()
                    if step % 10 == 0:
                        losses = " ".join(f"{fact.item():.3f}" for fact in facts[::3])
                        print(f"{epoch}/{step}: {losses}", flush=True)
            with lap("own"):
                torch.save([layer.state_dict() for layer in layers], args.out / "layers.pt")


if __name__ == "__main__":
    main()
