"""A class-balanced sampler that weighs the whole list anew for each index it draws; the workers have little to do."""

import argparse
import random
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from stopwatch import lap, timed
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler


class CropList(Dataset):
    """Fixed crops of each photograph, as a list of (photo, box, label); the pixels are in memory."""

    def __init__(self, root, side, crops):
        self.side = side
        self.classes = sorted(folder.name for folder in Path(root).iterdir())
        self.photos, self.entries = [], []
        rng = random.Random(6)
        for label, name in enumerate(self.classes):
            for file in sorted((Path(root) / name).glob("*"))[: 60 + 20 * label]:
                image = Image.open(file)
                image.draft("RGB", (2 * side, 2 * side))
                image = image.convert("RGB").resize((2 * side, 2 * side))
                for _ in range(crops):
                    self.entries.append((len(self.photos), rng.randrange(side), rng.randrange(side), label))
                self.photos.append(torch.from_numpy(np.array(image)).permute(2, 0, 1))
        self.labels = [entry[-1] for entry in self.entries]

    def __len__(self):
        return len(self.entries)

    def __getitem__(self, index):
        photo, x, y, label = self.entries[index]
        with lap("transform"):
            crop = self.photos[photo][:, y : y + self.side, x : x + self.side]
            return crop.float() / 255, label


class BalancedSampler(Sampler):
    """Draws what was seen least: each entry's chance falls with how often its class, and it, came already."""

    def __init__(self, labels, length, seed=0):
        self.labels, self.length = labels, length
        self.random = random.Random(seed)
        self.class_seen, self.entry_seen = Counter(), Counter()

    def __len__(self):
        return self.length

    def draw(self):
        weights = [
            1.0 / ((1 + self.class_seen[label]) * (1 + self.entry_seen[i])) for i, label in enumerate(self.labels)
        ]
        index = self.random.choices(range(len(self.labels)), weights)[0]
        self.class_seen[self.labels[index]] += 1
        self.entry_seen[index] += 1
        return index

    def __iter__(self):
        for _ in range(self.length):
            with lap("own"):
                index = self.draw()
            yield index


class ConvNet(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 24, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(24, 48, 3, stride=2, padding=1),
            nn.ReLU(),
        )
        self.classifier = nn.Linear(48, classes)

    def forward(self, x):
        return self.classifier(self.features(x).mean(dim=(2, 3)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/balanced_sampler"))
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--samples-per-epoch", type=int, default=1600)
    parser.add_argument("--crops", type=int, default=14)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(1)

    dataset = CropList(args.data / "photos", 64, args.crops)
    print(f"{len(dataset)} crops of {len(dataset.photos)} photographs", flush=True)
    sampler = BalancedSampler(dataset.labels, args.samples_per_epoch)
    loader = DataLoader(dataset, 32, sampler=sampler, num_workers=args.workers, persistent_workers=True)
    model = ConvNet(len(dataset.classes))
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        losses = []
        for images, labels in timed(loader, "wait"):
            with lap("compute"):
                loss = nn.functional.cross_entropy(model(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            losses.append(loss.item())
        print(f"epoch {epoch}: loss {np.mean(losses):.4f}", flush=True)
    args.out.mkdir(parents=True, exist_ok=True)
    torch.save({"model": model.state_dict(), "seen": dict(sampler.class_seen)}, args.out / "last.pt")


if __name__ == "__main__":
    main()
