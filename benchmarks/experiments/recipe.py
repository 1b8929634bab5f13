"""A training script as image-classification references write it: MobileNetV2, one worker, a log line now and then.

It imports nothing of feedline: the second subject of `benchmarks.experiments.predictions`.

    python recipe.py DATA [--workers 1] [--uint8] [--image-size 64] [--batch-size 32] [--epochs 1]
"""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets, models, transforms

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def make_loader(args: argparse.Namespace) -> DataLoader[tuple[torch.Tensor, torch.Tensor]]:
    steps = [transforms.RandomResizedCrop(args.image_size), transforms.RandomHorizontalFlip()]
    as_floats = [transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
    steps += [transforms.PILToTensor()] if args.uint8 else as_floats
    dataset = datasets.ImageFolder(f"{args.data}/train", transforms.Compose(steps))
    return DataLoader(dataset, args.batch_size, shuffle=True, drop_last=True, num_workers=args.workers)


def train_one_epoch(model: nn.Module, loader: DataLoader[tuple[torch.Tensor, torch.Tensor]], args: argparse.Namespace,
                    optimizer: torch.optim.Optimizer) -> None:  # fmt: skip
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    device = next(model.parameters()).device
    mean, std = (torch.tensor(values, device=device).view(3, 1, 1) for values in (MEAN, STD))
    model.train()
    started = time.perf_counter()
    for i, batch in enumerate(loader):
        images, target = (tensor.to(device) for tensor in batch)
        inputs = (images.float() / 255 - mean) / std if args.uint8 else images
        output = model(inputs)
        loss = criterion(output, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if i % 20 == 0:
            top1 = (output.argmax(1) == target).float().mean().item()
            print(f"{i}/{len(loader)} loss {loss.item():.3f} top-1 {top1:.3f} {time.perf_counter() - started:.1f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description="Image classification, reference style")
    parser.add_argument("data")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--uint8", action="store_true", help="uint8 batches, normalised in the training loop")
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--width", type=float, default=0.25)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1, help="of the model; 1 is what torchrun sets too")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(args.threads)
    loader = make_loader(args)
    model = models.mobilenet_v2(num_classes=1000, width_mult=args.width)
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=4e-5)
    for _ in range(args.epochs):
        train_one_epoch(model, loader, args, optimizer)


if __name__ == "__main__":
    main()
