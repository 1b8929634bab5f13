"""A tiny NeRF of a scene that is itself ray-traced below: three coloured balls on a board, seen from an orbit."""

import argparse
import csv
import math
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

from stopwatch import lap, timed

BALLS = [
    ((0.0, 0.0, 0.0), 0.55, (0.9, 0.2, 0.2)),
    ((0.7, 0.2, -0.2), 0.3, (0.2, 0.8, 0.3)),
    ((-0.5, 0.6, 0.1), 0.25, (0.2, 0.3, 0.9)),
]


def camera(angle, height=0.8, far=3.0):
    """Camera to world: columns right, up, backward, and the place."""
    place = np.array([far * math.cos(angle), far * math.sin(angle), height])
    back = place / np.linalg.norm(place)
    right = np.cross([0, 0, 1.0], back)
    right /= np.linalg.norm(right)
    return np.stack([right, np.cross(back, right), back], 1), place


def pixel_ray(pose, row, column, side, focal=1.4):
    turn, place = pose
    direction = turn @ np.array([(column + 0.5) / side - 0.5, 0.5 - (row + 0.5) / side, -focal / 2])
    return place, direction / np.linalg.norm(direction)


def trace(origins, directions):
    """Nearest ball of each ray, with a light from above."""
    colours = np.full_like(origins, 1.0)
    nearest = np.full(len(origins), np.inf)
    for centre, radius, colour in BALLS:
        offset = origins - np.array(centre)
        half = (offset * directions).sum(1)
        inside = half**2 - (offset**2).sum(1) + radius**2
        distance = -half - np.sqrt(np.maximum(inside, 0))
        hit = (inside > 0) & (distance < nearest)
        normal = (offset + distance[:, None] * directions) / radius
        shade = 0.35 + 0.65 * np.clip(normal[:, 2:], 0, 1)
        colours[hit], nearest[hit] = (shade * np.array(colour))[hit], distance[hit]
    return colours


class Rays:
    """Endless batches of random rays out of random views."""

    def __init__(self, views, side, size, seed=0):
        self.poses = [camera(2 * math.pi * view / views) for view in range(views)]
        self.side, self.size, self.rng = side, size, np.random.default_rng(seed)

    def __iter__(self):
        while True:
            rays = []
            for _ in range(self.size):
                pose = self.poses[self.rng.integers(len(self.poses))]
                row, column = self.rng.integers(self.side, size=2)
                rays.append(pixel_ray(pose, row, column, self.side))
            origins, directions = (np.stack(part) for part in zip(*rays))
            arrays = origins, directions, trace(origins, directions)
            yield tuple(torch.from_numpy(array.astype(np.float32)) for array in arrays)


class Field(nn.Module):
    def __init__(self, octaves=6, width=128):
        super().__init__()
        self.register_buffer("waves", math.pi * 2.0 ** torch.arange(octaves))
        self.trunk = nn.Sequential(
            nn.Linear(3 + 6 * octaves, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
            nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4),
        )  # fmt: skip

    def forward(self, points):
        angles = (points[..., None] * self.waves).flatten(-2)
        out = self.trunk(torch.cat([points, angles.sin(), angles.cos()], -1))
        return out[..., :3].sigmoid(), nn.functional.softplus(out[..., 3] - 1)


def render(field, origins, directions, samples, near=1.8, far=4.4):
    depths = near + (far - near) * (torch.arange(samples) + torch.rand(len(origins), samples)) / samples
    colours, density = field((origins[:, None] + depths[..., None] * directions[:, None]) / 2)
    gaps = torch.diff(depths, append=torch.full((len(depths), 1), far))
    opacity = 1 - torch.exp(-density * gaps)
    clear = torch.cumprod(torch.cat([torch.ones(len(depths), 1), 1 - opacity[:, :-1] + 1e-7], 1), 1)
    weights = opacity * clear
    return (weights[..., None] * colours).sum(1) + 1 - weights.sum(1, keepdim=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", help="not used")
    parser.add_argument("--out", type=Path, default=Path("runs/nerf_orbit"))
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--rays", type=int, default=160)
    parser.add_argument("--samples", type=int, default=192)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    field = Field()
    optimizer = torch.optim.Adam(field.parameters(), lr=1e-3)
    table, began = csv.writer((args.out / "psnr.csv").open("w")), time.time()
    for step, (origins, directions, colours) in enumerate(timed(Rays(24, 64, args.rays), "wait")):
        with lap("compute"):
            loss = (render(field, origins, directions, args.samples) - colours).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with lap("own"):
            psnr = -10 * math.log10(loss.item())
            table.writerow([step, f"{time.time() - began:.2f}", f"{psnr:.3f}"])
            if step % 100 == 0:
                print(f"step {step:5d}: {psnr:.2f} dB", flush=True)
                rays = [pixel_ray(camera(0.4), r, c, 16) for r in range(16) for c in range(16)]
                view = (torch.tensor(np.stack(part), dtype=torch.float32) for part in zip(*rays))
                with torch.no_grad():
                    picture = render(field, *view, args.samples).reshape(16, 16, 3).clamp(0, 1)
                Image.fromarray((255 * picture).byte().numpy()).resize((128, 128), 0).save(args.out / "view.png")
        if step >= args.steps:
            break


if __name__ == "__main__":
    main()
