"""Latent ODE: irregularly sampled spirals are read backwards by a GRU, and a differential equation in the latent space,
solved by Runge and Kutta's method, tells where the points are at all times. There are as many spirals as one wants."""

import argparse
import json
import math
import random
from pathlib import Path

import matplotlib
import torch
from torch import nn

from stopwatch import lap, timed

matplotlib.use("Agg")
from matplotlib import pyplot as plt  # noqa: E402

GRID = 30


def spiral(chance, points):
    """Points of one spiral, drawn one after the other at random places of the grid, with noise."""
    turn, start = chance.choice([-1, 1]), chance.uniform(0, 2 * math.pi)
    radius, growth = chance.uniform(0.2, 0.5), chance.uniform(0.02, 0.06)
    path = []
    for place in sorted(chance.sample(range(GRID), points)):
        angle = start + turn * 0.3 * place
        r = radius + growth * place
        noise = chance.gauss(0, 0.02), chance.gauss(0, 0.02)
        path.append((place, r * math.cos(angle) + noise[0], r * math.sin(angle) + noise[1]))
    return path


def batches(size, points=16, seed=0):
    chance = random.Random(seed)
    while True:
        paths = torch.tensor([spiral(chance, points) for _ in range(size)])
        yield paths[..., 0].long(), paths[..., 1:]


class LatentODE(nn.Module):
    def __init__(self, latent=8, width=128):
        super().__init__()
        self.latent = latent
        self.reader = nn.GRU(3, width, batch_first=True)
        self.start = nn.Linear(width, 2 * latent)
        self.field = nn.Sequential(
            nn.Linear(latent, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, latent)
        )
        self.place = nn.Sequential(nn.Linear(latent, width), nn.ReLU(), nn.Linear(width, 2))

    def solve(self, z, steps, h=0.1):
        states = [z]
        for _ in range(steps - 1):
            k1 = self.field(z)
            k2 = self.field(z + h / 2 * k1)
            k3 = self.field(z + h / 2 * k2)
            k4 = self.field(z + h * k3)
            z = z + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
            states.append(z)
        return torch.stack(states, 1)

    def forward(self, times, points):
        gaps = torch.cat([times[:, 1:] - times[:, :-1], torch.zeros_like(times[:, :1])], 1)
        read = torch.cat([points, gaps[..., None] / GRID], 2).flip(1)
        mean, spread = self.start(self.reader(read)[1][0]).chunk(2, 1)
        z = mean + torch.randn_like(mean) * (spread / 2).exp()
        divergence = 0.5 * (mean**2 + spread.exp() - spread - 1).sum(1).mean()
        return self.place(self.solve(z, GRID)), divergence


def draw(path, course, times, points):
    figure, axes = plt.subplots(1, 3, figsize=(6, 2))
    for k, ax in enumerate(axes):
        ax.plot(*course[k].T, lw=1)
        ax.plot(*points[k].T, ".", ms=3)
        ax.set_axis_off()
    figure.savefig(path, dpi=70)
    plt.close(figure)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", help="not used: spirals are made up")
    parser.add_argument("--out", type=Path, default=Path("runs/ode_spirals"))
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--batch", type=int, default=192)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(4)
    model = LatentODE()
    optimizer = torch.optim.Adamax(model.parameters(), lr=5e-3)
    for step, (times, points) in enumerate(timed(batches(args.batch // 4), "wait")):
        with lap("compute"):
            times, points = times.repeat(4, 1), points.repeat(4, 1, 1)
            course, divergence = model(times, points)
            there = course.gather(1, times[..., None].expand(-1, -1, 2))
            loss = ((there - points) ** 2).sum(2).mean() / 0.02 + min(1.0, step / 500) * 0.01 * divergence
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with lap("own"):
            norms = {name: round(p.grad.norm().item(), 5) for name, p in model.named_parameters()}
            with open(args.out / "steps.jsonl", "a") as file:
                file.write(
                    json.dumps({"step": step, "loss": loss.item(), "kl": divergence.item(), "norms": norms}) + "\n"
                )
            if step % 100 == 0:
                draw(args.out / "spirals.png", course.detach(), times, points)
                torch.save(model.state_dict(), args.out / "ode.pt")
                print(f"step {step}: {loss.item():.4f}", flush=True)
        if step == args.steps:
            break


if __name__ == "__main__":
    main()
