"""A learned codec for small pictures: an autoencoder with rounded codes. The entropy that the network is trained by is
an estimate; what a picture really takes is told by a range coder, whose counts adapt to each channel."""

import argparse
from pathlib import Path

import numpy as np
import torch
from datasets import Dataset
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader

from stopwatch import lap, timed

LEVELS = 17


def thumbnails(root, side, count):
    def rows():
        for path in sorted(root.glob("*/*.JPEG"))[:: max(1, 2200 // count)]:
            photo = Image.open(path)
            photo.draft("RGB", (side, side))
            yield {"pixels": photo.convert("RGB").resize((side, side)).tobytes(), "name": path.stem}

    return Dataset.from_list(list(rows()))


def unpack(side):
    def transform(rows):
        arrays = [np.frombuffer(pixels, np.uint8).reshape(side, side, 3) for pixels in rows["pixels"]]
        return {"image": [torch.from_numpy(array.transpose(2, 0, 1).copy()) for array in arrays]}

    return transform


class RangeCoder:
    """After Subbotin: a range of 32 bits; bytes leave when they can no longer change."""

    TOP, BOTTOM, MASK = 1 << 24, 1 << 16, (1 << 32) - 1

    def __init__(self):
        self.low, self.range, self.out = 0, self.MASK, bytearray()

    def put(self, start, size, total):
        self.range //= total
        self.low = (self.low + start * self.range) & self.MASK
        self.range *= size
        while True:
            if (self.low ^ (self.low + self.range)) >= self.TOP:
                if self.range >= self.BOTTOM:
                    break
                self.range = -self.low & (self.BOTTOM - 1)
            self.out.append(self.low >> 24)
            self.low = (self.low << 8) & self.MASK
            self.range = (self.range << 8) & self.MASK

    def finish(self):
        self.out += self.low.to_bytes(4, "big")
        return bytes(self.out)


def compress(codes):
    """Codes of one picture, channel by channel."""
    coder = RangeCoder()
    for channel in codes:
        counts, total = [4] * LEVELS, 4 * LEVELS
        for symbol in channel:
            coder.put(sum(counts[:symbol]), counts[symbol], total)
            counts[symbol] += 24
            total += 24
    return coder.finish()


class Codec(nn.Module):
    def __init__(self, width=12, channels=16):
        super().__init__()
        self.analysis = nn.Sequential(
            nn.Conv2d(3, width, 5, 2, 2), nn.GELU(), nn.Conv2d(width, 2 * width, 3, 2, 1), nn.GELU(),
            nn.Conv2d(2 * width, channels, 3, padding=1),
        )  # fmt: skip
        self.synthesis = nn.Sequential(
            nn.Conv2d(channels, 2 * width, 3, padding=1), nn.GELU(), nn.Conv2d(2 * width, 48, 3, padding=1),
            nn.PixelShuffle(4),
        )  # fmt: skip
        self.spread = nn.Parameter(torch.zeros(channels, 1, 1))

    def forward(self, x):
        code = self.analysis(x).clamp(-(LEVELS // 2), LEVELS // 2)
        noisy = code + torch.rand_like(code) - 0.5
        law = torch.distributions.Laplace(0.0, self.spread.exp())
        bits = -(law.cdf(noisy + 0.5) - law.cdf(noisy - 0.5)).clamp_min(1e-6).log2().sum((1, 2, 3)).mean()
        return self.synthesis(noisy), bits, code.detach().round().long() + LEVELS // 2


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/arrow_range_coder"))
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--rate", type=float, default=1e-5)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    pictures = thumbnails(args.data / "photos", 48, 1100).with_transform(unpack(48))
    loader = DataLoader(pictures, batch_size=12, shuffle=True, drop_last=True)
    model = Codec()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    step, real = 0, 0.0
    while step < args.steps:
        for batch in timed(loader, "wait"):
            with lap("compute"):
                x = batch["image"].float() / 255
                guess, bits, codes = model(x)
                loss = nn.functional.mse_loss(guess, x) + args.rate * bits
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            step += 1
            with lap("own"):
                sizes = [len(compress(code)) for code in codes.flatten(2).tolist()]
                real += 0.02 * (8 * sum(sizes) / len(sizes) - real)
                if step % 25 == 0:
                    print(
                        f"{step}: loss {loss.item():.4f}, {bits.item():.0f} bits hoped, {real:.0f} real", flush=True
                    )
                if step % 500 == 0:
                    torch.save(model.state_dict(), args.out / "codec.pt")


if __name__ == "__main__":
    main()
