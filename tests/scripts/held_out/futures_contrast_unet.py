"""Where is the subject? A U-Net on photographs whose contrast has been evened out locally (CLAHE). Batches are made
by a process of a ProcessPoolExecutor; a few futures are always under way, so that there is something to do."""

import argparse
import random
from collections import deque
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from skimage.exposure import equalize_adapthist
from skimage.filters import gaussian, threshold_otsu
from torch import nn

from stopwatch import lap


def prepare(file, side):
    """Three planes with even contrast, and a rough mask: what stands out from the blurred surroundings."""
    image = Image.open(file)
    image.draft("RGB", (2 * side, 2 * side))
    pixels = np.asarray(image.convert("RGB").resize((side, side), Image.Resampling.BILINEAR))
    even = equalize_adapthist(pixels, kernel_size=side // 4, clip_limit=0.02)
    contrast = np.abs(gaussian(pixels.mean(2), 1.5) - gaussian(pixels.mean(2), 12))
    mask = contrast > threshold_otsu(contrast)
    return (255 * even).astype(np.uint8), mask


def make_batch(files, side):
    with lap("prepare"):
        images, masks = zip(*(prepare(file, side) for file in files), strict=True)
        return np.stack(images).transpose(0, 3, 1, 2), np.stack(masks)


def ahead(files, batch, side, count=3, seed=85):
    """Batches for ever, `count` of them under way in another process."""
    rng = random.Random(seed)
    with ProcessPoolExecutor(max_workers=1) as pool:
        pending = deque()
        while True:
            while len(pending) < count:
                pending.append(pool.submit(make_batch, rng.sample(files, batch), side))
            images, masks = pending.popleft().result()
            yield torch.from_numpy(images).float() / 127.5 - 1, torch.from_numpy(masks).float()[:, None]


def double(before, after):
    return nn.Sequential(
        nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(),
        nn.Conv2d(after, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(),
    )  # fmt: skip


class UNet(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.one, self.two, self.three = double(3, width), double(width, 2 * width), double(2 * width, 4 * width)
        self.up_two, self.up_one = double(6 * width, 2 * width), double(3 * width, width)
        self.out = nn.Conv2d(width, 1, 1)

    def forward(self, x):
        one = self.one(x)
        two = self.two(nn.functional.max_pool2d(one, 2))
        three = self.three(nn.functional.max_pool2d(two, 2))
        two = self.up_two(torch.cat([nn.functional.interpolate(three, scale_factor=2), two], 1))
        one = self.up_one(torch.cat([nn.functional.interpolate(two, scale_factor=2), one], 1))
        return self.out(one)


def dice(logits, masks):
    chances = logits.sigmoid()
    both = (chances * masks).sum((1, 2, 3))
    return 1 - ((2 * both + 1) / (chances.sum((1, 2, 3)) + masks.sum((1, 2, 3)) + 1)).mean()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/futures_contrast_unet"))
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch-size", type=int, default=6)
    parser.add_argument("--side", type=int, default=96)
    args = parser.parse_args()
    torch.manual_seed(85)
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)

    files = sorted((args.data / "photos").glob("*/*.JPEG"))
    batches = ahead(files, args.batch_size, args.side)
    model = UNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    smooth = None
    for step in range(1, args.steps + 1):
        with lap("wait"):
            images, masks = next(batches)
        with lap("compute"):
            logits = model(images)
            loss = nn.functional.binary_cross_entropy_with_logits(logits, masks) + dice(logits, masks)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with lap("own"):
            smooth = loss.item() if smooth is None else 0.95 * smooth + 0.05 * loss.item()
            if step % 25 == 0:
                print(f"step {step}: loss {smooth:.4f}", flush=True)
                torch.save(model.state_dict(), args.out / "unet.pt")
    batches.close()


if __name__ == "__main__":
    main()
