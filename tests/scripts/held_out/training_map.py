"""Dataset cartography (Swayamdipta et al., 2020): which photographs are easy, hard or ambiguous for a small network?

Confidence and correctness of every sample are noted in a DataFrame as training goes along; a notebook draws the map.
"""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stopwatch import lap, timed

COLUMNS = ["epoch", "step", "sample", "label", "guess", "confidence", "margin", "correct", "loss"]


class Thumbnails(Dataset):
    """A thumbnail, its label and its own number; the thumbnails are kept in memory."""

    def __init__(self, root: Path, side: int, copies=6):
        files = sorted(root.glob("*/*.JPEG"))[::2]
        self.classes = sorted({file.parent.name for file in files})
        self.labels = [self.classes.index(file.parent.name) for file in files]
        self.images = np.stack([self.shrink(file, side) for file in files])
        self.copies = copies

    @staticmethod
    def shrink(file, side):
        with Image.open(file) as photo:
            photo.draft("RGB", (side, side))
            return np.asarray(photo.convert("RGB").resize((side, side), Image.Resampling.BOX)).transpose(2, 0, 1)

    def __len__(self):
        return self.copies * len(self.labels)

    def __getitem__(self, index):
        number = index % len(self.labels)
        image = self.images[number]
        return torch.from_numpy(image[..., ::-1].copy() if index % 2 else image), self.labels[number], number


def make_trainer(model, optimizer, out: Path, flush_every=60):
    table = pd.DataFrame(columns=COLUMNS)
    part = 0

    def train_step(images, labels):
        logits = model(images.float() / 127.5 - 1)
        losses = nn.functional.cross_entropy(logits, labels, reduction="none")
        optimizer.zero_grad()
        losses.mean().backward()
        optimizer.step()
        return logits.detach(), losses.detach()

    def note(epoch, step, numbers, labels, logits, losses):
        nonlocal table, part
        chances = logits.softmax(1)
        top = chances.topk(2).values
        margins = (top[:, 0] - top[:, 1]).tolist()
        sure = chances.gather(1, labels[:, None])[:, 0].tolist()
        rows = zip(numbers.tolist(), labels.tolist(), logits.argmax(1).tolist(), sure, margins, losses.tolist())
        for number, label, guess, confidence, margin, loss in rows:
            table.loc[len(table)] = [epoch, step, number, label, guess, confidence, margin, guess == label, loss]
        if step % flush_every == flush_every - 1:
            table.to_csv(out / f"part_{part % 8}.csv", index=False)
            part += 1
            table = table.iloc[:0]

    def epoch_of(loader, epoch):
        total = 0.0
        for step, (images, labels, numbers) in enumerate(timed(loader, "wait")):
            with lap("compute"):
                logits, losses = train_step(images, labels)
            with lap("own"):
                note(epoch, step, numbers, labels, logits, losses)
                total += losses.mean().item()
        return total / (step + 1)

    return epoch_of


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/training_map"))
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=48)
    args = parser.parse_args()
    torch.manual_seed(17)
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)

    photos = Thumbnails(args.data / "photos", side=40)
    loader = DataLoader(photos, args.batch_size, shuffle=True, drop_last=True)
    widths = (3, 24, 32, 48)
    layers = []
    for before, after in zip(widths, widths[1:]):
        layers += [nn.Conv2d(before, after, 3, 2, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU(True)]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], len(photos.classes)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    run_epoch = make_trainer(model, optimizer, args.out)
    for epoch in range(args.epochs):
        print(f"epoch {epoch}: loss {run_epoch(loader, epoch):.4f}", flush=True)
        torch.save(model.state_dict(), args.out / "small.pt")


if __name__ == "__main__":
    main()
