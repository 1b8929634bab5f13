"""A deep equilibrium model: one layer is applied until nothing changes any more, by Anderson's acceleration.

How far it is from rest is asked after every round by .item(), and batches come from a plain generator.
"""

import argparse
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

from stopwatch import lap, timed


class Cell(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1)
        self.second = nn.Conv2d(width, width, 3, padding=1)
        self.calm, self.settle = nn.GroupNorm(6, width), nn.GroupNorm(6, width)

    def forward(self, state, drive):
        return self.settle(state + drive + self.second(self.calm(torch.relu(self.first(state)))))


def anderson(step, start, rounds, enough, memory=4, ridge=1e-3):
    """The state at which `step` stands still, from the last few states; and how many rounds it took."""
    states, images = [start], [step(start)]
    for taken in range(1, rounds):
        off = torch.stack([image - state for image, state in zip(images, states)], 1).flatten(2)
        gram = off @ off.transpose(1, 2)
        gram = gram + ridge * gram.diagonal(dim1=1, dim2=2).mean(1)[:, None, None] * torch.eye(off.shape[1])
        weights = torch.linalg.solve(gram, torch.ones(*off.shape[:2], 1))
        weights = (weights / weights.sum(1, keepdim=True))[..., None, None]
        state = (weights * torch.stack(images, 1)).sum(1)
        image = step(state)
        states, images = [*states, state][-memory:], [*images, image][-memory:]
        rest = ((image - state).norm() / image.norm()).item()
        if rest < enough:
            break
    return images[-1], taken


class Equilibrium(nn.Module):
    def __init__(self, classes, width=24, rounds=8, enough=1e-2):
        super().__init__()
        self.rounds, self.enough, self.taken = rounds, enough, 0
        self.drive = nn.Sequential(nn.Conv2d(3, width, 4, stride=3), nn.GroupNorm(6, width))
        self.cell = Cell(width)
        self.head = nn.Linear(4 * width, classes)

    def forward(self, images):
        drive = self.drive(images)
        with torch.no_grad():
            rest, self.taken = anderson(
                lambda state: self.cell(state, drive), torch.zeros_like(drive), self.rounds, self.enough
            )
        for _ in range(3):  # gradients through the last few rounds only
            rest = 0.5 * rest + 0.5 * self.cell(rest, drive)
        return self.head(nn.functional.adaptive_avg_pool2d(rest, 2).flatten(1))


def small(files, side):
    for file in files:
        image = Image.open(file)
        image.draft("RGB", (side, side))
        yield np.asarray(image.convert("RGB").resize((side, side)))


def cut_out(pixels, labels, size, rng):
    """Endless batches of photographs with a hole in each."""
    side = pixels.shape[1]
    while True:
        rows = rng.permutation(len(pixels))
        for start in range(0, len(rows) - size + 1, size):
            chosen = rows[start : start + size]
            batch = pixels[chosen]
            for picture, (top, left) in zip(batch, rng.integers(0, side - side // 3, (size, 2))):
                picture[top : top + side // 3, left : left + side // 3] = 127
                if rng.random() < 0.5:
                    picture[:] = picture[:, ::-1].copy()
            yield torch.from_numpy(batch).permute(0, 3, 1, 2).float() / 127.5 - 1, labels[chosen]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/equilibrium_net"))
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--side", type=int, default=64)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    files = sorted((args.data / "photos").glob("*/*.JPEG"))[::2]
    kinds = sorted({file.parent.name for file in files})
    pixels = np.stack(list(small(files, args.side)))
    labels = torch.tensor([kinds.index(file.parent.name) for file in files])
    model, taken = Equilibrium(len(kinds)), Counter()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    batches = cut_out(pixels, labels, 24, np.random.default_rng(7))
    for step, (images, kinds) in zip(range(args.steps), timed(batches, "wait")):
        with lap("compute"):
            loss = nn.functional.cross_entropy(model(images), kinds)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 2.0)
            optimizer.step()
        with lap("own"):
            taken[model.taken] += 1
            norms = {name: weight.grad.norm().item() for name, weight in model.named_parameters()}
            steepest = max(norms, key=norms.get)
        if step % 30 == 0:
            print(f"step {step}: {loss.item():.3f}, steepest {steepest}, rounds {dict(taken)}", flush=True)
    torch.save(model.state_dict(), args.out / "equilibrium.pt")


if __name__ == "__main__":
    main()
