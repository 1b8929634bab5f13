"""timm from scratch on thumbnails. Memory grew overnight on the cluster, so allocations are followed while it trains.

usage: timm_leak_hunt.py DATA [--model NAME] [--no-hunt]
"""

import argparse
import random
import tracemalloc
from pathlib import Path

import timm
import torch
from PIL import Image
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.utils import AverageMeter
from torchvision.transforms.functional import pil_to_tensor

from stopwatch import lap, timed


class Index:
    """Photographs and their tags, as the crawler wrote them down."""

    TAGS = ["outdoor", "indoor", "blurred", "portrait", "macro", "night", "snow", "crowd", "water", "text"]

    def __init__(self, root):
        self.classes = sorted(folder.name for folder in root.iterdir() if folder.is_dir())
        self.entries = []
        for label, name in enumerate(self.classes):
            for file in sorted((root / name).glob("*.JPEG")):
                tags = [f"{tag}:{random.random():.2f}" for tag in random.sample(self.TAGS, 2)]
                self.entries.append({"file": str(file), "label": label, "tags": tags})

    def __len__(self):
        return len(self.entries)


def thumbnails(index, count, side):
    images, labels = [], []
    for entry in random.sample(index.entries, count):
        with Image.open(entry["file"]) as photo:
            photo.draft("RGB", (side, side))
            images.append(pil_to_tensor(photo.convert("RGB").resize((side, side))))
        labels.append(entry["label"])
    return torch.stack(images), torch.tensor(labels)


def batches(images, labels, size):
    while True:
        for chosen in torch.randperm(len(images)).split(size)[:-1]:
            picked = images[chosen].float().div(127.5).sub(1)
            yield (picked.flip(3) if random.random() < 0.5 else picked), labels[chosen]


class LeakHunter:
    def __init__(self, path, frames=2, top=5):
        tracemalloc.start(frames)
        self.path, self.top, self.before = path, top, None

    def look(self, step):
        now = tracemalloc.take_snapshot()
        if self.before is not None:
            grown = now.compare_to(self.before, "lineno")[: self.top]
            with open(self.path, "a") as report:
                report.write(f"--- step {step}: {tracemalloc.get_traced_memory()[0] / 1e6:.1f} MB\n")
                for difference in grown:
                    report.write(f"{difference.size_diff / 1024:+.1f} KiB {difference.traceback}\n")
        self.before = now


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/timm_leak_hunt"))
    parser.add_argument("--model", default="mobilenetv3_small_050")
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("-b", "--batch-size", type=int, default=12)
    parser.add_argument("--no-hunt", action="store_true")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    random.seed(1)

    hunter = None if args.no_hunt else LeakHunter(args.out / "leaks.txt")
    index = Index(args.data / "photos")
    images, labels = thumbnails(index, 600, 48)
    model = timm.create_model(args.model, num_classes=len(index.classes), drop_rate=0.1)
    mixup = Mixup(mixup_alpha=0.2, num_classes=len(index.classes), label_smoothing=0.1)
    optimizer = create_optimizer_v2(model, opt="lamb", lr=4e-3, weight_decay=0.02)
    criterion, meter = SoftTargetCrossEntropy(), AverageMeter()
    for step, (x, y) in enumerate(timed(batches(images, labels, args.batch_size), "wait")):
        with lap("compute"):
            x, y = mixup(x, y)
            loss = criterion(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with lap("own"):
            meter.update(loss.item(), len(x))
            if hunter and step % 3 == 0:
                hunter.look(step)
        if step % 50 == 0:
            print(f"step {step}: loss {meter.val:.4f} ({meter.avg:.4f})", flush=True)
            torch.save(model.state_dict(), args.out / "model.pt")
        if step == args.steps:
            break


if __name__ == "__main__":
    main()
