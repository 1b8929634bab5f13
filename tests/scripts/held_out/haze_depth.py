"""Depth from a single photograph, learnt from haze: the dark channel prior gives a rough map, a network refines it."""

import argparse
import functools
import multiprocessing as mp
import os
from pathlib import Path

import cv2
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset
from torchdata.stateful_dataloader import StatefulDataLoader
from torchvision.models import resnet18

from stopwatch import lap, timed


def build_archive(photos: Path, archive: Path, every=3):
    """All photographs one after the other, and in a second file where each of them ends."""
    ends = [0]
    with archive.open("wb") as out:
        for file in sorted(photos.glob("*/*.JPEG"))[::every]:
            ends.append(ends[-1] + out.write(file.read_bytes()))
    np.save(archive.with_suffix(".npy"), ends)


class Archive:
    """One descriptor for all processes: its position is shared, so seek and read belong together."""

    def __init__(self, path: Path):
        self.descriptor, self.guard = os.open(path, os.O_RDONLY), mp.Lock()
        self.ends = np.load(path.with_suffix(".npy")).tolist()

    def fetch(self, number):
        with self.guard:
            os.lseek(self.descriptor, self.ends[number], os.SEEK_SET)
            return os.read(self.descriptor, self.ends[number + 1] - self.ends[number])


def guided(guide, source, radius=20, eps=1e-3):
    """He, Sun and Tang's guided filter by box filters."""
    box = functools.partial(cv2.blur, ksize=(2 * radius + 1, 2 * radius + 1))
    mean_g, mean_s = box(guide), box(source)
    slope = (box(guide * source) - mean_g * mean_s) / (box(guide * guide) - mean_g**2 + eps)
    return box(slope) * guide + box(mean_s - slope * mean_g)


class HazyPhotos(Dataset):
    def __init__(self, archive, side):
        self.archive, self.side = archive, side

    def __len__(self):
        return len(self.archive.ends) - 1

    def transmission(self, image):
        dark = cv2.erode(image.min(2), np.ones((9, 9), np.uint8)) / max(np.percentile(image, 99.5), 0.05)
        return guided(cv2.cvtColor(image, cv2.COLOR_BGR2GRAY), 1 - 0.95 * dark)

    def __getitem__(self, number):
        with lap("read"):
            blob = self.archive.fetch(number)
        with lap("decode"):
            image = cv2.imdecode(np.frombuffer(blob, np.uint8), cv2.IMREAD_REDUCED_COLOR_2) / np.float32(255)
        with lap("transform"):
            depth = -np.log(self.transmission(image).clip(0.05, 1)).astype(np.float32)
            height, width = depth.shape
            top = np.random.randint(max(1, height - self.side))
            left = np.random.randint(max(1, width - self.side))
            window = slice(top, top + self.side), slice(left, left + self.side)
            image, depth = (cv2.resize(array[window], (self.side, self.side)) for array in (image, depth))
        return torch.from_numpy(image.transpose(2, 0, 1).copy()), torch.from_numpy(depth)[None]


class DepthNet(nn.Module):
    def __init__(self):
        super().__init__()
        body = resnet18(weights=None)
        self.stem = nn.Sequential(body.conv1, body.bn1, body.relu)
        self.stages = nn.ModuleList([body.layer1, body.layer2, body.layer3])
        self.ups = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1) for a, b in ((256 + 128, 96), (96 + 64, 48)))
        self.head = nn.Conv2d(48, 1, 3, padding=1)

    def forward(self, x):
        size, skips, x = x.shape[-2:], [], self.stem(x)
        for stage in self.stages:
            x = stage(x)
            skips.append(x)
        for up, skip in zip(self.ups, skips[-2::-1]):
            x = F.relu(up(torch.cat([F.interpolate(x, size=skip.shape[-2:]), skip], 1)))
        return F.softplus(F.interpolate(self.head(x), size=size, mode="bilinear"))


def loss_of(guess, depth):
    """Scale-invariant error (Eigen et al.) and a gradient term."""
    error = torch.log(guess + 0.1) - torch.log(depth + 0.1)
    edges = error.diff(dim=2).abs().mean() + error.diff(dim=3).abs().mean()
    return error.square().mean() - 0.5 * error.mean().square() + 0.1 * edges


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/haze_depth"))
    parser.add_argument("--epochs", type=int, default=10)
    args = parser.parse_args()
    torch.manual_seed(3)
    torch.set_num_threads(1)
    cv2.setNumThreads(0)
    args.out.mkdir(parents=True, exist_ok=True)
    build_archive(args.data / "photos", args.out / "photos.bin")
    photos = HazyPhotos(Archive(args.out / "photos.bin"), side=96)
    loader = StatefulDataLoader(photos, batch_size=8, shuffle=True, num_workers=3, drop_last=True)
    model = DepthNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4, weight_decay=1e-2)
    for epoch in range(args.epochs):
        for step, (images, depths) in enumerate(timed(loader, "wait")):
            with lap("compute"):
                loss = loss_of(model(images), depths)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            print(f"epoch {epoch} step {step}: {loss.item():.4f}", flush=True)
        torch.save({"model": model.state_dict(), "loader": loader.state_dict()}, args.out / "depth.pt")


if __name__ == "__main__":
    main()
