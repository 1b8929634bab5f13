"""A sketch classifier in short rounds: photos are redrawn by hatching, each round ends with a look at the loss.

The pens (many hatching textures) are drawn by every worker for itself, because they need a seed of their own.
"""

import argparse
import random
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFilter
from stopwatch import lap, timed
from torch import nn
from torch.utils.data import DataLoader, Dataset, RandomSampler

PENS = []  # of this worker


def draw_pen(dice, side, angle, gap):
    sheet = Image.new("L", (side * 3, side * 3), 255)
    pen = ImageDraw.Draw(sheet)
    for y in range(-side * 3, side * 6, gap):
        jitter = dice.randint(-1, 1)
        pen.line((0, y + jitter, side * 3, y - jitter), fill=dice.randint(0, 70), width=dice.randint(1, 2))
    sheet = sheet.filter(ImageFilter.GaussianBlur(2)).rotate(angle, Image.Resampling.BICUBIC)
    return sheet.crop((side, side, side * 2, side * 2))


def prepare_pens(worker_id, side=96, count=520):
    dice = random.Random(torch.initial_seed() + worker_id)
    PENS.clear()
    for k in range(count):
        PENS.append(np.asarray(draw_pen(dice, side, 180 * k / count, 3 + k % 9), dtype=np.float32))


class Hatched(Dataset):
    def __init__(self, root, side=96):
        self.side = side
        folders = sorted(folder for folder in Path(root).iterdir() if folder.is_dir())
        self.items = [(file, n) for n, folder in enumerate(folders) for file in sorted(folder.iterdir())]

    def __len__(self):
        return len(self.items)

    def hatch(self, grey):
        """The darker a place, the more pens have gone over it."""
        paper = np.full(grey.shape, 255.0, dtype=np.float32)
        for level in (190, 130, 80, 40):
            texture = random.choice(PENS)
            paper = np.where(grey < level, np.minimum(paper, texture), paper)
        return paper

    def __getitem__(self, index):
        file, label = self.items[index]
        with lap("decode"):
            photo = Image.open(file)
            photo.draft("L", (self.side, self.side))
            photo = photo.convert("L").resize((self.side, self.side))
        with lap("transform"):
            paper = self.hatch(np.asarray(photo, dtype=np.float32))
        return torch.from_numpy(paper / 127.5 - 1)[None], label


def net(classes):
    layers, width = [], 1
    for out in (16, 32, 32):
        layers += [nn.Conv2d(width, out, 3, stride=2, padding=1), nn.BatchNorm2d(out), nn.ReLU()]
        width = out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * width, classes))


def one_round(model, optimizer, loader):
    total = 0.0
    for sketches, labels in timed(loader, "wait"):
        with lap("compute"):
            loss = nn.functional.cross_entropy(model(sketches), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        total += loss.item()
    return total


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--rounds", type=int, default=120)
    parser.add_argument("--steps-per-round", type=int, default=14)
    parser.add_argument("--batch", type=int, default=24)
    parser.add_argument("--out", type=Path, default=Path("runs/sketch_hatching_starts"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)

    photos = Hatched(args.data / "photos")
    draws = RandomSampler(photos, replacement=True, num_samples=args.steps_per_round * args.batch)
    loader = DataLoader(
        photos, args.batch, sampler=draws, num_workers=2, worker_init_fn=prepare_pens, prefetch_factor=4
    )
    model = net(1 + max(label for _, label in photos.items))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    best = float("inf")
    for n in range(args.rounds):
        loss = one_round(model, optimizer, loader) / args.steps_per_round
        mark = ""
        if loss < best:
            best, mark = loss, " *"
            torch.save(model.state_dict(), args.out / "best.pt")
        print(f"round {n:3d}  loss {loss:.4f}{mark}", flush=True)


if __name__ == "__main__":
    main()
