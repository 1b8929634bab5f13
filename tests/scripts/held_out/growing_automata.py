"""Neural cellular automata that grow a photograph from a seed and mend it where it is damaged (after Mordvintsev et al.).
Training draws from a pool of grown states; the worst of a batch begins anew, some are damaged."""

import argparse
import random
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import nn
from torch.nn import functional as F

from stopwatch import lap

CHANNELS = 12


def target_of(root, side):
    file = random.choice(sorted(root.glob("*/*.JPEG")))
    with Image.open(file) as photo:
        photo = photo.convert("RGB").resize((side, side), Image.Resampling.LANCZOS)
    disc = Image.new("L", (side, side))
    ImageDraw.Draw(disc).ellipse((2, 2, side - 3, side - 3), fill=255)
    pixels = np.concatenate([np.asarray(photo), np.asarray(disc)[..., None]], 2).astype(np.float32) / 255
    pixels[..., :3] *= pixels[..., 3:]
    return torch.from_numpy(pixels).permute(2, 0, 1)


class Automaton(nn.Module):
    def __init__(self, hidden=80, fire=0.5):
        super().__init__()
        self.fire = fire
        across = torch.tensor([[-1.0, 0, 1], [-2, 0, 2], [-1, 0, 1]]) / 8
        same = torch.zeros(3, 3)
        same[1, 1] = 1
        kernels = torch.stack([same, across, across.T]).repeat(CHANNELS, 1, 1)[:, None]
        self.register_buffer("kernels", kernels)
        self.think = nn.Conv2d(3 * CHANNELS, hidden, 1)
        self.change = nn.Conv2d(hidden, CHANNELS, 1, bias=False)
        nn.init.zeros_(self.change.weight)

    def alive(self, cells):
        return F.max_pool2d(cells[:, 3:4], 3, stride=1, padding=1) > 0.1

    def forward(self, cells, steps):
        for _ in range(steps):
            before = self.alive(cells)
            seen = F.conv2d(cells, self.kernels, padding=1, groups=CHANNELS)
            awake = (torch.rand_like(cells[:, :1]) < self.fire).float()
            cells = cells + self.change(self.think(seen).relu()) * awake
            cells = cells * (before & self.alive(cells)).float()
        return cells


class Pool:
    def __init__(self, size, side):
        self.seed = torch.zeros(CHANNELS, side, side)
        self.seed[3:, side // 2, side // 2] = 1
        self.states = [self.seed.clone() for _ in range(size)]
        self.side = side

    def damage(self, state):
        state = state.clone()
        x, y, radius = random.uniform(0, self.side), random.uniform(0, self.side), random.uniform(4, self.side / 3)
        for row in range(self.side):
            for column in range(self.side):
                if (row - y) ** 2 + (column - x) ** 2 < radius**2:
                    state[:, row, column] = 0
        return state

    def draw(self, count, target):
        rows = random.sample(range(len(self.states)), count)
        errors = [(self.states[row][:4] - target).square().mean().item() for row in rows]
        rows = [row for _, row in sorted(zip(errors, rows), reverse=True)]
        cells = [self.seed, *(self.states[row] for row in rows[1:])]
        cells[-1] = self.damage(cells[-1])
        return rows, torch.stack(cells)

    def put_back(self, rows, cells):
        for row, state in zip(rows, cells.detach()):
            self.states[row] = state.clone()


def save_strip(cells, path):
    strip = torch.cat(list(cells[:, :3].clamp(0, 1)), 2).permute(1, 2, 0)
    Image.fromarray((strip.numpy() * 255).astype(np.uint8)).resize((strip.shape[1] * 4, strip.shape[0] * 4)).save(
        path
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/growing_automata"))
    parser.add_argument("--steps", type=int, default=8000)
    parser.add_argument("--side", type=int, default=32)
    parser.add_argument("--batch", type=int, default=6)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    random.seed(11)
    torch.manual_seed(11)
    target = target_of(args.data / "photos", args.side)
    automaton, pool = Automaton(), Pool(128, args.side)
    optimizer = torch.optim.Adam(automaton.parameters(), lr=2e-3)
    for step in range(args.steps):
        with lap("wait"):
            rows, cells = pool.draw(args.batch, target)
        with lap("compute"):
            grown = automaton(cells, random.randint(24, 36))
            loss = (grown[:, :4] - target).square().mean()
            optimizer.zero_grad()
            loss.backward()
            for weight in automaton.parameters():
                weight.grad /= weight.grad.norm() + 1e-8
            optimizer.step()
        with lap("own"):
            pool.put_back(rows, grown)
            if step % 20 == 0:
                save_strip(grown.detach(), args.out / "growth.png")
                print(f"{step:5d} {loss.item():.5f}", flush=True)
            if step % 200 == 199:
                torch.save(automaton.state_dict(), args.out / "automaton.pt")


if __name__ == "__main__":
    main()
