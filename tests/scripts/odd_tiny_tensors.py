"""MNIST-sized images held in memory: TensorDataset, batches of 64, the default collate, softmax regression."""

import argparse
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from stopwatch import lap, timed
from torch.utils.data import DataLoader, TensorDataset


def make_digits(n, generator):
    prototypes = torch.rand(10, 1, 28, 28, generator=generator)
    labels = torch.randint(10, (n,), generator=generator)
    images = 0.6 * prototypes[labels] + 0.4 * torch.rand(n, 1, 28, 28, generator=generator)
    return images, labels


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(784, 10)

    def forward(self, x):
        return self.fc(torch.flatten(x, 1))


def train(model, loader, optimizer, epoch):
    model.train()
    start = time.time()
    for batch_idx, (data, target) in enumerate(timed(loader, "wait")):
        with lap("compute"):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(data), target)
            loss.backward()
            optimizer.step()
        if batch_idx % 200 == 0:
            done = batch_idx * len(data)
            print(f"Train Epoch: {epoch} [{done}/{len(loader.dataset)}]\tLoss: {loss.item():.6f}", flush=True)
    print(f"epoch {epoch} took {time.time() - start:.2f} s")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", help="not used: the digits are made in memory")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=110)
    parser.add_argument("--workers", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(1)
    torch.set_num_threads(1)
    dataset = TensorDataset(*make_digits(60000, torch.Generator().manual_seed(7)))
    loader = DataLoader(dataset, batch_size=args.batch_size, shuffle=True, num_workers=args.workers)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(1, args.epochs + 1):
        train(model, loader, optimizer, epoch)


if __name__ == "__main__":
    main()
