"""timm: a small ViT whose layers learn at rates of their own, the lower the deeper, each with warm restarts of its own
length. Restarts are smoothed, as the loss used to jump at each of them."""

import argparse
import math
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from timm.loss import LabelSmoothingCrossEntropy
from timm.models import VisionTransformer
from timm.optim import param_groups_layer_decay
from timm.utils import AverageMeter, accuracy
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Dataset

from stopwatch import lap, timed


class Photos(Dataset):
    def __init__(self, root, side):
        files = sorted(root.glob("*/*.JPEG"))
        self.kinds = sorted({file.parent.name for file in files})
        self.labels = torch.tensor([self.kinds.index(file.parent.name) for file in files])
        self.images = torch.empty(len(files), 3, side, side, dtype=torch.uint8)
        for k, file in enumerate(files):
            photo = Image.open(file)
            photo.draft("RGB", (side, side))
            self.images[k] = torch.tensor(np.asarray(photo.convert("RGB").resize((side, side)))).permute(2, 0, 1)

    def __len__(self):
        return len(self.labels)

    def __getitems__(self, rows):
        rows = torch.tensor(rows)
        images = self.images[rows]
        turned = torch.rand(len(rows)) < 0.5
        images[turned] = images[turned].flip(3)
        return images.float() / 127.5 - 1, self.labels[rows]


class Restarts:
    """Cosine with warm restarts; cycles grow by a factor, and peaks fall by another."""

    def __init__(self, first, grow=1.3, fall=0.9, warmup=500, smooth=1200):
        self.first, self.grow, self.fall, self.warmup, self.smooth = first, grow, fall, warmup, smooth

    def sharp(self, step):
        if step < 0:
            return 0.0
        length, peak = self.first, 1.0
        while step >= length:
            step -= length
            length *= self.grow
            peak *= self.fall
        rise = min(1.0, (step + 1) / self.warmup)
        return peak * rise * 0.5 * (1 + math.cos(math.pi * step / length))

    def __call__(self, step):
        near = range(-self.smooth, self.smooth + 1)
        weights = [math.exp(-2 * (k / self.smooth) ** 2) for k in near]
        return sum(weight * self.sharp(step + k) for weight, k in zip(weights, near)) / sum(weights)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/timm_layer_restarts"))
    parser.add_argument("--epochs", type=int, default=300)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--side", type=int, default=32)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(4)
    torch.set_num_threads(1)
    photos = Photos(args.data / "photos", args.side)
    loader = DataLoader(photos, args.batch_size, shuffle=True, drop_last=True, collate_fn=lambda batch: batch)
    model = VisionTransformer(
        img_size=args.side,
        patch_size=8,
        embed_dim=32,
        depth=8,
        num_heads=4,
        mlp_ratio=2,
        num_classes=len(photos.kinds),
    )
    groups = param_groups_layer_decay(model, weight_decay=0.05, layer_decay=0.75)
    for group in groups:
        group["lr"] = 2e-3 * group["lr_scale"]
    optimizer = torch.optim.AdamW(groups, lr=2e-3)
    schedule = LambdaLR(optimizer, [Restarts(first=6000 + 300 * k) for k in range(len(groups))])
    criterion, losses, tops, step = LabelSmoothingCrossEntropy(0.1), AverageMeter(), AverageMeter(), 0
    for epoch in range(args.epochs):
        losses.reset(), tops.reset()
        for images, labels in timed(loader, "wait"):
            with lap("compute"):
                scores = model(images)
                loss = criterion(scores, labels)
                optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
            with lap("own"):
                schedule.step()
                step += 1
                losses.update(loss.item(), len(labels))
                tops.update(accuracy(scores.detach(), labels)[0].item(), len(labels))
                if step % 25 == 0:
                    rates = schedule.get_last_lr()
                    print(f"{epoch}/{step}: {losses.avg:.4f}, {tops.avg:.1f} %, {min(rates):.1e} to {max(rates):.1e}",
                          flush=True)  # fmt: skip
        with lap("own"):
            torch.save({"model": model.state_dict(), "epoch": epoch}, args.out / "last.pth")


if __name__ == "__main__":
    main()
