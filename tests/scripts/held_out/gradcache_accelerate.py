"""Accelerate: contrastive learning of two crops with large batches on a small machine, by GradCache.

The codes of the whole batch are made without gradients, the loss is differentiated by the codes, and then every chunk
goes through the encoder again, so that at most one chunk's activations are in memory (Gao et al., 2021).
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from PIL import Image
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from stopwatch import lap, timed


class TwoCrops(Dataset):
    """Photographs in memory at 72 px, two crops of each."""

    def __init__(self, root: Path, side=48, whole=72):
        self.side, self.room = side, whole - side
        self.photos = []
        for file in sorted(root.glob("*/*.JPEG")):
            image = Image.open(file)
            image.draft("RGB", (whole, whole))
            pixels = np.array(image.convert("RGB").resize((whole, whole), Image.Resampling.BILINEAR))
            self.photos.append(torch.from_numpy(pixels).permute(2, 0, 1).contiguous())

    def __len__(self):
        return len(self.photos)

    def crop(self, photo):
        y, x = torch.randint(0, self.room + 1, (2,)).tolist()
        view = photo[:, y : y + self.side, x : x + self.side]
        return view.flip(2) if torch.rand(()) < 0.5 else view

    def __getitem__(self, index):
        photo = self.photos[index]
        return self.crop(photo), self.crop(photo)


class Encoder(nn.Module):
    """No batch statistics and no dropout: the second pass must give what the first gave."""

    def __init__(self, dim=64):
        super().__init__()
        layers, channels = [], 3
        for width, stride in ((24, 2), (48, 1), (64, 2)):
            layers += [nn.Conv2d(channels, width, 3, stride, 1), nn.GroupNorm(8, width), nn.SiLU()]
            channels = width
        self.body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten())
        self.project = nn.Linear(4 * channels, dim)

    def forward(self, images):
        return F.normalize(self.project(self.body(images.float() / 127.5 - 1)), dim=1)


def contrast(codes, temperature):
    left, right = codes.chunk(2)
    logits = left @ right.T / temperature
    target = torch.arange(len(left))
    return (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2


def cached_step(accelerator, encoder, left, right, chunk, temperature):
    pieces = [*left.split(chunk), *right.split(chunk)]
    with torch.no_grad():
        codes = torch.cat([encoder(piece) for piece in pieces])
    codes.requires_grad_()
    loss = contrast(codes, temperature)
    (gradient,) = torch.autograd.grad(loss, codes)
    parts = gradient.split([len(piece) for piece in pieces])
    for piece, part in zip(pieces, parts, strict=True):
        accelerator.backward((encoder(piece) * part).sum())
    return loss.detach()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/gradcache_accelerate"))
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--chunk", type=int, default=8)
    parser.add_argument("--temperature", type=float, default=0.1)
    args = parser.parse_args()
    set_seed(48)
    args.out.mkdir(parents=True, exist_ok=True)

    accelerator = Accelerator(cpu=True)
    crops = TwoCrops(args.data / "photos")
    loader = DataLoader(
        crops, batch_size=args.batch_size, shuffle=True, drop_last=True, num_workers=1, persistent_workers=True
    )
    encoder = Encoder()
    optimizer = torch.optim.AdamW(encoder.parameters(), lr=1e-3)
    encoder, optimizer, loader = accelerator.prepare(encoder, optimizer, loader)
    for epoch in range(args.epochs):
        total = count = 0
        for left, right in timed(loader, "wait"):
            with lap("compute"):
                optimizer.zero_grad()
                loss = cached_step(accelerator, encoder, left, right, args.chunk, args.temperature)
                optimizer.step()
            total, count = total + loss.item(), count + 1
        accelerator.print(f"epoch {epoch}: loss {total / count:.4f}", flush=True)
        accelerator.save(accelerator.unwrap_model(encoder).state_dict(), args.out / "encoder.pt")


if __name__ == "__main__":
    main()
