"""Photographs as functions: a SIREN learns colour from position, one photograph after the other.

The loss is scaled by hand, as the same loop runs in half precision elsewhere: gradients are brought back to their
size, looked over for infinities, and the scale grows and shrinks as torch.amp's does.
"""

import argparse
import math
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

from stopwatch import lap, timed


class Sine(nn.Module):
    def __init__(self, inputs, outputs, first=False, omega=30.0):
        super().__init__()
        self.linear, self.omega = nn.Linear(inputs, outputs), omega
        bound = 1 / inputs if first else math.sqrt(6 / inputs) / omega
        nn.init.uniform_(self.linear.weight, -bound, bound)

    def forward(self, x):
        return torch.sin(self.omega * self.linear(x))


def siren(width, depth):
    layers = [Sine(2, width, first=True)] + [Sine(width, width) for _ in range(depth - 1)]
    return nn.Sequential(*layers, nn.Linear(width, 3))


class LossScale:
    def __init__(self, start=2.0**12, growth=2.0, backoff=0.5, interval=200):
        self.value, self.growth, self.backoff, self.interval = start, growth, backoff, interval
        self.good = 0

    def scale(self, loss):
        return loss * self.value

    def step(self, optimizer):
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        torch._foreach_mul_(gradients, 1.0 / self.value)
        if all(bool(torch.isfinite(gradient).all()) for gradient in gradients):
            optimizer.step()
            self.good += 1
            if self.good % self.interval == 0:
                self.value *= self.growth
        else:
            self.good = 0
            self.value *= self.backoff


def open_photo(path: Path, longest=320):
    image = Image.open(path)
    image.thumbnail((longest, longest))
    return torch.from_numpy(np.array(image.convert("RGB"))).float() / 127.5 - 1


def draw_pixels(photo, steps, number):
    """Places in -1 to 1 and their colours, `number` of them at a time."""
    height, width, _ = photo.shape
    rows, columns = torch.linspace(-1, 1, height), torch.linspace(-1, 1, width)
    for _ in range(steps):
        y, x = torch.randint(height, (number,)), torch.randint(width, (number,))
        yield torch.stack([rows[y], columns[x]], 1), photo[y, x]


@torch.no_grad()
def render(net, height, width):
    grid = torch.cartesian_prod(torch.linspace(-1, 1, height), torch.linspace(-1, 1, width))
    colours = torch.cat([net(part) for part in grid.split(8192)])
    return ((colours.clamp(-1, 1) + 1) * 127.5).byte().view(height, width, 3)


def learn(photo, args):
    net = siren(args.width, args.depth)
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-4)
    scale = LossScale()
    for step, (places, colours) in enumerate(timed(draw_pixels(photo, args.steps, args.pixels), "wait")):
        with lap("compute"):
            loss = (net(places) - colours).square().mean()
            optimizer.zero_grad()
            scale.scale(loss).backward()
            scale.step(optimizer)
        if step % 50 == 0:
            print(f"  step {step}: {-10 * math.log10(loss.item() / 4):.2f} dB, scale {scale.value:.0f}", flush=True)
    return net


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/siren_loss_scaler"))
    parser.add_argument("--photos", type=int, default=6)
    parser.add_argument("--steps", type=int, default=400, help="for each photograph")
    parser.add_argument("--pixels", type=int, default=6000)
    parser.add_argument("--width", type=int, default=160)
    parser.add_argument("--depth", type=int, default=5)
    args = parser.parse_args()
    torch.manual_seed(26)
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)

    files = sorted((args.data / "photos").glob("*/*.JPEG"))
    for path in files[:: max(1, len(files) // args.photos)][: args.photos]:
        print(path.name, flush=True)
        photo = open_photo(path)
        net = learn(photo, args)
        with lap("compute"):
            picture = render(net, *photo.shape[:2])
        Image.fromarray(picture.numpy()).save(args.out / f"{path.stem}.png")
        torch.save(net.state_dict(), args.out / f"{path.stem}.pt")


if __name__ == "__main__":
    main()
