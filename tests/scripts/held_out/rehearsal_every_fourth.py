"""Learning five new classes without forgetting five old ones: every fourth batch comes from the old photographs.

The new ones are few enough for memory. The old ones stay where they are, on disk, and are read when their turn comes.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torchvision import transforms

from stopwatch import lap, timed


class OldPhotos(Dataset):
    def __init__(self, files, names, side):
        self.items = [(file, names.index(file.parent.name)) for file in files]
        self.view = transforms.Compose(
            [
                transforms.RandomResizedCrop(side, scale=(0.5, 1.0)),
                transforms.RandomHorizontalFlip(),
                transforms.PILToTensor(),
            ]
        )

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        file, label = self.items[index]
        with lap("decode"):
            photo = Image.open(file).convert("RGB")
        with lap("transform"):
            return self.view(photo), label


def new_photos(files, names, side):
    images, labels = [], []
    for file in files:
        image = Image.open(file)
        image.draft("RGB", (side, side))
        images.append(np.array(image.convert("RGB").resize((side, side), Image.Resampling.BILINEAR)))
        labels.append(names.index(file.parent.name))
    return TensorDataset(torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).contiguous(), torch.tensor(labels))


class Alternating:
    """(origin, batch): all batches of `new` once, and after each `every - 1` of them one of `old`, which never ends."""

    def __init__(self, new, old, every):
        self.new, self.old, self.every = new, old, every
        self.old_batches = iter(())

    def __iter__(self):
        self.turn, self.new_batches = 0, iter(self.new)
        return self

    def __next__(self):
        self.turn += 1
        if self.turn % self.every == 0:
            return "old", self.rehearse()
        return "new", next(self.new_batches)

    def rehearse(self):
        try:
            return next(self.old_batches)
        except StopIteration:
            self.old_batches = iter(self.old)
            return next(self.old_batches)


def build(classes):
    layers, channels = [], 3
    for width, stride in ((16, 2), (32, 2), (48, 2), (48, 1)):
        layers += [nn.Conv2d(channels, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(True)]
        channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * channels, classes))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/rehearsal_every_fourth"))
    parser.add_argument("--epochs", type=int, default=80)
    parser.add_argument("--batch-size", type=int, default=24)
    parser.add_argument("--every", type=int, default=4)
    parser.add_argument("--side", type=int, default=64)
    args = parser.parse_args()
    torch.manual_seed(54)
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)

    files = sorted((args.data / "photos").glob("*/*.JPEG"))
    names = sorted({file.parent.name for file in files})
    known = set(names[: len(names) // 2])
    old = OldPhotos([file for file in files if file.parent.name in known], names, args.side)
    new = new_photos([file for file in files if file.parent.name not in known], names, args.side)
    batches = Alternating(
        DataLoader(new, args.batch_size, shuffle=True),
        DataLoader(old, args.batch_size, shuffle=True, drop_last=True),
        args.every,
    )
    model = build(len(names))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    for epoch in range(args.epochs):
        losses = {"new": [], "old": []}
        for origin, (images, labels) in timed(batches, "wait"):
            with lap("compute"):
                loss = nn.functional.cross_entropy(model(images.float() / 127.5 - 1), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            losses[origin].append(loss.item())
        means = ", ".join(f"{origin} {np.mean(values):.4f}" for origin, values in losses.items() if values)
        print(f"epoch {epoch}: {means}", flush=True)
        torch.save(model.state_dict(), args.out / "model.pt")


if __name__ == "__main__":
    main()
