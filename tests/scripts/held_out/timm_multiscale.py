"""timm: a ResNet-10-T at a new side for each batch, gradients summed over four batches, averaged weights."""

import argparse
import random
from collections import defaultdict
from pathlib import Path

import timm
import timm.optim
import torch
import torch.nn.functional as F
from PIL import Image
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.loss import LabelSmoothingCrossEntropy
from timm.scheduler import CosineLRScheduler
from timm.utils import AverageMeter, ModelEmaV3, accuracy
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from stopwatch import lap, timed

SIDES = (64, 80, 96, 112, 128)


def open_reduced(path):
    image = Image.open(path)
    image.draft("RGB", (160, 160))
    return image.convert("RGB")


def make_loader(root, batch_size, workers):
    transform = v2.Compose(
        [
            v2.PILToTensor(),
            v2.RandomResizedCrop(128, scale=(0.35, 1.0), antialias=True),
            v2.RandomHorizontalFlip(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD),
        ]
    )
    photos = ImageFolder(root, transform, loader=open_reduced)
    return photos, DataLoader(
        photos,
        batch_size=batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        persistent_workers=workers > 0,
    )


def train_one_epoch(model, average, loader, optimizer, criterion, accumulate, epoch):
    model.train()
    losses = defaultdict(AverageMeter)
    top = AverageMeter()
    optimizer.zero_grad()
    for number, (images, labels) in enumerate(timed(loader, "wait")):
        side = random.choice(SIDES)
        with lap("compute"):
            if side != images.shape[-1]:
                images = F.interpolate(images, (side, side), mode="bilinear", antialias=True)
            scores = model(images)
            loss = criterion(scores, labels)
            (loss / accumulate).backward()
            if (number + 1) % accumulate == 0:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 2.0)
                optimizer.step()
                optimizer.zero_grad()
                average.update(model)
        with lap("own"):
            losses[side].update(loss.item(), len(labels))
            top.update(accuracy(scores.detach(), labels)[0].item(), len(labels))
        if number % 40 == 0:
            means = ", ".join(f"{side} px {meter.avg:.3f}" for side, meter in sorted(losses.items()))
            print(f"epoch {epoch} batch {number}/{len(loader)}: {means}, top 1 {top.avg:.1f} %", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/timm_multiscale"))
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--accumulate", type=int, default=4)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    random.seed(29)
    torch.manual_seed(29)
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)

    photos, loader = make_loader(args.data / "photos", args.batch_size, args.workers)
    model = timm.create_model("resnet10t", pretrained=False, num_classes=len(photos.classes), drop_rate=0.1)
    average = ModelEmaV3(model, decay=0.99)
    optimizer = timm.optim.create_optimizer_v2(model, opt="lamb", lr=5e-3, weight_decay=0.02)
    schedule = CosineLRScheduler(optimizer, t_initial=args.epochs, warmup_t=1, warmup_lr_init=1e-4)
    criterion = LabelSmoothingCrossEntropy(0.1)
    for epoch in range(args.epochs):
        train_one_epoch(model, average, loader, optimizer, criterion, args.accumulate, epoch)
        schedule.step(epoch + 1)
        torch.save({"model": average.module.state_dict(), "epoch": epoch}, args.out / "average.pt")


if __name__ == "__main__":
    main()
