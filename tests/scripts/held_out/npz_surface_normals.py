"""Surface normals from single photographs. Every scene is one .npz file, just as np.savez_compressed left it."""

import argparse
import random
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stopwatch import lap, timed

HEIGHT, WIDTH = 288, 384


def relief(photo, rng):
    """Stands in for the depth camera: brightness as height, normals from its slopes, with the sensor's noise."""
    coarse = photo.convert("L").resize((WIDTH // 8, HEIGHT // 8))
    grey = np.asarray(coarse.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC), dtype=np.float32)
    depth = 4 - grey / 128 + rng.normal(0, 0.004, grey.shape).astype(np.float32)
    dy, dx = np.gradient(20 * depth)
    normals = np.stack([-dx, -dy, np.ones_like(depth)], axis=-1)
    normals /= np.linalg.norm(normals, axis=-1, keepdims=True)
    return depth.astype(np.float32), normals.astype(np.float32)


def pack(root: Path, folder: Path, count: int):
    """Once: `count` scenes."""
    folder.mkdir(parents=True, exist_ok=True)
    files = sorted(root.glob("*/*.JPEG"))
    rng = np.random.default_rng(41)
    for number, path in enumerate(files[:: max(1, len(files) // count)][:count]):
        target = folder / f"scene_{number:03d}.npz"
        if target.exists():
            continue
        photo = Image.open(path).convert("RGB").resize((WIDTH, HEIGHT))
        depth, normals = relief(photo, rng)
        partial = folder / f"scene_{number:03d}.part"
        with partial.open("wb") as file:
            np.savez_compressed(file, photo=np.asarray(photo), depth=depth, normals=normals)
        partial.rename(target)


class Scenes(Dataset):
    def __init__(self, folder: Path, side: int, length: int):
        self.files = sorted(folder.glob("scene_*.npz"))
        self.side, self.length = side, length

    def __len__(self):
        return self.length

    def load(self, path):
        with np.load(path) as scene:
            return scene["photo"], scene["normals"], scene["depth"]

    def __getitem__(self, index):
        with lap("read"):
            photo, normals, depth = self.load(self.files[index % len(self.files)])
        with lap("transform"):
            y, x = random.randint(0, HEIGHT - self.side), random.randint(0, WIDTH - self.side)
            rows, columns = slice(y, y + self.side), slice(x, x + self.side)
            image = torch.from_numpy(photo[rows, columns].transpose(2, 0, 1).copy())
            normal = torch.from_numpy(normals[rows, columns].transpose(2, 0, 1).copy())
            seen = torch.from_numpy((depth[rows, columns] < 3.9).astype(np.float32))
        return image, normal, seen


def network(width=16):
    return nn.Sequential(
        nn.Conv2d(3, width, 5, stride=2, padding=2),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(2 * width, 12, 3, padding=1),
        nn.PixelShuffle(2),
    )


def angle_loss(guess, normal, seen):
    cosine = nn.functional.cosine_similarity(guess, normal, dim=1)
    return ((1 - cosine) * seen).sum() / seen.sum().clamp(min=1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/npz_surface_normals"))
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--side", type=int, default=64)
    parser.add_argument("--scenes", type=int, default=64)
    args = parser.parse_args()
    torch.manual_seed(41)
    torch.set_num_threads(1)

    pack(args.data / "photos", args.out / "scenes", args.scenes)
    scenes = Scenes(args.out / "scenes", args.side, length=40 * args.batch_size)
    loader = DataLoader(
        scenes,
        batch_size=args.batch_size,
        shuffle=True,
        num_workers=args.workers,
        persistent_workers=args.workers > 0,
    )
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(args.epochs):
        total = 0.0
        for images, normals, seen in timed(loader, "wait"):
            with lap("compute"):
                loss = angle_loss(model(images.float() / 127.5 - 1), normals, seen)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            total += loss.item()
        print(f"epoch {epoch}: mean of 1 - cos {total / len(loader):.4f}", flush=True)
        torch.save(model.state_dict(), args.out / "normals.pt")


if __name__ == "__main__":
    main()
