"""SqueezeNet with averaged weights; the average is tried on a holdout every forty steps, within the epoch."""

import argparse
import os

import torch
from PIL import Image
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, Subset
from torchvision import transforms
from torchvision.datasets import ImageFolder
from torchvision.models import squeezenet1_1

from stopwatch import lap, timed

NORMALIZE = transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def open_small(path):
    with lap("decode"):
        image = Image.open(path)
        image.draft("RGB", (128, 128))
        return image.convert("RGB")


def holdout_tensors(root, side, every):
    centre = transforms.Compose(
        [transforms.Resize(side), transforms.CenterCrop(side), transforms.ToTensor(), NORMALIZE]
    )
    folder = ImageFolder(root, centre, loader=open_small)
    chosen = Subset(folder, range(0, len(folder), every))
    images, labels = zip(*(chosen[i] for i in range(len(chosen))), strict=True)
    return torch.stack(images), torch.tensor(labels)


@torch.no_grad()
def validate(model, images, labels):
    model.eval()
    right = 0
    for x, y in zip(images.split(40), labels.split(40), strict=True):
        right += (model(x).argmax(1) == y).sum().item()
    return right / len(labels)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--out", default="runs/squeezenet_ema_holdout")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=24)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--validate-every", type=int, default=40)
    args = parser.parse_args()
    torch.manual_seed(5)
    torch.set_num_threads(1)
    os.makedirs(args.out, exist_ok=True)

    root = os.path.join(args.data, "photos")
    crop = transforms.Compose(
        [
            transforms.RandomResizedCrop(96, (0.4, 1.0)),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            NORMALIZE,
        ]
    )
    everything = ImageFolder(root, crop, loader=open_small)
    every = max(2, len(everything) // 120)
    train_set = Subset(everything, [i for i in range(len(everything)) if i % every])
    images, labels = holdout_tensors(root, 96, every)
    loader = DataLoader(
        train_set,
        args.batch_size,
        shuffle=True,
        num_workers=args.workers,
        persistent_workers=args.workers > 0,
        drop_last=True,
    )
    model = squeezenet1_1(num_classes=len(everything.classes))
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    best, step = 0.0, 0
    for epoch in range(args.epochs):
        for x, y in timed(loader, "wait"):
            with lap("compute"):
                loss = nn.functional.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                average.update_parameters(model)
            step += 1
            if step % args.validate_every == 0:
                with lap("compute"):
                    accuracy = validate(average, images, labels)
                print(
                    f"epoch {epoch} step {step}: loss {loss.item():.4f}, averaged weights {accuracy:.1%}", flush=True
                )
                if accuracy > best:
                    best = accuracy
                    torch.save(average.module.state_dict(), os.path.join(args.out, "best.pt"))


if __name__ == "__main__":
    main()
