"""Accelerate: a network that must fit into a given number of kilobytes. Each layer's weights are rounded to as many
bits as the budget gives it, which is shared out anew as training goes on, so that the rounding hurts least."""

import argparse
import json
import random
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from stopwatch import lap, timed

CHOICES = (1, 2, 3, 4, 5, 6, 8)


def rounded(weight, bits):
    """On 2**bits levels, with the gradient of the weight itself."""
    span = weight.detach().abs().amax() + 1e-8
    levels = 2 ** (bits - 1) - 0.5
    return weight + ((weight / span * levels - 0.5).round().add(0.5) / levels * span - weight).detach()


class RoundedConv(nn.Conv2d):
    bits = 8

    def forward(self, x):
        return self._conv_forward(x, rounded(self.weight, self.bits), self.bias)


class Budget:
    """Shares a number of bytes among the layers: what is best for the first k layers and every smaller budget."""

    def __init__(self, layers, kilobytes, unit=4):
        self.layers, self.unit = layers, unit
        self.units = int(kilobytes * 1024) // unit
        self.harm = [[0.0] * len(CHOICES) for _ in layers]

    def size(self, layer, bits):
        return -(-layer.weight.numel() * bits // (8 * self.unit))

    @torch.no_grad()
    def measure(self, share=0.1):
        """How much each rounding would change the loss, to the first order; a running mean."""
        for layer, harm in zip(self.layers, self.harm):
            for k, bits in enumerate(CHOICES):
                change = (rounded(layer.weight, bits) - layer.weight) * layer.weight.grad
                harm[k] += share * (change.abs().sum().item() - harm[k])

    def share_out(self):
        best, ways = [0.0] + [float("inf")] * self.units, []
        for layer, harm in zip(self.layers, self.harm):
            sizes = [self.size(layer, bits) for bits in CHOICES]
            row, way = [float("inf")] * (self.units + 1), [0] * (self.units + 1)
            for spent in range(self.units + 1):
                for k, size in enumerate(sizes):
                    if size <= spent and best[spent - size] + harm[k] < row[spent]:
                        row[spent], way[spent] = best[spent - size] + harm[k], k
            best = row
            ways.append(way)
        spent = min(range(self.units + 1), key=best.__getitem__)
        for layer, way in zip(reversed(self.layers), reversed(ways)):
            layer.bits = CHOICES[way[spent]]
            spent -= self.size(layer, layer.bits)
        return [layer.bits for layer in self.layers]


def photos(root, count, side):
    files = random.sample(sorted(root.glob("*/*.JPEG")), count)
    kinds = sorted({file.parent.name for file in files})
    images = []
    for file in files:
        photo = Image.open(file)
        photo.draft("RGB", (side, side))
        images.append(torch.tensor(np.asarray(photo.convert("RGB").resize((side, side)))).permute(2, 0, 1))
    return TensorDataset(torch.stack(images), torch.tensor([kinds.index(file.parent.name) for file in files]))


def network(kinds, width=12):
    layers, inner = [], 3
    for outer, stride in ((width, 2), (width, 1), (2 * width, 2), (2 * width, 1), (4 * width, 2), (4 * width, 1)):
        layers += [RoundedConv(inner, outer, 3, stride, 1), nn.BatchNorm2d(outer), nn.ReLU()]
        inner = outer
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inner, kinds))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/accelerate_bit_budget"))
    parser.add_argument("--kilobytes", type=float, default=20.0)
    parser.add_argument("--epochs", type=int, default=400)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    set_seed(11)
    accelerator = Accelerator(cpu=True)
    model = network(kinds=10)
    budget = Budget([layer for layer in model if isinstance(layer, RoundedConv)], args.kilobytes)
    loader = DataLoader(photos(args.data / "photos", 1500, side=32), 20, shuffle=True, drop_last=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    step = 0
    for epoch in range(args.epochs):
        for images, labels in timed(loader, "wait"):
            with lap("compute"):
                loss = nn.functional.cross_entropy(model(images.float() / 127.5 - 1), labels)
                optimizer.zero_grad()
                accelerator.backward(loss)
                optimizer.step()
            step += 1
            with lap("own"):
                budget.measure()
                bits = budget.share_out()
                if step % 25 == 0:
                    accelerator.print(f"{epoch}/{step}: loss {loss.item():.4f}, bits {bits}", flush=True)
                    (args.out / "bits.json").write_text(json.dumps({"step": step, "bits": bits}))
        with lap("own"):
            accelerator.save(accelerator.unwrap_model(model).state_dict(), args.out / "rounded.pt")


if __name__ == "__main__":
    main()
