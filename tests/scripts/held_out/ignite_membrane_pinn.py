"""Physics-informed network in Ignite: a drum skin with a hole, u_tt = c^2 (u_xx + u_yy) - k u_t, clamped at both rims.
No measurements, only points drawn anew for each step."""

import argparse
import csv
import math
import random
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch
from ignite.engine import Engine, Events
from ignite.handlers import LRScheduler, ModelCheckpoint, TerminateOnNan
from ignite.metrics import RunningAverage
from PIL import Image
from torch import nn

from stopwatch import lap

INNER, OUTER, SPEED, DAMPING = 0.25, 1.0, 1.0, 0.1


def in_ring():
    """A point of the ring, by rejection."""
    while True:
        x, y = random.uniform(-OUTER, OUTER), random.uniform(-OUTER, OUTER)
        if INNER < math.hypot(x, y) < OUTER:
            return x, y


def draw(inside, rim):
    """Collocation points, points on the rims, points at the beginning."""
    while True:
        within = [(*in_ring(), random.random()) for _ in range(inside)]
        rims = []
        for _ in range(rim):
            angle, radius = random.uniform(0, 2 * math.pi), random.choice((INNER, OUTER))
            rims.append((radius * math.cos(angle), radius * math.sin(angle), random.random()))
        begin = [(*in_ring(), 0.0) for _ in range(rim)]
        yield torch.tensor(within), torch.tensor(rims), torch.tensor(begin)


class Membrane(nn.Module):
    def __init__(self, width=160, depth=4, waves=24):
        super().__init__()
        self.register_buffer("waves", torch.randn(3, waves))
        layers = [nn.Linear(2 * waves, width), nn.Tanh()]
        for _ in range(depth - 1):
            layers += [nn.Linear(width, width), nn.Tanh()]
        self.net = nn.Sequential(*layers, nn.Linear(width, 1))

    def forward(self, points):
        phases = points @ self.waves
        return self.net(torch.cat([phases.sin(), phases.cos()], 1))


def derivatives(u, points):
    first = torch.autograd.grad(u.sum(), points, create_graph=True)[0]
    second = [torch.autograd.grad(first[:, i].sum(), points, create_graph=True)[0][:, i] for i in range(3)]
    return first, second


def pluck(points):
    x, y = points[:, 0] - 0.6, points[:, 1]
    return torch.exp(-25 * (x.square() + y.square()))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", help="not used")
    parser.add_argument("--out", type=Path, default=Path("runs/ignite_membrane_pinn"))
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--inside", type=int, default=1400)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(3)
    model, laps = Membrane(), ExitStack()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

    def turn(name=None):
        laps.close()
        if name:
            laps.enter_context(lap(name))

    def step(engine, batch):
        turn("compute")
        within, rims, begin = batch
        within.requires_grad_(), begin.requires_grad_()
        first, (u_xx, u_yy, u_tt) = derivatives(model(within), within)
        wave = (u_tt - SPEED**2 * (u_xx + u_yy) + DAMPING * first[:, 2]).square().mean()
        still = model(begin)
        rate = torch.autograd.grad(still.sum(), begin, create_graph=True)[0][:, 2]
        start = (still[:, 0] - pluck(begin)).square().mean() + rate.square().mean()
        clamped = model(rims).square().mean()
        optimizer.zero_grad()
        (0.01 * wave + start + clamped).backward()
        optimizer.step()
        turn("own")
        return {"wave": wave.item(), "start": start.item(), "clamped": clamped.item()}

    trainer = Engine(step)
    trainer.add_event_handler(Events.GET_BATCH_STARTED, lambda: turn("wait"))
    for name in ("wave", "start", "clamped"):
        RunningAverage(output_transform=lambda out, name=name: out[name]).attach(trainer, name)
    trainer.add_event_handler(Events.ITERATION_COMPLETED, TerminateOnNan(output_transform=lambda out: out["wave"]))
    decay = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9998)
    trainer.add_event_handler(Events.ITERATION_STARTED, LRScheduler(decay))
    keep = ModelCheckpoint(args.out, "membrane", n_saved=1, require_empty=False)
    trainer.add_event_handler(Events.ITERATION_COMPLETED(every=100), keep, {"model": model})
    table = csv.writer(stream := (args.out / "residuals.csv").open("w", newline=""))

    @trainer.on(Events.ITERATION_COMPLETED)
    def residuals(engine):
        table.writerow([engine.state.iteration, *(f"{value:.6f}" for value in engine.state.metrics.values())])
        stream.flush()

    @trainer.on(Events.ITERATION_COMPLETED(every=50))
    def picture(engine, side=96):
        line = torch.linspace(-1, 1, side)
        y, x = torch.meshgrid(line, line, indexing="ij")
        with torch.no_grad():
            u = model(torch.stack([x, y, torch.full_like(x, 0.5)], 2).view(-1, 3)).view(side, side)
        Image.fromarray(np.uint8((u.clamp(-1, 1).numpy() + 1) * 127.5)).save(args.out / "half_time.png")
        print(engine.state.iteration, {k: round(v, 5) for k, v in engine.state.metrics.items()}, flush=True)

    trainer.run(draw(args.inside, 200), max_epochs=1, epoch_length=args.steps)
    turn()


if __name__ == "__main__":
    main()
