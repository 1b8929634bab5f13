"""A MNIST tutorial loop with line_profiler's @profile left in, its own evaluation and a checkpoint at the end."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

try:
    profile
except NameError:

    def profile(function):
        return function


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3)
        self.fc1 = nn.Linear(8 * 13 * 13, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        return F.log_softmax(self.fc1(torch.flatten(x, 1)), dim=1)


@profile
def train(model, loader, optimizer, epoch):
    model.train()
    for batch_idx, (data, target) in enumerate(loader):
        optimizer.zero_grad()
        output = model(data)
        loss = F.nll_loss(output, target)
        loss.backward()
        optimizer.step()
        if batch_idx % 10 == 0:
            print(f"Train Epoch: {epoch} [{batch_idx}] Loss: {loss.item():.6f}")


def test(model, loader):
    model.eval()
    correct = 0
    with torch.no_grad():
        for data, target in loader:
            correct += (model(data).argmax(dim=1) == target).sum().item()
    print(f"Test set: Accuracy: {correct}/{len(loader.dataset)}")


def main():
    parser = argparse.ArgumentParser(description="MNIST-like example")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--save-model", default=None)
    args = parser.parse_args()
    torch.manual_seed(1)
    images = torch.rand(640, 1, 28, 28)
    labels = torch.randint(0, 10, (640,))
    train_loader = DataLoader(TensorDataset(images, labels), batch_size=32, shuffle=True, num_workers=args.workers)
    test_loader = DataLoader(TensorDataset(images[:128], labels[:128]), batch_size=32)
    model = Net()
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
    for epoch in range(1, args.epochs + 1):
        train(model, train_loader, optimizer, epoch)
        test(model, test_loader)
        if args.save_model:
            torch.save(model.state_dict(), args.save_model)


if __name__ == "__main__":
    main()
