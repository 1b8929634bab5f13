"""Accelerate: which operations should a cell be made of? DARTS, to the first order: weights learn on one half of the
photographs, the mixture of operations on the other, and the best cell so far is written down after each step."""

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
from torch.utils.data import DataLoader, Dataset

from stopwatch import lap, timed

OPERATIONS = ("nothing", "skip", "average", "conv3", "conv5", "dilated")


class Photos(Dataset):
    def __init__(self, files, kinds, side):
        self.kinds, self.side, self.items = kinds, side, []
        for file in files:
            photo = Image.open(file)
            photo.draft("RGB", (side, side))
            self.items.append((photo.convert("RGB").resize((side + 6, side + 6)), kinds.index(file.parent.name)))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        photo, kind = self.items[index]
        x, y = random.randint(0, 6), random.randint(0, 6)
        photo = photo.crop((x, y, x + self.side, y + self.side))
        photo = photo.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if random.random() < 0.5 else photo
        return torch.from_numpy(np.asarray(photo).transpose(2, 0, 1).copy()), kind


def separable(width, size, dilation=1):
    padding = dilation * (size // 2)
    return nn.Sequential(
        nn.ReLU(), nn.Conv2d(width, width, size, padding=padding, dilation=dilation, groups=width, bias=False),
        nn.Conv2d(width, width, 1, bias=False), nn.BatchNorm2d(width, affine=False),
    )  # fmt: skip


class Mixed(nn.Module):
    def __init__(self, width):
        super().__init__()
        convs = separable(width, 3), separable(width, 5), separable(width, 3, 2)
        self.choices = nn.ModuleList([nn.Identity(), nn.AvgPool2d(3, 1, 1), *convs])

    def forward(self, x, shares):
        return sum(share * choice(x) for share, choice in zip(shares[1:], self.choices))


class Cell(nn.Module):
    def __init__(self, width, nodes):
        super().__init__()
        self.edges = nn.ModuleList(nn.ModuleList(Mixed(width) for _ in range(node + 1)) for node in range(nodes))
        self.squeeze = nn.Conv2d(width * nodes, width, 1)

    def forward(self, x, shares):
        states, at = [x], 0
        for edges in self.edges:
            states.append(sum(edge(state, shares[at + k]) for k, (edge, state) in enumerate(zip(edges, states))))
            at += len(edges)
        return self.squeeze(torch.cat(states[1:], 1)) + x


class Supernet(nn.Module):
    def __init__(self, kinds, width=16, cells=2, nodes=3):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, 2, 1), nn.BatchNorm2d(width))
        self.cells = nn.ModuleList(Cell(width, nodes) for _ in range(cells))
        self.head = nn.Linear(width, kinds)
        self.mixture = nn.Parameter(1e-3 * torch.randn(nodes * (nodes + 1) // 2, len(OPERATIONS)))

    def forward(self, x):
        x, shares = self.stem(x.float() / 127.5 - 1), self.mixture.softmax(1)
        for cell in self.cells:
            x = cell(x, shares)
        return self.head(x.mean((2, 3)))

    def best(self):
        shares = self.mixture.detach().softmax(1)
        return [{name: round(share.item(), 4) for name, share in zip(OPERATIONS, row)} for row in shares]


def endless(loader):
    while True:
        yield from loader


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/accelerate_darts_cells"))
    parser.add_argument("--steps", type=int, default=20_000)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    set_seed(21)
    accelerator = Accelerator(cpu=True)
    files = random.sample(sorted((args.data / "photos").glob("*/*.JPEG")), 1200)
    kinds = sorted({file.parent.name for file in files})
    loaders = [DataLoader(Photos(files[k::2], kinds, 32), 16, shuffle=True, drop_last=True) for k in range(2)]
    model = Supernet(len(kinds))
    weights = [weight for name, weight in model.named_parameters() if name != "mixture"]
    slow, fast = torch.optim.Adam([model.mixture], lr=3e-4), torch.optim.SGD(weights, lr=0.025, momentum=0.9)
    model, slow, fast, *loaders = accelerator.prepare(model, slow, fast, *loaders)
    pairs = timed(zip(*map(endless, loaders)), "wait")
    for step, batches in zip(range(1, args.steps + 1), pairs):
        with lap("compute"):
            for optimizer, (images, labels) in zip((fast, slow), batches):
                loss = nn.functional.cross_entropy(model(images), labels)
                model.zero_grad()
                accelerator.backward(loss)
                optimizer.step()
        with lap("own"):
            cell = accelerator.unwrap_model(model).best()
            (args.out / "cell.json").write_text(json.dumps({"step": step, "edges": cell}, indent=1))
            if step % 10 == 0:
                names = [max(edge, key=edge.get) for edge in cell]
                accelerator.print(f"step {step}: loss {loss.item():.4f}, {' '.join(names)}", flush=True)


if __name__ == "__main__":
    main()
