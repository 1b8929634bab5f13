"""timm: CutMix training of a small residual network with a weight diary (histogram of every layer, each step)."""

import argparse
import csv
import math
from collections import Counter
from pathlib import Path

import timm
import torch
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.utils import AverageMeter, ModelEmaV2
from torch.utils.data import DataLoader
from torchvision import datasets, transforms
from PIL import Image

from stopwatch import lap, timed


def quick_open(path):
    """Decode no finer than needed."""
    image = Image.open(path)
    image.draft("RGB", (80, 80))
    return image.convert("RGB")


class Diary:
    """Counts of the orders of magnitude of the weights and of their last change, layer by layer."""

    def __init__(self, model, path):
        self.previous = {name: p.detach().clone() for name, p in model.named_parameters()}
        self.file = open(path, "w", newline="")
        self.rows = csv.writer(self.file)
        self.step = 0

    @staticmethod
    def magnitudes(values):
        counts = Counter()
        for value in values:
            counts[math.frexp(value)[1]] += 1
        return counts

    def write(self, model, budget):
        """`budget`: so many weights of each layer."""
        self.step += 1
        for name, parameter in model.named_parameters():
            now = parameter.detach().flatten()
            change = now - self.previous[name].flatten()
            sizes = self.magnitudes(now[:budget].tolist())
            moves = self.magnitudes(change[:budget].tolist())
            self.previous[name] = parameter.detach().clone()
            self.rows.writerow([self.step, name, *sizes.most_common(3), *moves.most_common(3)])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/timm_weights"))
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--budget", type=int, default=20000)
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)

    prepare = transforms.Compose(
        [
            transforms.Resize((64, 64)),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(timm.data.IMAGENET_DEFAULT_MEAN, timm.data.IMAGENET_DEFAULT_STD),
        ]
    )
    data = datasets.ImageFolder(args.data / "photos", prepare, loader=quick_open)
    loader = DataLoader(data, batch_size=16, shuffle=True, num_workers=2, drop_last=True, persistent_workers=True)
    model = timm.create_model("test_resnet", pretrained=False, num_classes=len(data.classes))
    mixup = Mixup(mixup_alpha=0.2, cutmix_alpha=1.0, num_classes=len(data.classes))
    optimizer = create_optimizer_v2(model, "adamw", lr=1e-3, weight_decay=0.02)
    ema = ModelEmaV2(model, decay=0.999)
    criterion = SoftTargetCrossEntropy()
    diary = Diary(model, args.out / "diary.csv")

    for epoch in range(args.epochs):
        meter = AverageMeter()
        model.train()
        for images, labels in timed(loader, "wait"):
            with lap("compute"):
                images, targets = mixup(images, labels)
                loss = criterion(model(images), targets)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                ema.update(model)
            with lap("own"):
                meter.update(loss.item(), len(images))
                diary.write(model, args.budget)
        print(f"epoch {epoch}: loss {meter.avg:.4f}", flush=True)
        torch.save(ema.module.state_dict(), args.out / "ema.pt")


if __name__ == "__main__":
    main()
