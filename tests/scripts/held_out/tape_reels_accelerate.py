"""Accelerate: pictures from an archive of tapes (simulated). To mount a reel takes a while, then its pictures come
quickly; reels are mounted in random order."""

import argparse
import random
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from stopwatch import lap, timed


@dataclass
class Reel:
    pictures: np.ndarray
    labels: np.ndarray


class Archive:
    """Reels are .npz files; the robot needs `seconds` to put one into the drive and wind it to its start."""

    def __init__(self, folder: Path, seconds: float):
        self.folder, self.seconds = folder, seconds

    @classmethod
    def write(cls, photos: Path, folder: Path, seconds, reel=256, side=72):
        folder.mkdir(parents=True, exist_ok=True)
        files = sorted(photos.glob("*/*.JPEG"))
        names = sorted({file.parent.name for file in files})
        random.Random(9).shuffle(files)
        for k in range(len(files) // reel):
            part = files[k * reel : (k + 1) * reel]
            pictures = []
            for file in part:
                image = Image.open(file)
                image.draft("RGB", (side, side))
                pictures.append(np.asarray(image.convert("RGB").resize((side, side))))
            np.savez(folder / f"reel{k:02d}.npz", x=np.stack(pictures), y=[names.index(f.parent.name) for f in part])
        return cls(folder, seconds)

    def reels(self):
        return sorted(self.folder.glob("reel*.npz"))

    def mount(self, reel: Path) -> Reel:
        with lap("mount"):
            time.sleep(self.seconds)
            with np.load(reel) as stored:
                return Reel(stored["x"], stored["y"])


class Reels(IterableDataset):
    def __init__(self, archive: Archive, side=64):
        self.archive, self.side = archive, side

    def __iter__(self):
        reels = self.archive.reels()
        random.shuffle(reels)
        for name in reels:
            reel = self.archive.mount(name)
            for k in np.random.permutation(len(reel.labels)):
                top, left = np.random.randint(0, 72 - self.side, 2)
                picture = reel.pictures[k, top : top + self.side, left : left + self.side]
                yield torch.from_numpy(picture).permute(2, 0, 1).float() / 127.5 - 1, int(reel.labels[k])


def separable(inputs, outputs):
    return nn.Sequential(
        nn.Conv2d(inputs, inputs, 5, padding=2, groups=inputs), nn.Conv2d(inputs, outputs, 1),
        nn.BatchNorm2d(outputs), nn.GELU(),
    )  # fmt: skip


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/tape_reels_accelerate"))
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--mount", type=float, default=1.6)
    args = parser.parse_args()
    torch.set_num_threads(1)
    archive = Archive.write(args.data / "photos", args.out / "reels", args.mount)
    loader = DataLoader(Reels(archive), batch_size=16, num_workers=1, persistent_workers=True, drop_last=True)
    model = nn.Sequential(
        nn.Conv2d(3, 40, 4, stride=2, padding=1), separable(40, 56), separable(56, 56), nn.MaxPool2d(2),
        separable(56, 112), separable(112, 112), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(112, 10),
    )  # fmt: skip
    accelerator = Accelerator(cpu=True)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for epoch in range(args.epochs):
        hits = seen = 0
        for pictures, labels in timed(loader, "wait"):
            with lap("compute"):
                logits = model(pictures)
                loss = nn.functional.cross_entropy(logits, labels)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
                hits += (logits.argmax(1) == labels).sum().item()
                seen += len(labels)
            if seen % 320 == 0:
                print(f"epoch {epoch}: {seen} pictures, loss {loss.item():.3f}, {hits / seen:.1%} right", flush=True)
    accelerator.save(accelerator.unwrap_model(model).state_dict(), args.out / "reels.pt")


if __name__ == "__main__":
    main()
