"""The training script everybody writes first: an image folder at full size, PIL transforms, DataLoader's defaults.

It imports nothing of feedline, so that it can be profiled as any user's script is, and it is the ladder's first rung.

    python naive.py DATA [--model small_cnn|mobilenet_v2] [--image-size 64] [--batch-size 64] [--epochs 1]
"""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets, models, transforms

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def small_cnn(classes: int) -> nn.Module:
    """Two 5×5 convolutions of 6 and 16 channels and two linear layers, no batch norm."""
    return nn.Sequential(
        nn.Conv2d(3, 6, 5),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.AdaptiveAvgPool2d(6),
        nn.Flatten(),
        nn.Linear(16 * 36, 84),
        nn.ReLU(inplace=True),
        nn.Linear(84, classes),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="A first training script")
    parser.add_argument("data", help="a folder with train/CLASS/*.JPEG")
    parser.add_argument("--model", choices=("small_cnn", "mobilenet_v2"), default="small_cnn")
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--num-workers", type=int, default=0, help="DataLoader's own default")
    parser.add_argument("--lr", type=float, default=0.01)
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    transform = transforms.Compose(
        [
            transforms.RandomResizedCrop(args.image_size),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(MEAN, STD),
        ]
    )
    dataset = datasets.ImageFolder(f"{args.data}/train", transform)
    loader = DataLoader(dataset, batch_size=args.batch_size, shuffle=True, num_workers=args.num_workers)

    classes = len(dataset.classes)
    model = small_cnn(classes) if args.model == "small_cnn" else models.mobilenet_v2(num_classes=classes)
    model.to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)

    for epoch in range(args.epochs):
        model.train()
        started, seen, total_loss = time.perf_counter(), 0, 0.0
        for batch in loader:
            images, labels = (tensor.to(device) for tensor in batch)
            optimizer.zero_grad()
            loss = criterion(model(images), labels)
            loss.backward()
            optimizer.step()
            seen += len(labels)
            total_loss += loss.item() * len(labels)
        rate = seen / (time.perf_counter() - started)
        print(f"epoch {epoch}: loss {total_loss / seen:.3f}, {rate:,.0f} samples/s")


if __name__ == "__main__":
    main()
