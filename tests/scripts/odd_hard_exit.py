"""Plain ImageFolder training without workers, which leaves by os._exit because the clean way out once hung."""

import argparse
import io
import os
import sys
import time

import torch
from PIL import Image
from stopwatch import lap, timed
from torch import nn, optim
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder


def load(path):
    with lap("read"), open(path, "rb") as file:
        data = file.read()
    with lap("decode"):
        return Image.open(io.BytesIO(data)).convert("RGB")


class Net(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 5, stride=4, padding=2)
        self.conv2 = nn.Conv2d(16, 32, 3, stride=2, padding=1)
        self.fc = nn.Linear(32, num_classes)

    def forward(self, x):
        x = torch.relu(self.conv1(x))
        x = torch.relu(self.conv2(x))
        return self.fc(x.mean((2, 3)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--out", default="runs/odd_hard_exit")
    parser.add_argument("-b", "--batch-size", default=32, type=int)
    parser.add_argument("-j", "--workers", default=0, type=int)
    parser.add_argument("--epochs", default=22, type=int)
    args = parser.parse_args()
    torch.set_num_threads(1)

    preprocess = transforms.Compose(
        [
            transforms.RandomResizedCrop(64),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        ]
    )
    train_set = ImageFolder(os.path.join(args.data, "photos"), preprocess, loader=load)
    train_loader = DataLoader(train_set, args.batch_size, shuffle=True, num_workers=args.workers, drop_last=True)
    model = Net(len(train_set.classes))
    criterion = nn.CrossEntropyLoss()
    optimizer = optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(args.epochs):
        model.train()
        began, seen = time.time(), 0
        for i, (images, target) in enumerate(timed(train_loader, "wait")):
            with lap("compute"):
                optimizer.zero_grad()
                loss = criterion(model(images), target)
                loss.backward()
                optimizer.step()
            seen += len(images)
            if i % 20 == 0:
                print(f"Epoch: [{epoch}][{i}/{len(train_loader)}]\tLoss {loss.item():.4f}")
        print(f" * epoch {epoch}: {seen / (time.time() - began):.1f} img/s")
    os.makedirs(args.out, exist_ok=True)
    torch.save(model.state_dict(), os.path.join(args.out, "last.pth"))
    print("done")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
