"""timm: a small network of its registry on photographs, with Lookahead around AdamW, MixUp and CutMix by timm's own
Mixup, and pictures that are saved at a poor JPEG quality and read again before the network sees them. A summary goes
to CSV."""

import argparse
import csv
import io
import random
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.models import create_model
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import AverageMeter, dispatch_clip_grad
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms as T
from torchvision.datasets import ImageFolder

from stopwatch import lap, timed


class PoorJpeg:
    """Saves at a random quality and opens again."""

    def __init__(self, lowest=20, times=2):
        self.lowest, self.times = lowest, times

    def __call__(self, image):
        for _ in range(self.times):
            buffer = io.BytesIO()
            image.save(buffer, "JPEG", quality=random.randint(self.lowest, 90), subsampling=random.choice([0, 2]))
            image = Image.open(buffer).convert("RGB")
        return image


class Photos(Dataset):
    def __init__(self, root, transform):
        self.folder, self.transform = ImageFolder(str(root)), transform

    def __len__(self):
        return len(self.folder)

    def __getitem__(self, index):
        image, label = self.folder[index]
        return self.transform(image), label


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/timm_lookahead_summary"))
    parser.add_argument("--model", default="mobilenetv3_small_100")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--size", type=int, default=128)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    transform = T.Compose([
        T.RandomResizedCrop(args.size, scale=(0.35, 1.0)), T.RandomHorizontalFlip(), PoorJpeg(),
        T.ColorJitter(0.3, 0.3, 0.3), T.ToTensor(), T.Normalize([0.5] * 3, [0.5] * 3),
    ])  # fmt: skip
    photos = Photos(args.data / "photos", transform)
    loader = DataLoader(
        photos,
        args.batch_size,
        shuffle=True,
        num_workers=1,
        prefetch_factor=4,
        persistent_workers=True,
        drop_last=True,
    )
    model = create_model(args.model, num_classes=len(photos.folder.classes), drop_rate=0.1)
    optimizer = create_optimizer_v2(model, opt="lookahead_adamw", lr=1e-3, weight_decay=0.02)
    schedule = CosineLRScheduler(optimizer, t_initial=args.epochs * len(loader), warmup_t=200, warmup_lr_init=1e-5)
    mixup = Mixup(mixup_alpha=0.2, cutmix_alpha=1.0, label_smoothing=0.1, num_classes=len(photos.folder.classes))
    criterion, mean, step = SoftTargetCrossEntropy(), AverageMeter(), 0
    with open(args.out / "summary.csv", "w", newline="") as stream:
        table = csv.writer(stream)
        table.writerow(["step", "loss", "mean", "rate", "norm", "median weight"])
        for epoch in range(args.epochs):
            model.train()
            mean.reset()
            for images, labels in timed(loader, "wait"):
                with lap("compute"):
                    images, targets = mixup(images, labels)
                    loss = criterion(model(images), targets)
                    optimizer.zero_grad()
                    loss.backward()
                    dispatch_clip_grad(model.parameters(), 2.0, mode="norm")
                    optimizer.step()
                with lap("own"):
                    step += 1
                    schedule.step_update(step)
                    mean.update(loss.item(), len(images))
                    head = model.get_classifier().weight.detach().numpy()
                    table.writerow([step, f"{loss.item():.5f}", f"{mean.avg:.5f}", optimizer.param_groups[0]["lr"],
                                    f"{np.linalg.norm(head):.4f}", f"{np.median(np.abs(head)):.6f}"])  # fmt: skip
                    stream.flush()
                    if step % 25 == 0:
                        print(f"{epoch}/{step}: {mean.val:.4f} ({mean.avg:.4f})", flush=True)
            with lap("own"):
                torch.save({"model": model.state_dict(), "epoch": epoch}, args.out / "last.pth")


if __name__ == "__main__":
    main()
