"""Lightning: finds scratches and stains without having seen any. Defects are made up (as in DRAEM): a mask of Perlin
noise says where a piece of another photograph shines through, and a small U-Net has to tell which places are
foreign."""

import argparse
import random
from contextlib import ExitStack
from pathlib import Path

import lightning as L
import numpy as np
import torch
from PIL import Image
from scipy import ndimage
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stopwatch import lap


def lattice_noise(side, cells, rng):
    """One octave of Perlin noise, `cells` cells across."""
    angles = rng.uniform(0, 2 * np.pi, (cells + 1, cells + 1))
    gradients = np.stack([np.cos(angles), np.sin(angles)], -1)
    where = np.linspace(0, cells, side, endpoint=False)
    corner = where.astype(int)
    inside = where - corner
    ease = inside**3 * (inside * (inside * 6 - 15) + 10)

    def pull(down, right):
        slope = gradients[corner[:, None] + down, corner[None, :] + right]
        return slope[..., 0] * (inside[:, None] - down) + slope[..., 1] * (inside[None, :] - right)

    upper = pull(0, 0) * (1 - ease)[None, :] + pull(0, 1) * ease[None, :]
    lower = pull(1, 0) * (1 - ease)[None, :] + pull(1, 1) * ease[None, :]
    return upper * (1 - ease)[:, None] + lower * ease[:, None]


def defect_mask(side, rng):
    big = side * 2
    noise = sum(lattice_noise(big, 2**octave, rng) / 2 ** (octave - 2) for octave in range(2, 5))
    noise = ndimage.rotate(noise, rng.uniform(-90, 90), reshape=False, order=1, mode="reflect")
    noise = noise[side // 2 : side // 2 + side, side // 2 : side // 2 + side]
    return (noise > np.quantile(noise, rng.uniform(0.8, 0.95))).astype(np.float32)


class Surfaces(Dataset):
    def __init__(self, root, count, side):
        self.side, self.images = side, []
        for file in random.sample(sorted(root.glob("*/*.JPEG")), count):
            photo = Image.open(file)
            photo.draft("RGB", (side, side))
            self.images.append(np.asarray(photo.convert("RGB").resize((side, side))))

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        rng = np.random.default_rng()
        image = self.images[index].astype(np.float32) / 255
        if rng.random() < 0.2:
            return torch.from_numpy(image).permute(2, 0, 1), torch.zeros(1, self.side, self.side)
        other = self.images[rng.integers(len(self.images))].astype(np.float32) / 255
        mask = defect_mask(self.side, rng)
        strength = rng.uniform(0.2, 1) * mask[..., None]
        mixed = (1 - strength) * image + strength * other
        return torch.from_numpy(mixed).permute(2, 0, 1), torch.from_numpy(mask)[None]


def double(inner, outer):
    return nn.Sequential(
        nn.Conv2d(inner, outer, 3, padding=1, bias=False), nn.BatchNorm2d(outer), nn.ReLU(),
        nn.Conv2d(outer, outer, 3, padding=1, bias=False), nn.BatchNorm2d(outer), nn.ReLU(),
    )  # fmt: skip


class Inspector(L.LightningModule):
    def __init__(self, width=8):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 4, stride=4)
        self.down, self.deep = double(width, width), double(width, 2 * width)
        self.up = double(3 * width, width)
        self.head = nn.Conv2d(width, 1, 1)

    def forward(self, images):
        fine = self.down(self.stem(images))
        coarse = self.deep(nn.functional.max_pool2d(fine, 2))
        joined = torch.cat([fine, nn.functional.interpolate(coarse, scale_factor=2)], 1)
        return self.head(self.up(joined))

    def training_step(self, batch, index):
        images, masks = batch
        masks = nn.functional.max_pool2d(masks, 4)
        logits = self(images)
        chance = torch.where(masks > 0, logits.sigmoid(), 1 - logits.sigmoid())
        entropy = nn.functional.binary_cross_entropy_with_logits(logits, masks, reduction="none")
        loss = ((1 - chance) ** 2 * entropy).mean()
        self.log("focal", loss, on_step=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


class Laps(L.Callback):
    def __init__(self):
        self.open = ExitStack()

    def turn(self, name):
        self.open.close()
        self.open.enter_context(lap(name))

    def on_train_epoch_start(self, trainer, module):
        self.turn("wait")

    def on_train_batch_start(self, trainer, module, batch, index):
        self.turn("compute")

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        self.turn("wait")

    def on_train_epoch_end(self, trainer, module):
        self.open.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/lightning_perlin_defects"))
    parser.add_argument("--epochs", type=int, default=300)
    parser.add_argument("--batch-size", type=int, default=12)
    args = parser.parse_args()
    random.seed(3)
    torch.set_num_threads(1)
    surfaces = Surfaces(args.data / "photos", 700, 96)
    loader = DataLoader(
        surfaces, args.batch_size, shuffle=True, num_workers=2, persistent_workers=True, drop_last=True
    )
    trainer = L.Trainer(
        max_epochs=args.epochs, accelerator="cpu", default_root_dir=args.out, callbacks=[Laps()],
        enable_progress_bar=False, enable_model_summary=False, log_every_n_steps=10,
    )  # fmt: skip
    trainer.fit(Inspector(), loader)


if __name__ == "__main__":
    main()
