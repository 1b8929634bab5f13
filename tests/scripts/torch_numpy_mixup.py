"""Mixup and noise in numpy, between the loader and the model."""

import argparse
import pathlib

import numpy as np
import torch
import torch.nn as nn
from PIL import Image
from stopwatch import lap, timed
from torch.utils.data import DataLoader, Dataset

rng = np.random.default_rng(11)


class InMemoryPhotos(Dataset):
    """All photos, decoded once and kept as uint8."""

    def __init__(self, root, size):
        self.pixels, self.labels = [], []
        for label, folder in enumerate(sorted(p for p in pathlib.Path(root).iterdir() if p.is_dir())):
            for path in sorted(folder.glob("*.*"))[:96]:
                image = Image.open(path)
                image.draft("RGB", (size, size))
                image = image.convert("RGB").resize((size, size))
                self.pixels.append(torch.from_numpy(np.array(image).transpose(2, 0, 1).copy()))
                self.labels.append(label)

    def __len__(self):
        return len(self.pixels)

    def __getitem__(self, i):
        return self.pixels[i], self.labels[i]


def mixup(images, labels, classes, alpha=0.4):
    """Mix each image with another of its batch, each pair by a share of its own, and add noise."""
    x = images.numpy().astype(np.float64) / 255.0
    y = np.eye(classes)[labels.numpy()]
    partner = rng.permutation(len(x))
    mixed, targets = np.empty_like(x), np.empty_like(y)
    for i, j in enumerate(partner):
        share = rng.beta(alpha, alpha)
        gain = rng.uniform(0.8, 1.2, size=(3, 1, 1))
        blend = share * x[i] + (1 - share) * x[j]
        noise = rng.normal(0.0, 0.03, size=blend.shape)
        mixed[i] = np.clip((blend * gain) ** rng.uniform(0.8, 1.25) + noise, 0.0, 1.0)
        targets[i] = share * y[i] + (1 - share) * y[j]
    return torch.from_numpy(mixed).float(), torch.from_numpy(targets).float()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--epochs", type=int, default=70)
    parser.add_argument("--size", type=int, default=112)
    args = parser.parse_args()

    dataset = InMemoryPhotos(pathlib.Path(args.data) / "photos", args.size)
    classes = max(dataset.labels) + 1
    loader = DataLoader(dataset, batch_size=64, shuffle=True, drop_last=True)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 4, stride=4),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.LazyLinear(classes),
    )
    model(torch.zeros(1, 3, args.size, args.size))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9)
    for epoch in range(args.epochs):
        losses = []
        for images, labels in timed(loader, "wait"):
            with lap("own"):
                images, targets = mixup(images, labels, classes)
            with lap("compute"):
                loss = nn.functional.cross_entropy(model(images), targets)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            losses.append(loss.item())
        print(f"epoch {epoch + 1}: mean loss {np.mean(losses):.4f}", flush=True)


if __name__ == "__main__":
    main()
