"""Batches as different within themselves as can be: farthest-first by colour, out of a pool drawn at random."""

import argparse
import random
from dataclasses import dataclass, field
from pathlib import Path

import torch
from PIL import Image
from stopwatch import lap
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler
from torchvision import transforms


@dataclass
class Catalogue:
    root: Path
    files: list = field(default_factory=list)
    labels: list = field(default_factory=list)
    colours: list = field(default_factory=list)

    def __post_init__(self):
        for label, folder in enumerate(sorted(p for p in self.root.iterdir() if p.is_dir())):
            for file in sorted(folder.glob("*.[jJ]*"))[:60]:
                with Image.open(file) as photo:
                    photo.draft("RGB", (64, 64))
                    tiny = photo.convert("RGB").resize((4, 4), Image.Resampling.BOX)
                self.files.append(file)
                self.labels.append(label)
                self.colours.append([value / 255 for value in tiny.tobytes()])


class Photos(Dataset):
    def __init__(self, catalogue):
        self.catalogue = catalogue
        self.augment = transforms.Compose(
            [
                transforms.RandomResizedCrop(80, scale=(0.4, 1.0)),
                transforms.RandomHorizontalFlip(),
                transforms.ColorJitter(0.2, 0.2, 0.2),
                transforms.ToTensor(),
            ]
        )

    def __len__(self):
        return len(self.catalogue.files)

    def __getitem__(self, index):
        with lap("decode"):
            photo = Image.open(self.catalogue.files[index])
            photo.draft("RGB", (125, 94))
            photo = photo.convert("RGB")
        with lap("transform"):
            return self.augment(photo), self.catalogue.labels[index]


def farthest_first(points, pool, count):
    """Of the pool, `count` points each as far as possible from those taken before."""
    taken = [pool[0]]
    nearest = [float("inf")] * len(pool)
    while len(taken) < count:
        last = points[taken[-1]]
        best, best_at = -1.0, 0
        for at, candidate in enumerate(pool):
            distance = 0.0
            for a, b in zip(points[candidate], last):
                distance += (a - b) * (a - b)
            if distance < nearest[at]:
                nearest[at] = distance
            if nearest[at] > best:
                best, best_at = nearest[at], at
        taken.append(pool[best_at])
    return taken


class DiverseBatches(Sampler):
    def __init__(self, colours, batch, pool, batches):
        self.colours, self.batch, self.pool, self.batches = colours, batch, pool, batches
        self.dice = random.Random(5)

    def __len__(self):
        return self.batches

    def __iter__(self):
        for _ in range(self.batches):
            pool = self.dice.choices(range(len(self.colours)), k=self.pool)
            yield farthest_first(self.colours, pool, self.batch)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--batches", type=int, default=4000)
    parser.add_argument("--pool", type=int, default=600)
    args = parser.parse_args()
    torch.set_num_threads(1)  # the workers have the other core
    catalogue = Catalogue(args.data / "photos")
    batches = DiverseBatches(catalogue.colours, batch=24, pool=args.pool, batches=args.batches)
    loader = DataLoader(Photos(catalogue), batch_sampler=batches, num_workers=2, persistent_workers=True)

    model = nn.Sequential(
        nn.Conv2d(3, 16, 5, stride=3),
        nn.GELU(),
        nn.Conv2d(16, 32, 3, stride=2),
        nn.GELU(),
        nn.AdaptiveMaxPool2d(2),
        nn.Flatten(),
        nn.Linear(128, 1 + max(catalogue.labels)),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, nesterov=True)
    running, source, step = None, iter(loader), 0
    while step < args.batches:
        with lap("wait"):
            images, labels = next(source)
        with lap("compute"):
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        running = loss.item() if running is None else 0.95 * running + 0.05 * loss.item()
        step += 1
        if step % 50 == 0:
            print(f"{step:5d} {running:.3f}", flush=True)


if __name__ == "__main__":
    main()
