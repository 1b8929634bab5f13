"""Which photograph does a piece come from, and which class? Crops are cut once, kept as one .pt file each, and read back
at random for as many epochs as one likes."""

import argparse
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stopwatch import lap, timed

SIDE, CROPS = 136, 24


def photograph(file):
    image = Image.open(file).convert("RGB")
    scale = max(SIDE * 1.5 / min(image.size), 0.5)
    image = image.resize((int(image.width * scale) + 1, int(image.height * scale) + 1))
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255


def prepare(root, folder, per_class, generator):
    """One file a crop; labels and the photograph's number go with it."""
    folder.mkdir(parents=True, exist_ok=True)
    number = 0
    for label, kind in enumerate(sorted(root.iterdir())):
        for file in sorted(kind.glob("*.JPEG"))[:per_class]:
            picture = photograph(file)
            crops = torch.empty(CROPS, 3, SIDE, SIDE)
            for k in range(CROPS):
                y = torch.randint(picture.shape[1] - SIDE + 1, (), generator=generator)
                x = torch.randint(picture.shape[2] - SIDE + 1, (), generator=generator)
                crops[k] = picture[:, y : y + SIDE, x : x + SIDE]
            crops -= crops.mean((0, 2, 3), keepdim=True)
            for k, crop in enumerate(crops):
                torch.save({"crop": crop, "label": label, "source": number}, folder / f"{number:04d}_{k:02d}.pt")
            number += 1
    return number


class Crops(Dataset):
    def __init__(self, folder, side=40):
        self.files, self.side = sorted(folder.glob("*.pt")), side

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        item = torch.load(self.files[index], weights_only=True)
        y, x = torch.randint(SIDE - self.side, (2,)).tolist()
        crop = item["crop"][:, y : y + self.side, x : x + self.side]
        if torch.rand(()) < 0.5:
            crop = crop.flip(2)
        return crop.contiguous(), item["label"], item["source"]


class TwoHeads(nn.Module):
    def __init__(self, kinds, sources, width=12):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(3, width, 5, stride=2, padding=2),
            nn.GroupNorm(4, width),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
            nn.GroupNorm(4, 2 * width),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
        )
        self.kind, self.source = nn.Linear(8 * width, kinds), nn.Linear(8 * width, sources)

    def forward(self, x):
        features = self.trunk(x)
        return self.kind(features), self.source(features)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/feature_views_pt"))
    parser.add_argument("--epochs", type=int, default=1000)
    parser.add_argument("--photographs", type=int, default=1, help="of each class")
    args = parser.parse_args()
    torch.manual_seed(7)
    generator = torch.Generator().manual_seed(7)
    sources = prepare(args.data / "photos", args.out / "crops", args.photographs, generator)
    torch.set_num_threads(1)
    loader = DataLoader(
        Crops(args.out / "crops"), 24, shuffle=True, num_workers=1, prefetch_factor=4, persistent_workers=True
    )
    model = TwoHeads(10, sources)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
    for epoch in range(args.epochs):
        losses = []
        for crops, labels, numbers in timed(loader, "wait"):
            with lap("compute"):
                kind, source = model(4 * crops)
                loss = nn.functional.cross_entropy(kind, labels) + nn.functional.cross_entropy(source, numbers)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
        if epoch % 10 == 0:
            print(f"epoch {epoch}: {sum(losses) / len(losses):.4f}", flush=True)
            torch.save(model.state_dict(), args.out / "two_heads.pt")


if __name__ == "__main__":
    main()
