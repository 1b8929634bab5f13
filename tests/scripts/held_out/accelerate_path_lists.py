"""Accelerate, a loader with two workers, and a generator around it that makes images of what it gives."""

import argparse
from pathlib import Path

import torch
from accelerate import Accelerator
from PIL import Image
from stopwatch import lap, timed
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms


class Listing(Dataset):
    """A CSV-like listing: (path, label)."""

    def __init__(self, root):
        self.rows = []
        for path in sorted(root.glob("*/*")):
            if path.suffix.lower() in {".jpg", ".jpeg"}:
                self.rows.append((str(path), path.parent.name))
        self.classes = sorted({name for _, name in self.rows})

    def __len__(self):
        return max(len(self.rows), 600)

    def __getitem__(self, index):
        path, name = self.rows[index % len(self.rows)]
        return {"path": path, "label": self.classes.index(name)}


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, groups=width // 8),
            nn.GroupNorm(4, width),
            nn.ReLU(),
            nn.Conv2d(width, width, 1),
        )

    def forward(self, x):
        return x + self.inner(x)


def build(classes, width=32):
    stem = nn.Conv2d(3, width, 8, stride=8)
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes)]
    return nn.Sequential(stem, Block(width), Block(width), *head)


def opened(loader, view, device):
    """The batches of the loader, with the photos themselves in place of their paths."""
    for batch in loader:
        views = []
        for path in batch["path"]:
            with Image.open(path) as photo:
                views.append(view(photo.convert("RGB")))
        yield torch.stack(views).to(device), batch["label"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--epochs", type=int, default=240)
    parser.add_argument("--out", type=Path, default=Path("runs/accelerate_path_lists"))
    args = parser.parse_args()

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    listing = Listing(args.data / "photos")
    loader = DataLoader(
        listing,
        batch_size=24,
        shuffle=True,
        num_workers=2,
        prefetch_factor=8,
        persistent_workers=True,
        drop_last=True,
    )
    model = build(len(listing.classes))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    view = transforms.Compose(
        [
            transforms.Resize(112),
            transforms.RandomCrop(96),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize([0.5] * 3, [0.25] * 3),
        ]
    )
    for epoch in range(args.epochs):
        total = count = 0
        for images, labels in timed(opened(loader, view, accelerator.device), "wait"):
            with lap("compute"), accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(images), labels, label_smoothing=0.1)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            total, count = total + loss.item(), count + 1
        accelerator.print(f"epoch {epoch + 1}/{args.epochs} loss {total / count:.4f}", flush=True)
    accelerator.save_model(model, str(args.out))


if __name__ == "__main__":
    main()
