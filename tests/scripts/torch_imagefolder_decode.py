"""Train a tiny photo classifier from a folder of JPEG files."""

import argparse
from pathlib import Path

import torch
from PIL import Image
from stopwatch import lap, timed
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets, transforms


class AverageMeter:
    """Keeps a running mean."""

    def __init__(self):
        self.total, self.count = 0.0, 0

    def update(self, value, n=1):
        self.total += value * n
        self.count += n

    @property
    def mean(self):
        return self.total / max(1, self.count)


class Augment(transforms.Compose):
    def __call__(self, image):
        with lap("transform"):
            return super().__call__(image)


def open_photo(path):
    with lap("decode"), open(path, "rb") as file:
        return Image.open(file).convert("RGB")


def build_model(classes):
    return nn.Sequential(
        nn.Conv2d(3, 8, 5, stride=4, padding=2),
        nn.ReLU(inplace=True),
        nn.Conv2d(8, 16, 3, stride=2, padding=1),
        nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, classes),
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--out", type=Path, default=Path("runs/torch_imagefolder_decode"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)  # the workers need the cores

    augment = Augment(
        [
            transforms.RandomResizedCrop(64),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ]
    )
    train_set = datasets.ImageFolder(args.data / "photos", augment, loader=open_photo)
    loader = DataLoader(train_set, args.batch_size, shuffle=True, num_workers=2, persistent_workers=True)
    model = build_model(len(train_set.classes))
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    for epoch in range(args.epochs):
        losses = AverageMeter()
        for images, labels in timed(loader, "wait"):
            with lap("compute"):
                loss = criterion(model(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            losses.update(loss.item(), len(images))
        print(f"epoch {epoch + 1:3d}/{args.epochs}  loss {losses.mean:.4f}", flush=True)
    torch.save(model.state_dict(), args.out / "model.pt")


if __name__ == "__main__":
    main()
