"""Stochastic depth under Accelerate. Which blocks run is drawn anew for each step, so what a run has cost cannot be told
from the model alone: the ledger adds up the operations that were really asked for, layer by layer."""

import argparse
import json
import random
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from PIL import Image
from torch import fx, nn
from torch.fx.passes.shape_prop import ShapeProp
from torch.utils.data import DataLoader, TensorDataset

from stopwatch import lap, timed


def thumbnails(root, each, side):
    images, labels = [], []
    for label, folder in enumerate(sorted(root.iterdir())):
        for file in sorted(folder.glob("*.JPEG"))[:each]:
            with Image.open(file) as photo:
                photo.draft("RGB", (side, side))
                images.append(torch.from_numpy(np.array(photo.convert("RGB").resize((side, side)))))
            labels.append(label)
    return TensorDataset(torch.stack(images).permute(0, 3, 1, 2).contiguous(), torch.tensor(labels))


class Block(nn.Module):
    def __init__(self, width, factor=2):
        super().__init__()
        self.spread = nn.Conv2d(width, width * factor, 1)
        self.depth = nn.Conv2d(width * factor, width * factor, 3, padding=1, groups=width * factor)
        self.norm = nn.BatchNorm2d(width * factor)
        self.back = nn.Conv2d(width * factor, width, 1)
        self.on = True

    def forward(self, x):
        if not self.on:
            return x
        return x + self.back(self.norm(self.depth(self.spread(x))).relu())


class DeepNet(nn.Module):
    def __init__(self, classes, width=16, depth=16):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 4, stride=4)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(depth)))
        self.head = nn.Linear(width, classes)

    def draw(self, last=0.5):
        for number, block in enumerate(self.blocks):
            block.on = random.random() < 1 - number / len(self.blocks) * (1 - last)

    def forward(self, images):
        return self.head(self.blocks(self.stem(images / 127.5 - 1)).mean((2, 3)))


class Ledger:
    """Operations by layer: those of training, and what the drawn network would take at the sides it is shown with."""

    def __init__(self, path, side, shown=(48, 64)):
        self.path, self.total, self.shown = path, Counter(), Counter()
        self.examples = {size: torch.zeros(1, 3, size, size) for size in (side, *shown)}

    def operations(self, module, shape):
        positions = shape.numel() // shape[1]
        return module.weight.numel() * positions if isinstance(module, (nn.Conv2d, nn.Linear)) else shape.numel()

    def enter(self, net, count):
        training = net.training
        traced = fx.symbolic_trace(net.eval())
        modules = dict(traced.named_modules())
        for side, example in self.examples.items():
            ShapeProp(traced).propagate(example)
            for node in traced.graph.nodes:
                if node.op == "call_module":
                    cost = self.operations(modules[node.target], node.meta["tensor_meta"].shape)
                    self.shown[side] += cost
                    if example is self.examples[min(self.examples)]:
                        self.total[str(node.target)] += 3 * count * cost
        net.train(training)

    def write(self):
        self.path.write_text(
            json.dumps({"total": sum(self.total.values()), "layers": self.total, "shown": self.shown}, indent=1)
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/accelerate_depth_ledger"))
    parser.add_argument("--epochs", type=int, default=400)
    parser.add_argument("--side", type=int, default=32)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    random.seed(0)
    accelerator = Accelerator(cpu=True)
    loader = DataLoader(thumbnails(args.data / "photos", 80, args.side), 12, shuffle=True, drop_last=True)
    net = DeepNet(10)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    model, optimizer, loader = accelerator.prepare(net, optimizer, loader)
    ledger = Ledger(args.out / "ledger.json", args.side)
    for epoch in range(args.epochs):
        for images, labels in timed(loader, "wait"):
            with lap("compute"):
                net.draw()
                loss = nn.functional.cross_entropy(model(images), labels)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            with lap("own"):
                ledger.enter(net, len(images))
        ledger.write()
        accelerator.print(f"epoch {epoch}: {loss.item():.3f}, {sum(ledger.total.values()) / 1e12:.3f} T", flush=True)
        accelerator.save_model(model, str(args.out))


if __name__ == "__main__":
    main()
