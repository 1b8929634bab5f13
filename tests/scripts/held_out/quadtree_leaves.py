"""Pictures as quadtrees: a set network over the leaves. The tree goes with its batch, to look at a mistake later on."""

import argparse
import random
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from stopwatch import lap, timed
from torch import nn
from torch.utils.data import DataLoader, Dataset

SIDE, LEVELS, MOST = 64, 5, 256


@dataclass
class Node:
    x: int
    y: int
    size: int
    colour: tuple[float, float, float]
    spread: float
    children: list["Node"] = field(default_factory=list)

    def leaves(self):
        if not self.children:
            yield self
        for child in self.children:
            yield from child.leaves()

    def depth(self):
        return 1 + max((child.depth() for child in self.children), default=0)


@dataclass
class Sample:
    tree: Node
    leaves: np.ndarray
    label: int


@dataclass
class Batch:
    leaves: torch.Tensor
    mask: torch.Tensor
    labels: torch.Tensor
    trees: list[Node]


def grow(pixels: np.ndarray, limit=4.0) -> Node:
    """Splits a square in four as long as its colours differ."""
    levels = []
    for level in range(LEVELS):
        size = SIDE >> level
        blocks = pixels.reshape(SIDE // size, size, SIDE // size, size, 3)
        levels.append((blocks.mean((1, 3)).tolist(), blocks.std((1, 3)).mean(-1).tolist()))

    def node(level, row, column):
        size, (colours, spreads) = SIDE >> level, levels[level]
        made = Node(column * size, row * size, size, tuple(colours[row][column]), spreads[row][column])
        if level + 1 < LEVELS and made.spread > limit:
            made.children = [node(level + 1, 2 * row + i, 2 * column + j) for i in (0, 1) for j in (0, 1)]
        return made

    return node(0, 0, 0)


class Quadtrees(Dataset):
    def __init__(self, root: Path, each=50):
        self.samples = []
        for label, folder in enumerate(sorted(p for p in root.iterdir() if p.is_dir())):
            for file in sorted(folder.iterdir())[:each]:
                image = Image.open(file)
                image.draft("RGB", (2 * SIDE, 2 * SIDE))
                tree = grow(np.asarray(image.convert("RGB").resize((SIDE, SIDE)), np.float32))
                rows = [(n.x, n.y, n.size, *n.colour, n.spread) for n in tree.leaves()]
                scale = np.array([SIDE, SIDE, SIDE, 255, 255, 255, 64], np.float32)
                self.samples.append(Sample(tree, np.array(rows, np.float32) / scale, label))

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        sample = self.samples[index]
        leaves = sample.leaves.copy()
        if random.random() < 0.5:
            leaves[:, 0] = 1 - leaves[:, 0] - leaves[:, 2]
        return Sample(sample.tree, leaves, sample.label)


def collate(samples: list[Sample]) -> Batch:
    leaves, mask = torch.zeros(len(samples), MOST, 7), torch.zeros(len(samples), MOST, 1)
    for i, sample in enumerate(samples):
        leaves[i, : len(sample.leaves)] = torch.from_numpy(sample.leaves)
        mask[i, : len(sample.leaves)] = 1
    labels = torch.tensor([sample.label for sample in samples])
    return Batch(leaves, mask, labels, [sample.tree for sample in samples])


class LeafNet(nn.Module):
    def __init__(self, classes, width=40):
        super().__init__()
        self.each = nn.Sequential(nn.Linear(7, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.head = nn.Linear(2 * width, classes)

    def forward(self, leaves, mask):
        seen = self.each(leaves) * mask
        return self.head(torch.cat([seen.sum(1) / mask.sum(1), seen.amax(1)], 1))


class Study:
    def __init__(self, args):
        self.args = args
        self.loader = DataLoader(
            Quadtrees(args.data / "photos"), 48, shuffle=True, drop_last=True,
            num_workers=2, collate_fn=collate, persistent_workers=True,
        )  # fmt: skip
        self.model = LeafNet(10)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=3e-3)
        self.steps = 0

    def step(self, batch: Batch):
        logits = self.model(batch.leaves, batch.mask)
        loss = nn.functional.cross_entropy(logits, batch.labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item(), logits.argmax(1)

    def run(self):
        for _ in range(self.args.epochs):
            for batch in timed(self.loader, "wait"):
                with lap("compute"):
                    loss, guesses = self.step(batch)
                self.steps += 1
                wrong = (guesses != batch.labels).nonzero().flatten().tolist()
                if self.steps % 100 == 0 and wrong:
                    missed = batch.trees[wrong[0]]
                    print(f"step {self.steps}: {loss:.3f}, missed a tree of depth {missed.depth()}", flush=True)
        torch.save(self.model.state_dict(), self.args.out / "leaves.pt")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/quadtree_leaves"))
    parser.add_argument("--epochs", type=int, default=120)
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    Study(options).run()
