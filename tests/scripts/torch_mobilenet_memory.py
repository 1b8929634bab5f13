"""How fast does MobileNetV2 train? Random images, kept in memory."""

import argparse
import time

import torch
from stopwatch import lap, timed
from torch.utils.data import DataLoader, TensorDataset
from torchvision.models import mobilenet_v2


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", nargs="?", help="not used: the images are random")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--samples", type=int, default=256)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--size", type=int, default=160)
    parser.add_argument("--classes", type=int, default=10)
    return parser.parse_args()


def train_one_epoch(model, loader, criterion, optimizer):
    model.train()
    total = 0.0
    for images, labels in timed(loader, "wait"):
        with lap("compute"):
            optimizer.zero_grad(set_to_none=True)
            loss = criterion(model(images), labels)
            loss.backward()
            optimizer.step()
        total += loss.item()
    return total / len(loader)


def main():
    args = parse_args()
    torch.manual_seed(1)
    images = torch.randn(args.samples, 3, args.size, args.size)
    labels = torch.randint(0, args.classes, (args.samples,))
    loader = DataLoader(TensorDataset(images, labels), batch_size=args.batch_size, shuffle=True)

    model = mobilenet_v2(weights=None, num_classes=args.classes)
    criterion = torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=4e-5)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)

    for epoch in range(args.epochs):
        start = time.perf_counter()
        loss = train_one_epoch(model, loader, criterion, optimizer)
        scheduler.step()
        rate = args.samples / (time.perf_counter() - start)
        print(f"[{epoch + 1}/{args.epochs}] loss={loss:.4f} images/s={rate:.1f}", flush=True)


if __name__ == "__main__":
    main()
