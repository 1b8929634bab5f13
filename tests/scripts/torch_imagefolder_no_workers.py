"""Small image classifier, the short version: one file, no functions."""

import argparse
import os

import torch
import torch.nn.functional as F
from stopwatch import lap, timed
from torch import nn
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("data")
parser.add_argument("--epochs", type=int, default=22)
parser.add_argument("--batch", type=int, default=32)
args = parser.parse_args()
torch.manual_seed(0)

transform = v2.Compose(
    [
        v2.RandomResizedCrop(64, scale=(0.2, 1.0)),
        v2.RandomHorizontalFlip(),
        v2.ToImage(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(mean=[0.5, 0.5, 0.5], std=[0.25, 0.25, 0.25]),
    ]
)
dataset = ImageFolder(os.path.join(args.data, "photos"), transform=transform)
train_loader = DataLoader(dataset, batch_size=args.batch, shuffle=True)


class TinyNet(nn.Module):
    def __init__(self, n_classes):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.conv2 = nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.fc = nn.Linear(16, n_classes)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.relu(self.conv2(x))
        return self.fc(x.mean(dim=(2, 3)))


model = TinyNet(len(dataset.classes))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

model.train()
for epoch in range(args.epochs):
    seen = correct = 0
    for step, (x, y) in enumerate(timed(train_loader, "wait")):
        with lap("compute"):
            optimizer.zero_grad()
            logits = model(x)
            loss = F.cross_entropy(logits, y)
            loss.backward()
            optimizer.step()
        seen += len(y)
        correct += (logits.argmax(1) == y).sum().item()
        if step % 20 == 0:
            print(f"epoch {epoch} step {step}/{len(train_loader)} loss {loss.item():.3f}", flush=True)
    print(f"epoch {epoch} accuracy {correct / seen:.3f}", flush=True)
