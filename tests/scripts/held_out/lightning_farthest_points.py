"""Lightning: which solid is it? A PointNet on points of scanned solids. A scan has far more points than the network
takes, so that a well spread subset is chosen first, as PointNet++ does."""

import argparse
import math
from contextlib import ExitStack
from pathlib import Path

import lightning as L
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stopwatch import lap

KINDS = ["sphere", "box", "torus", "cone", "cylinder", "saddle"]


def scan(kind, count, rng):
    u, v = rng.random(count), rng.random(count)
    angle = 2 * math.pi * u
    if kind == "sphere":
        z = 2 * v - 1
        r = np.sqrt(1 - z * z)
        cloud = np.stack([r * np.cos(angle), r * np.sin(angle), z], 1)
    elif kind == "box":
        cloud = rng.random((count, 3)) * 2 - 1
        cloud[np.arange(count), rng.integers(3, size=count)] = rng.choice([-1.0, 1.0], count)
    elif kind == "torus":
        around = 2 * math.pi * v
        r = 0.7 + 0.3 * np.cos(around)
        cloud = np.stack([r * np.cos(angle), r * np.sin(angle), 0.3 * np.sin(around)], 1)
    elif kind == "saddle":
        cloud = np.stack([2 * u - 1, 2 * v - 1, (2 * u - 1) ** 2 - (2 * v - 1) ** 2], 1)
    else:
        r = 1 - v if kind == "cone" else np.ones(count)
        cloud = np.stack([r * np.cos(angle), r * np.sin(angle), 2 * v - 1], 1)
    return (cloud + rng.normal(0, 0.01, cloud.shape)).astype(np.float32)


def farthest_points(cloud, count, rng):
    """Each next point is the one farthest from all that were chosen."""
    chosen = np.empty(count, np.int64)
    chosen[0] = rng.integers(len(cloud))
    nearest = np.full(len(cloud), np.inf, np.float32)
    for k in range(1, count):
        offset = cloud - cloud[chosen[k - 1]]
        nearest = np.minimum(nearest, (offset * offset).sum(1))
        chosen[k] = nearest.argmax()
    return cloud[chosen]


class Scans(Dataset):
    def __init__(self, each=60, points=2048, kept=192):
        rng = np.random.default_rng(5)
        self.kept = kept
        self.items = [(scan(kind, points, rng), k) for k, kind in enumerate(KINDS) for _ in range(each)]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        cloud, kind = self.items[index]
        rng = np.random.default_rng()
        cloud = cloud * rng.uniform(0.7, 1.3, 3).astype(np.float32)
        cloud = farthest_points(cloud, self.kept, rng)
        turn, _ = np.linalg.qr(rng.normal(size=(3, 3)))
        return torch.from_numpy(cloud @ turn.astype(np.float32)), kind


class PointNet(L.LightningModule):
    def __init__(self, width=64):
        super().__init__()
        self.each = nn.Sequential(nn.Linear(3, width), nn.ReLU(), nn.Linear(width, 2 * width), nn.ReLU())
        self.all = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, len(KINDS)))

    def training_step(self, batch, index):
        clouds, kinds = batch
        loss = nn.functional.cross_entropy(self.all(self.each(clouds).amax(1)), kinds)
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


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
    parser.add_argument("data", help="not used: the solids are made up")
    parser.add_argument("--out", type=Path, default=Path("runs/lightning_farthest_points"))
    parser.add_argument("--epochs", type=int, default=500)
    parser.add_argument("--batch", type=int, default=16)
    args = parser.parse_args()
    L.seed_everything(5)
    torch.set_num_threads(1)
    loader = DataLoader(Scans(), args.batch, shuffle=True, num_workers=2, persistent_workers=True, drop_last=True)
    trainer = L.Trainer(
        max_epochs=args.epochs, accelerator="cpu", default_root_dir=args.out, callbacks=[Laps()],
        enable_progress_bar=False, enable_model_summary=False, log_every_n_steps=20,
    )  # fmt: skip
    trainer.fit(PointNet(), loader)


if __name__ == "__main__":
    main()
