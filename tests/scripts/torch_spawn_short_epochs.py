"""Few-shot training: a small set, many short epochs, workers started by spawn."""

import argparse
import time
from pathlib import Path

import torch
from stopwatch import lap, timed
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Shapes(Dataset):
    """Squares of ten sizes at random places, drawn when they are asked for."""

    def __init__(self, count=320, size=64):
        self.count = count
        self.size = size

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        label = index % 10
        side = 4 + 3 * label
        top, left = torch.randint(0, self.size - side, (2,)).tolist()
        image = 0.1 * torch.randn(3, self.size, self.size)
        image[:, top : top + side, left : left + side] += 1.0
        return image, label


class Net(nn.Module):
    def __init__(self, width=40):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(width, width, 3, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
        )
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        return self.head(self.body(x).flatten(1))


def train_epoch(model, loader, optimizer):
    model.train()
    total = 0.0
    for images, labels in timed(loader, "wait"):
        with lap("compute"):
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        total += loss.item()
    return total / len(loader)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", nargs="?", help="not needed: the shapes are drawn")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--num-workers", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("runs/torch_spawn_short_epochs"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)

    loader = DataLoader(
        Shapes(), args.batch_size, shuffle=True, num_workers=args.num_workers, multiprocessing_context="spawn"
    )
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    best = float("inf")
    for epoch in range(args.epochs):
        began = time.time()
        loss = train_epoch(model, loader, optimizer)
        if loss < best:
            best = loss
            torch.save(model.state_dict(), args.out / "best.pt")
        print(f"epoch {epoch:3d} | loss {loss:.4f} | {time.time() - began:.1f} s", flush=True)


if __name__ == "__main__":
    main()
