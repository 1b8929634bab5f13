"""Training beside a tile cutter that hands its work over by files, as on our old cluster, where both were jobs of their
own: the cutter puts a batch into the spool folder, the trainer takes it away."""

import argparse
import multiprocessing
import os
import random
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

from stopwatch import lap


class Spool:
    """Batches as files; a file appears under its name when it is complete."""

    def __init__(self, folder, most=1, pause=0.1):
        self.folder, self.most, self.pause = folder, most, pause
        folder.mkdir(parents=True, exist_ok=True)

    def waiting(self):
        return sorted(self.folder.glob("*.npz"))

    def put(self, number, **arrays):
        while len(self.waiting()) >= self.most:
            time.sleep(self.pause)
        part = self.folder / "part.tmp"
        with part.open("wb") as file:
            np.savez(file, **arrays)
        part.rename(self.folder / f"{number:08d}.npz")

    def take(self):
        while not (files := self.waiting()):
            time.sleep(self.pause / 2)
        with np.load(files[0]) as arrays:
            content = dict(arrays)
        files[0].unlink()
        return content


def tile(file, side):
    with Image.open(file) as photo:
        photo.draft("RGB", (160, 120))
        photo = photo.convert("RGB")
        left = random.randrange(max(photo.width - side, 0) + 1)
        top = random.randrange(max(photo.height - side, 0) + 1)
        return np.asarray(photo.crop((left, top, left + side, top + side)))


def cutter(photos, folder, size, side, parent):
    random.seed(os.getpid())
    files = [
        (file, label) for label, name in enumerate(sorted(photos.iterdir())) for file in sorted(name.glob("*.JPEG"))
    ]
    spool, number = Spool(folder), 0
    while os.getppid() == parent:
        chosen = random.sample(files, size)
        with lap("cut"):
            tiles = np.stack([tile(file, side) for file, _ in chosen])
        spool.put(number, tiles=tiles, labels=np.array([label for _, label in chosen]))
        number += 1


class Tiles(nn.Module):
    def __init__(self, classes, width=24):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, width, 3, stride=2, padding=1), nn.ReLU(),
            nn.Conv2d(width, width * 2, 3, stride=2, padding=1), nn.ReLU(),
            nn.Conv2d(width * 2, width * 4, 3, padding=1), nn.ReLU(),
            nn.AdaptiveAvgPool2d(2), nn.Flatten(),
        )  # fmt: skip
        self.classes = nn.Linear(width * 16, classes)

    def forward(self, tiles):
        return self.classes(self.body(tiles))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/spool_folder_tiles"))
    parser.add_argument("--steps", type=int, default=50_000)
    parser.add_argument("--side", type=int, default=64)
    parser.add_argument("--batch", type=int, default=16)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    folder = args.out / "spool"
    spool = Spool(folder)
    for old in folder.iterdir():
        old.unlink()
    job = multiprocessing.Process(
        target=cutter, args=(args.data / "photos", folder, args.batch, args.side, os.getpid()), daemon=True
    )
    job.start()

    model = Tiles(classes=10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9, nesterov=True)
    for step in range(1, args.steps + 1):
        with lap("wait"):
            batch = spool.take()
            tiles = torch.from_numpy(batch["tiles"]).permute(0, 3, 1, 2).float().div_(255)
            labels = torch.from_numpy(batch["labels"])
        with lap("compute"):
            loss = nn.functional.cross_entropy(model(tiles), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with lap("own"):
            if step % 20 == 0:
                print(f"step {step} loss {loss.item():.4f}", flush=True)
            if step % 500 == 0:
                torch.save(model.state_dict(), args.out / "tiles.pt")


if __name__ == "__main__":
    main()
