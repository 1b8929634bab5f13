"""A small CNN under torch.compile, on photos decoded once into memory."""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from stopwatch import lap, timed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Block(nn.Module):
    def __init__(self, inside, outside, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.skip = nn.Conv2d(inside, outside, 1, stride, bias=False)

    def forward(self, x):
        y = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(y)) + self.skip(x))


def load_photos(root, limit, size):
    """Up to `limit` photos as one uint8 tensor, with their labels."""
    classes = sorted(path.name for path in root.iterdir() if path.is_dir())
    pixels, labels = [], []
    for label, name in enumerate(classes):
        for path in sorted((root / name).glob("*.*"))[: limit // len(classes)]:
            with Image.open(path) as image:
                image.draft("RGB", (2 * size, 2 * size))
                pixels.append(np.asarray(image.convert("RGB").resize((size, size))))
            labels.append(label)
    return torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).contiguous(), torch.tensor(labels)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--epochs", type=int, default=18)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--limit", type=int, default=1280)
    args = parser.parse_args()

    images, labels = load_photos(args.data / "photos", args.limit, 64)
    print(f"{len(images)} photos, {images.numel() / 1e6:.0f} MB", flush=True)
    loader = DataLoader(TensorDataset(images, labels), args.batch_size, shuffle=True, drop_last=True)
    model = nn.Sequential(
        Block(3, 16, 1), Block(16, 32, 2), Block(32, 64, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    compiled = torch.compile(model)

    for epoch in range(args.epochs):
        tick, losses = time.time(), []
        for x, y in timed(loader, "wait"):
            with lap("compute"):
                loss = nn.functional.cross_entropy(compiled(x.float().div_(255).sub_(0.5)), y)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item())
        print(f"epoch {epoch}: loss {sum(losses) / len(losses):.3f} in {time.time() - tick:.1f} s", flush=True)


if __name__ == "__main__":
    main()
