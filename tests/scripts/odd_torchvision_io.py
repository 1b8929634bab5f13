"""Photos read and decoded by torchvision.io, transforms v2 on uint8 tensors."""

import argparse
import pathlib

import torch
from stopwatch import lap, timed
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision.io import ImageReadMode, decode_image, read_file
from torchvision.transforms import v2


class PhotoFiles(Dataset):
    def __init__(self, root: pathlib.Path, transform):
        self.samples = []
        self.classes = sorted(p.name for p in root.iterdir() if p.is_dir())
        for target, name in enumerate(self.classes):
            self.samples += [(str(p), target) for p in sorted((root / name).iterdir())]
        self.transform = transform

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, i: int):
        path, target = self.samples[i]
        with lap("read"):
            encoded = read_file(path)
        with lap("decode"):
            image = decode_image(encoded, mode=ImageReadMode.RGB)
        with lap("transform"):
            return self.transform(image), target


def get_transform(size: int):
    return v2.Compose(
        [
            v2.RandomCrop(size),
            v2.RandomHorizontalFlip(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(mean=[0.48, 0.46, 0.41], std=[0.23, 0.22, 0.23]),
        ]
    )


class Tiny(nn.Module):
    def __init__(self, classes: int, width: int = 16):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 4, stride=4)
        self.body = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.head = nn.Linear(2 * width, classes)

    def forward(self, x):
        x = nn.functional.gelu(self.stem(x))
        x = nn.functional.gelu(self.body(x))
        return self.head(x.mean(dim=(-2, -1)))


def train_one_epoch(model, loader, optimizer, epoch):
    model.train()
    running = 0.0
    for images, targets in timed(loader, "wait"):
        with lap("compute"):
            loss = nn.functional.cross_entropy(model(images), targets)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
        running += loss.item()
    print(f"epoch {epoch:3d}  train loss {running / len(loader):.4f}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=pathlib.Path)
    parser.add_argument("--epochs", type=int, default=25)
    parser.add_argument("--size", type=int, default=96)
    parser.add_argument("--workers", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dataset = PhotoFiles(args.data / "photos", get_transform(args.size))
    loader = DataLoader(dataset, 64, shuffle=True, num_workers=args.workers, persistent_workers=args.workers > 0)
    model = Tiny(len(dataset.classes))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    for epoch in range(args.epochs):
        train_one_epoch(model, loader, optimizer, epoch)


if __name__ == "__main__":
    main()
