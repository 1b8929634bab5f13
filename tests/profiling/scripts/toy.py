"""A tiny loop with a dataset of its own; logs, saves, and makes a run folder as scripts do."""

import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Numbers(Dataset):
    def __init__(self, samples):
        self.samples = samples

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        value = self.make(index)
        return value, index % 3

    def make(self, index):
        return torch.full((4,), float(index))


def collate(samples):
    values = torch.stack([value for value, _ in samples])
    return values, torch.tensor([label for _, label in samples])


def train(loader, run):
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    log = open(run / "log.txt", "w")
    for values, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(values), labels)
        loss.backward()
        optimizer.step()
        log.write(f"{loss.item()}\n")
    log.close()
    torch.save(model.state_dict(), run / "model.pt")


def main():
    workers, method, samples = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    run = Path(sys.argv[4])
    run.mkdir()
    context = method if workers else None
    loader = DataLoader(
        Numbers(samples), batch_size=8, num_workers=workers, multiprocessing_context=context, collate_fn=collate
    )
    train(loader, run)


if __name__ == "__main__":
    main()
