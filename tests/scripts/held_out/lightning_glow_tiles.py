"""Lightning: a normalising flow (Glow) on tiles of photographs; how many bits does a value of a pixel take?"""

import argparse
import math
import random
from contextlib import ExitStack
from pathlib import Path

import lightning as L
import numpy as np
import torch
from lightning.pytorch.loggers import CSVLogger
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from stopwatch import lap


class Tiles(IterableDataset):
    def __init__(self, root, side, each=4, buffer=200):
        self.files, self.side, self.each, self.buffer = sorted(root.glob("*/*.JPEG")), side, each, buffer

    def tiles(self):
        while True:
            for file in random.sample(self.files, len(self.files)):
                photo = Image.open(file)
                photo.draft("RGB", (photo.width // 2, photo.height // 2))
                pixels = np.asarray(photo.convert("RGB"))
                for _ in range(self.each):
                    top = random.randrange(max(1, pixels.shape[0] - self.side))
                    left = random.randrange(max(1, pixels.shape[1] - self.side))
                    tile = pixels[top : top + self.side, left : left + self.side]
                    if len(tile) == len(tile[0]) == self.side and tile.std() > 8:
                        yield torch.tensor(tile).permute(2, 0, 1)

    def __iter__(self):
        held = []
        for tile in self.tiles():
            held.append(tile)
            if len(held) >= self.buffer:
                yield held.pop(random.randrange(len(held)))


class Step(nn.Module):
    def __init__(self, channels, width):
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(1, channels, 1, 1))
        self.scale = nn.Parameter(torch.zeros(1, channels, 1, 1))
        self.mix = nn.Parameter(torch.linalg.qr(torch.randn(channels, channels))[0].contiguous())
        self.net = nn.Sequential(
            nn.Conv2d(channels // 2, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 1), nn.ReLU(),
            nn.Conv2d(width, channels, 3, padding=1),
        )  # fmt: skip
        nn.init.zeros_(self.net[-1].weight)

    def forward(self, x):
        pixels = x.shape[2] * x.shape[3]
        x = (x + self.shift) * self.scale.exp()
        x = nn.functional.conv2d(x, self.mix[:, :, None, None])
        volume = pixels * (self.scale.sum() + torch.linalg.slogdet(self.mix)[1])
        kept, moved = x.chunk(2, 1)
        shift, scale = self.net(kept).chunk(2, 1)
        scale = (scale + 2).sigmoid()
        return torch.cat([kept, (moved + shift) * scale], 1), volume + scale.log().sum((1, 2, 3))


class Glow(L.LightningModule):
    def __init__(self, levels=2, depth=6, width=64):
        super().__init__()
        flows = [nn.ModuleList(Step(12 * 2**level, width) for _ in range(depth)) for level in range(levels)]
        self.levels = nn.ModuleList(flows)

    def training_step(self, batch, index):
        x = (batch.float() + torch.rand(batch.shape)) / 256 - 0.5
        volume = chance = 0.0
        for level in self.levels:
            x = nn.functional.pixel_unshuffle(x, 2)
            for step in level:
                x, more = step(x)
                volume = volume + more
            x, out = x.chunk(2, 1)
            chance = chance - 0.5 * (out**2 + math.log(2 * math.pi)).sum((1, 2, 3))
        chance = chance - 0.5 * (x**2 + math.log(2 * math.pi)).sum((1, 2, 3))
        bits = -(chance + volume) / batch[0].numel() / math.log(2) + 8
        self.log_dict({"bits": bits.mean(), "worst": bits.max(), "volume": volume.mean()}, on_step=True)
        return bits.mean()

    def configure_optimizers(self):
        return torch.optim.Adamax(self.parameters(), lr=5e-4)


class Laps(L.Callback):
    stack = ExitStack()

    def turn(self, name):
        self.stack.close()
        self.stack.enter_context(lap(name))

    def on_train_epoch_start(self, trainer, module):
        self.turn("wait")

    def on_train_batch_start(self, trainer, module, batch, index):
        self.turn("compute")

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        self.turn("wait")

    def on_train_end(self, trainer, module):
        self.stack.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/lightning_glow_tiles"))
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--side", type=int, default=24)
    args = parser.parse_args()
    loader = DataLoader(Tiles(args.data / "photos", args.side), batch_size=16, num_workers=1)
    trainer = L.Trainer(
        max_steps=args.steps, accelerator="cpu", default_root_dir=args.out, logger=CSVLogger(args.out, name="glow"),
        callbacks=[Laps()], gradient_clip_val=5.0, log_every_n_steps=5,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Glow(), loader)


if __name__ == "__main__":
    main()
