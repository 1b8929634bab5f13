"""Training without a DataLoader: a generator opens the photos and stacks the batches."""

import argparse
import random
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from stopwatch import lap, timed
from torch import nn


def list_photos(root):
    names = sorted(d.name for d in Path(root).iterdir() if d.is_dir())
    return [(path, label) for label, name in enumerate(names) for path in sorted(Path(root, name).glob("*.*"))]


def load(path, size):
    with lap("decode"):
        image = Image.open(path).convert("RGB")
    with lap("transform"):
        side = min(image.size)
        left = random.randint(0, image.width - side)
        top = random.randint(0, image.height - side)
        image = image.resize((size, size), Image.BILINEAR, box=(left, top, left + side, top + side))
        array = np.asarray(image, dtype=np.float32) / 127.5 - 1.0
        return torch.from_numpy(array.transpose(2, 0, 1).copy())


def batches(items, batch_size, size):
    """Shuffled batches of images and labels, once through the items."""
    order = random.sample(items, len(items))
    for start in range(0, len(order) - batch_size + 1, batch_size):
        chunk = order[start : start + batch_size]
        images = [load(path, size) for path, _ in chunk]
        yield torch.stack(images), torch.tensor([label for _, label in chunk])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--epochs", type=int, default=28)
    parser.add_argument("--bs", type=int, default=64)
    parser.add_argument("--size", type=int, default=80)
    args = parser.parse_args()
    random.seed(3)

    items = list_photos(Path(args.data) / "photos")
    print(f"found {len(items)} photos", flush=True)
    net = nn.Sequential(
        nn.Conv2d(3, 12, 4, 4),
        nn.GELU(),
        nn.Conv2d(12, 24, 2, 2),
        nn.GELU(),
        nn.AdaptiveMaxPool2d(2),
        nn.Flatten(),
        nn.Linear(96, 10),
    )
    opt = torch.optim.RMSprop(net.parameters(), lr=1e-3)
    step = 0
    for epoch in range(1, args.epochs + 1):
        for images, labels in timed(batches(items, args.bs, args.size), "wait"):
            with lap("compute"):
                loss = nn.functional.cross_entropy(net(images), labels)
                opt.zero_grad()
                loss.backward()
                opt.step()
            step += 1
            if step % 10 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
