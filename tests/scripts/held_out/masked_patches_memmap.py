"""A masked autoencoder on one big file of photographs: a memory map, a thread that cuts and tints, a queue of two."""

import argparse
import queue
import threading
from pathlib import Path

import cv2
import numpy as np
import torch
from PIL import Image
from torch import nn

from stopwatch import lap

SIDE, PATCH, WIDE, HIGH = 64, 8, 160, 120


def write_map(files, path):
    pixels = np.lib.format.open_memmap(path, "w+", np.uint8, (len(files), HIGH, WIDE, 3))
    for number, file in enumerate(files):
        image = Image.open(file)
        image.draft("RGB", (WIDE, HIGH))
        pixels[number] = np.asarray(image.convert("RGB").resize((WIDE, HIGH)))
    pixels.flush()


def tint(picture, rng):
    """Hue, saturation and lightness shifted a little, the picture turned and softened a little."""
    turn = cv2.getRotationMatrix2D((SIDE / 2, SIDE / 2), rng.uniform(-12, 12), rng.uniform(1.0, 1.3))
    picture = cv2.warpAffine(picture, turn, (SIDE, SIDE), borderMode=cv2.BORDER_REFLECT)
    hsv = cv2.cvtColor(picture, cv2.COLOR_RGB2HSV).astype(np.int16) + rng.integers(-14, 15, 3)
    picture = cv2.cvtColor(hsv.clip(0, [179, 255, 255]).astype(np.uint8), cv2.COLOR_HSV2RGB)
    return cv2.GaussianBlur(picture, (3, 3), rng.uniform(0.1, 1.0))


class Feeder(threading.Thread):
    """Batches ahead of time, from the same process."""

    def __init__(self, path, size):
        super().__init__(daemon=True)
        self.pixels, self.size = np.load(path, mmap_mode="r"), size
        self.batches, self.rng = queue.Queue(2), np.random.default_rng(5)

    def run(self):
        while True:
            batch = np.empty((self.size, SIDE, SIDE, 3), np.uint8)
            for at, number in enumerate(self.rng.integers(0, len(self.pixels), self.size)):
                top, left = self.rng.integers(0, HIGH - SIDE), self.rng.integers(0, WIDE - SIDE)
                batch[at] = tint(self.pixels[number, top : top + SIDE, left : left + SIDE], self.rng)
            self.batches.put(torch.from_numpy(batch))


def patches(images):
    """(batch, side, side, 3) of bytes to (batch, patches, values)."""
    size = SIDE // PATCH
    tiles = images.view(-1, size, PATCH, size, PATCH, 3).transpose(2, 3)
    return tiles.reshape(-1, size * size, PATCH * PATCH * 3).float() / 127.5 - 1


class MaskedAutoencoder(nn.Module):
    def __init__(self, width=192, deep=4, narrow=96, hidden=0.6):
        super().__init__()
        number, values = (SIDE // PATCH) ** 2, PATCH * PATCH * 3
        self.keep = int(number * (1 - hidden))
        self.embed, self.unembed = nn.Linear(values, width), nn.Linear(narrow, values)
        self.place = nn.Parameter(torch.randn(number, width) * 0.02)
        self.later_place = nn.Parameter(torch.randn(number, narrow) * 0.02)
        self.blank, self.bridge = nn.Parameter(torch.zeros(narrow)), nn.Linear(width, narrow)
        self.encoder, self.decoder = self.stack(width, deep), self.stack(narrow, 2)

    def stack(self, width, deep):
        layer = nn.TransformerEncoderLayer(width, 4, 3 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        return nn.TransformerEncoder(layer, deep, enable_nested_tensor=False)

    def forward(self, tiles):
        order = torch.rand(tiles.shape[:2]).argsort(1)
        kept, gone = order[:, : self.keep, None], order[:, self.keep :, None]
        tokens = self.embed(tiles) + self.place
        seen = self.encoder(tokens.gather(1, kept.expand(-1, -1, tokens.shape[2])))
        bridged = self.bridge(seen)
        canvas = self.blank.expand(len(tiles), tiles.shape[1], -1)
        canvas = canvas.scatter(1, kept.expand_as(bridged), bridged) + self.later_place
        guess = self.unembed(self.decoder(canvas))
        off = (guess - tiles).square().mean(2)
        return off.gather(1, gone[..., 0]).mean()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/masked_patches_memmap"))
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--batch-size", type=int, default=24)
    args = parser.parse_args()
    torch.set_num_threads(1)
    cv2.setNumThreads(0)
    args.out.mkdir(parents=True, exist_ok=True)
    write_map(sorted((args.data / "photos").glob("*/*.JPEG"))[::2], args.out / "photos.npy")
    feeder = Feeder(args.out / "photos.npy", args.batch_size)
    feeder.start()
    model = MaskedAutoencoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-4, betas=(0.9, 0.95), weight_decay=0.05)
    for step in range(args.steps):
        with lap("wait"):
            images = feeder.batches.get()
        with lap("compute"):
            loss = model(patches(images))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
        if step % 40 == 0:
            print(f"step {step}: {loss.item():.4f}", flush=True)
    torch.save(model.encoder.state_dict(), args.out / "encoder.pt")


if __name__ == "__main__":
    main()
