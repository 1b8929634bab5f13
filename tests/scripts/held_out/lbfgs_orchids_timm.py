"""A timm network tuned by L-BFGS: every batch is evaluated several times by a closure before the next one is taken."""

import argparse
from functools import partial
from pathlib import Path

import timm
import torch
from timm.data import create_transform
from torch import nn
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder

from stopwatch import lap, timed


def freeze_norms(module):
    """Statistics must not move between two evaluations of one batch."""
    if isinstance(module, nn.BatchNorm2d):
        module.eval()


def half_scale(path, side):
    """The loader of ImageFolder, with the JPEG decoder told to give no more than is needed."""
    from PIL import Image

    with lap("decode"):
        image = Image.open(path)
        image.draft("RGB", (3 * side, 3 * side))
        return image.convert("RGB")


class Objective:
    """Loss and gradients of one batch, counting how often the line search asked."""

    def __init__(self, model, optimizer, decay):
        self.model, self.optimizer, self.decay = model, optimizer, decay
        self.asked = 0

    def __call__(self, images, labels):
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(images), labels, label_smoothing=0.1)
        loss = loss + self.decay * sum(p.square().sum() for p in self.model.parameters())
        loss.backward()
        self.asked += 1
        return loss


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/lbfgs_orchids_timm"))
    parser.add_argument("--model", default="mobilenetv3_small_050")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--side", type=int, default=80)
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)

    transform = create_transform(
        args.side, is_training=True, auto_augment="rand-m9-n2-mstd0.5", re_prob=0.2, interpolation="bicubic"
    )
    photos = ImageFolder(args.data / "photos", transform, loader=partial(half_scale, side=args.side))
    loader = DataLoader(photos, batch_size=12, shuffle=True, drop_last=True, num_workers=1)

    model = timm.create_model(args.model, num_classes=len(photos.classes)).train().apply(freeze_norms)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.05, max_iter=3, max_eval=4, history_size=4)
    objective = Objective(model, optimizer, decay=1e-5)
    for epoch in range(args.epochs):
        for number, (images, labels) in enumerate(timed(loader, "wait")):
            with lap("compute"):
                loss = optimizer.step(partial(objective, images, labels))
            if not torch.isfinite(loss):
                raise SystemExit("the search went astray: try a smaller rate")
            if number % 20 == 0:
                print(f"epoch {epoch} batch {number}: {loss.item():.3f}, {objective.asked} evaluations", flush=True)
        torch.save(model.state_dict(), args.out / "orchids.pth")


if __name__ == "__main__":
    main()
