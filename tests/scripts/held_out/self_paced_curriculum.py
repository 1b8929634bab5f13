"""Self-paced learning: easy crops first. What is easy is known from the losses of earlier visits."""

import argparse
import math
import random
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

from stopwatch import lap, timed

SIDE = 32


@dataclass(slots=True)
class Entry:
    photo: int
    top: int
    left: int
    mirrored: bool
    loss: float = 2.3
    visited: int = -1000


class Curriculum:
    def __init__(self, photos, crops, start=0.2, grow=0.0004, momentum=0.7, bonus=0.05, seed=32):
        self.random = random.Random(seed)
        self.entries = [
            Entry(photo, self.random.randrange(17), self.random.randrange(17), self.random.random() < 0.5)
            for photo in range(photos)
            for _ in range(crops)
        ]
        self.share, self.grow, self.momentum, self.bonus = start, grow, momentum, bonus
        self.step = 0
        self.levels = Counter()
        self.pool = list(self.entries)

    def priority(self, entry):
        """Easy ones come first; who was not seen for long is thought to be easier than it was."""
        return entry.loss - self.bonus * math.log1p(self.step - entry.visited)

    def rank(self):
        ranking = sorted(self.entries, key=self.priority)
        self.pool = ranking[: max(1000, int(self.share * len(ranking)))]
        self.levels = Counter(min(9, int(4 * entry.loss)) for entry in self.pool)

    def record(self, chosen, losses):
        for entry, loss in zip(chosen, losses, strict=True):
            entry.loss = self.momentum * entry.loss + (1 - self.momentum) * loss
            entry.visited = self.step
        self.step += 1
        self.share = min(1.0, self.share + self.grow)
        self.rank()


def read_photos(root: Path, side=SIDE + 16):
    names = sorted(path.name for path in root.iterdir() if path.is_dir())
    pictures, labels = [], []
    for path in sorted(root.glob("*/*.JPEG")):
        image = Image.open(path)
        image.draft("RGB", (side, side))
        pictures.append(np.array(image.convert("RGB").resize((side, side), Image.Resampling.BILINEAR)))
        labels.append(names.index(path.parent.name))
    return torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).contiguous(), torch.tensor(labels)


def batches(curriculum, pictures, labels, size, steps):
    for _ in range(steps):
        chosen = curriculum.random.sample(curriculum.pool, size)
        crops = []
        for entry in chosen:
            crop = pictures[entry.photo, :, entry.top : entry.top + SIDE, entry.left : entry.left + SIDE]
            crops.append(crop.flip(2) if entry.mirrored else crop)
        yield chosen, torch.stack(crops), labels[[entry.photo for entry in chosen]]


def network(classes):
    return nn.Sequential(
        nn.Conv2d(3, 24, 3, stride=2, padding=1),
        nn.BatchNorm2d(24),
        nn.LeakyReLU(0.1),
        nn.Conv2d(24, 32, 3, stride=2, padding=1),
        nn.BatchNorm2d(32),
        nn.LeakyReLU(0.1),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 16, classes),
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/self_paced_curriculum"))
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--crops", type=int, default=24, help="of each photograph")
    args = parser.parse_args()
    torch.manual_seed(32)
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)

    pictures, labels = read_photos(args.data / "photos")
    curriculum = Curriculum(len(pictures), args.crops)
    model = network(int(labels.max()) + 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
    stream = batches(curriculum, pictures, labels, args.batch_size, args.steps)
    for step, (chosen, images, targets) in enumerate(timed(stream, "wait")):
        with lap("compute"):
            scores = model(images.float().div_(127.5).sub_(1))
            losses = nn.functional.cross_entropy(scores, targets, reduction="none")
            optimizer.zero_grad()
            losses.mean().backward()
            optimizer.step()
        with lap("own"):
            curriculum.record(chosen, losses.tolist())
        if step % 50 == 0:
            easy = ", ".join(f"{level}: {count}" for level, count in sorted(curriculum.levels.items()))
            print(f"step {step}: loss {losses.mean().item():.3f}, pool {len(curriculum.pool)} ({easy})", flush=True)
        if step % 500 == 499:
            torch.save(model.state_dict(), args.out / "paced.pt")


if __name__ == "__main__":
    main()
