"""Classifier whose augmentation holds a home-made transform: equalising each channel's histogram."""

import argparse
import os

import torch
from PIL import Image
from stopwatch import lap, timed
from torch import nn, optim
from torch.utils.data import DataLoader
from torchvision import datasets, transforms


class EqualizeChannels:
    """Equalise the histogram of each of the three channels, with some probability."""

    def __init__(self, p=1.0):
        self.p = p

    def __call__(self, image):
        if torch.rand(()) > self.p:
            return image
        with lap("transform"):
            return Image.merge("RGB", [self.equalize(channel) for channel in image.split()])

    def equalize(self, channel):
        values = channel.tobytes()
        histogram = [0] * 256
        for value in values:
            histogram[value] += 1
        table, seen = [], 0
        for count in histogram:
            seen += count
            table.append(255 * seen // len(values))
        return Image.frombytes("L", channel.size, bytes([table[value] for value in values]))


class SmallNet(nn.Module):
    def __init__(self, num_classes=10):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 16, 8, stride=8),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
        )
        self.classifier = nn.Linear(32, num_classes)

    def forward(self, x):
        return self.classifier(self.features(x).mean((2, 3)))


def main(args):
    torch.set_num_threads(1)  # leave the cores to the workers
    transform = transforms.Compose(
        [
            transforms.RandomResizedCrop(224),
            transforms.RandomHorizontalFlip(),
            EqualizeChannels(),
            transforms.ToTensor(),
        ]
    )
    dataset = datasets.ImageFolder(os.path.join(args.data, "photos"), transform)
    loader = DataLoader(
        dataset, args.batch_size, shuffle=True, num_workers=2, drop_last=True, persistent_workers=True
    )
    model, criterion = SmallNet(len(dataset.classes)), nn.CrossEntropyLoss()
    optimizer = optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, nesterov=True)
    for epoch in range(args.epochs):
        for i, (images, target) in enumerate(timed(loader, "wait")):
            with lap("compute"):
                loss = criterion(model(images), target)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            if i % 10 == 0:
                print(f"Epoch: [{epoch}][{i}/{len(loader)}]\tLoss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("data", metavar="DIR")
    parser.add_argument("--epochs", default=9, type=int)
    parser.add_argument("-b", "--batch-size", default=32, type=int)
    parser.add_argument("--lr", default=0.02, type=float)
    main(parser.parse_args())
