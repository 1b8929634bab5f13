"""Segmentation of bright regions; the islands of each prediction are counted as training goes along."""

import argparse
import random
from collections import deque
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageFilter
from stopwatch import lap
from torch import nn
from torch.utils.data import DataLoader, Dataset


class BrightRegions(Dataset):
    """Blurred, recoloured crops and, as the target, where the crop was bright."""

    def __init__(self, root, side=144):
        self.files, self.side = sorted(Path(root).rglob("*.[jJ]*")), side

    def __len__(self):
        return 960

    def __getitem__(self, index):
        with lap("decode"):
            photo = Image.open(self.files[index % len(self.files)])
            photo.draft("RGB", (250, 188))
            photo = photo.convert("RGB")
        with lap("transform"):
            left = random.randint(0, photo.width - self.side)
            top = random.randint(0, photo.height - self.side)
            crop = photo.crop((left, top, left + self.side, top + self.side))
            grey = np.asarray(crop.convert("L"), dtype=np.float32)
            target = (grey > grey.mean() + 4).astype(np.float32)
            crop = ImageEnhance.Color(crop.filter(ImageFilter.BoxBlur(1))).enhance(random.uniform(0.3, 1.7))
            pixels = np.asarray(crop, dtype=np.float32).transpose(2, 0, 1) / 255
        return torch.from_numpy(pixels), torch.from_numpy(target)[None]


def label_islands(mask, smallest=6):
    """Sizes of the islands (four neighbours) of a mask given as lists, by flooding."""
    height, width = len(mask), len(mask[0])
    seen = [[False] * width for _ in range(height)]
    sizes = []
    for y0 in range(height):
        for x0 in range(width):
            if seen[y0][x0] or not mask[y0][x0]:
                continue
            shore, size = deque([(y0, x0)]), 0
            seen[y0][x0] = True
            while shore:
                y, x = shore.popleft()
                size += 1
                for ny, nx in ((y - 1, x), (y + 1, x), (y, x - 1), (y, x + 1)):
                    if 0 <= ny < height and 0 <= nx < width and mask[ny][nx] and not seen[ny][nx]:
                        seen[ny][nx] = True
                        shore.append((ny, nx))
            if size >= smallest:
                sizes.append(size)
    return sizes


class Segmenter(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, width, 3, padding=1), nn.LeakyReLU(0.1))
        self.low = nn.Sequential(
            nn.Conv2d(width, width, 4, stride=4), nn.LeakyReLU(0.1), nn.Conv2d(width, width, 3, padding=1)
        )
        self.last = nn.Conv2d(2 * width, 1, 1)

    def forward(self, x):
        fine = self.first(x)
        coarse = nn.functional.interpolate(self.low(fine), size=fine.shape[-2:], mode="bilinear")
        return self.last(torch.cat([fine, coarse], dim=1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--steps", type=int, default=1500)
    args = parser.parse_args()
    loader = DataLoader(
        BrightRegions(args.data / "photos"), batch_size=12, shuffle=True, num_workers=2, persistent_workers=True,
        drop_last=True, prefetch_factor=4,
    )  # fmt: skip
    model = Segmenter()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    recent, batches, step = deque(maxlen=200), iter(()), 0
    while step < args.steps:
        with lap("wait"):
            batch = next(batches, None)
            if batch is None:
                batches = iter(loader)
                batch = next(batches)
        with lap("compute"):
            images, targets = batch
            logits = model(images)
            loss = nn.functional.binary_cross_entropy_with_logits(logits, targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with lap("own"):
            for mask in (logits.detach().numpy()[:, 0] > 0).tolist():
                recent.append(len(label_islands(mask)))
        step += 1
        if step % 20 == 0:
            print(f"{step}: loss {loss.item():.3f}, {sum(recent) / len(recent):.1f} islands an image", flush=True)


if __name__ == "__main__":
    main()
