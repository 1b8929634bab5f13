"""Rectified flow with a small diffusion transformer, by Accelerate, and prefetching of our own for the photographs."""

import argparse
import random
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from PIL import Image, ImageFilter, ImageOps
from torch import nn
from torch.nn import functional as F

from stopwatch import lap


class Prefetcher:
    """`next()` until None, as in the ImageNet example of Apex, but with threads in place of a stream."""

    def __init__(self, files, names, side, batch, threads=2, ahead=3):
        self.files, self.names, self.side, self.batch, self.ahead = files, names, side, batch, ahead
        self.pool, self.queue = ThreadPoolExecutor(threads), deque()

    def view(self, file):
        photo = ImageOps.autocontrast(Image.open(file).convert("RGB"), cutoff=1)
        if random.random() < 0.5:
            photo = ImageOps.mirror(photo)
        photo = photo.filter(ImageFilter.UnsharpMask(2, 60))
        photo = ImageOps.fit(photo, (self.side, self.side), Image.Resampling.LANCZOS)
        return np.asarray(photo).transpose(2, 0, 1), self.names.index(file.parent.name)

    def reset(self):
        random.shuffle(self.files)
        self.chunks = (self.files[n : n + self.batch] for n in range(0, len(self.files) - self.batch, self.batch))
        for _ in range(self.ahead):
            self.preload()

    def preload(self):
        chunk = next(self.chunks, None)
        if chunk is not None:
            self.queue.append([self.pool.submit(self.view, file) for file in chunk])

    def next(self):
        if not self.queue:
            return None
        views = [future.result() for future in self.queue.popleft()]
        self.preload()
        images = torch.from_numpy(np.stack([image for image, _ in views])).float() / 127.5 - 1
        return images, torch.tensor([label for _, label in views])


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width)
        )
        self.modulation = nn.Linear(width, 6 * width)
        self.width = width

    def forward(self, x, condition):
        a, b, c, d, e, f = self.modulation(F.silu(condition))[:, None].chunk(6, dim=2)
        y = F.layer_norm(x, (self.width,)) * (1 + a) + b
        x = x + c * self.attention(y, y, y, need_weights=False)[0]
        return x + f * self.mlp(F.layer_norm(x, (self.width,)) * (1 + d) + e)


class DiT(nn.Module):
    def __init__(self, side, patch=8, width=192, depth=6, heads=3, classes=10):
        super().__init__()
        self.cut = nn.Conv2d(3, width, patch, patch)
        self.place = nn.Parameter(0.02 * torch.randn(1, (side // patch) ** 2, width))
        self.label = nn.Embedding(classes + 1, width)
        self.time = nn.Sequential(nn.Linear(64, width), nn.SiLU(), nn.Linear(width, width))
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.last = nn.Linear(width, 3 * patch * patch)
        self.paste = nn.PixelShuffle(patch)
        self.grid = side // patch

    def forward(self, x, t, labels):
        waves = t[:, None] * torch.exp(torch.linspace(0, 6, 32))
        condition = self.time(torch.cat([waves.sin(), waves.cos()], 1)) + self.label(labels)
        x = self.cut(x).flatten(2).transpose(1, 2) + self.place
        for block in self.blocks:
            x = block(x, condition)
        return self.paste(self.last(x).transpose(1, 2).unflatten(2, (self.grid, self.grid)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/flow_dit"))
    args = parser.parse_args()
    torch.manual_seed(9)
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    accelerator = Accelerator(cpu=True)
    files = sorted((args.data / "photos").glob("*/*.JPEG"))
    names = sorted({file.parent.name for file in files})
    prefetcher = Prefetcher(files, names, side=64, batch=24)
    model = DiT(64)
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=3e-4))
    step = 0
    for epoch in range(12):
        prefetcher.reset()
        with lap("wait"):
            batch = prefetcher.next()
        while batch is not None:
            with lap("compute"):
                images, labels = batch
                noise, t = torch.randn_like(images), torch.sigmoid(torch.randn(len(images)))
                mix = t.view(-1, 1, 1, 1)
                labels = torch.where(torch.rand(len(labels)) < 0.1, len(names), labels)
                velocity = model((1 - mix) * images + mix * noise, t, labels)
                loss = F.mse_loss(velocity, noise - images)
                optimizer.zero_grad()
                accelerator.backward(loss)
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
            step += 1
            if step % 10 == 0:
                accelerator.print(f"epoch {epoch} step {step}: loss {loss.item():.4f}", flush=True)
            with lap("wait"):
                batch = prefetcher.next()
        accelerator.save(accelerator.unwrap_model(model).state_dict(), args.out / "dit.pt")


if __name__ == "__main__":
    main()
