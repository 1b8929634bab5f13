"""Lightning on coloured point clouds: each photograph with a made-up depth is a cloud, batches are lists of voxels."""

import argparse
import math
import random
from pathlib import Path

import lightning as L
import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stopwatch import lap, timed


class Clouds(Dataset):
    """19,200 points a photograph (x, y, depth and colour), turned and scaled anew each time."""

    def __init__(self, root: Path, every=5, size=(160, 120)):
        files = sorted(root.glob("*/*.JPEG"))[::every]
        names = sorted({file.parent.name for file in files})
        self.labels = [names.index(file.parent.name) for file in files]
        self.pixels = np.stack([self.small(file, size) for file in files])
        width, height = size
        x, y = np.meshgrid(np.linspace(-0.5, 0.5, width), np.linspace(-0.4, 0.4, height))
        self.rays = np.stack([x, y], -1).reshape(-1, 2).astype(np.float32)

    @staticmethod
    def small(file, size):
        with Image.open(file) as photo:
            photo.draft("RGB", size)
            return np.asarray(photo.convert("RGB").resize(size, Image.Resampling.BOX)).reshape(-1, 3)

    def __len__(self):
        return 10 * len(self.labels)

    def __getitem__(self, index):
        index %= len(self.labels)
        with lap("transform"):
            colours = self.pixels[index].astype(np.float32) / 255
            depth = 0.8 + colours @ np.float32([0.3, 0.6, 0.1])
            points = np.column_stack([self.rays * depth[:, None], depth])
            angle, scale = random.uniform(-math.pi, math.pi), random.uniform(0.9, 1.1)
            sine, cosine = scale * math.sin(angle), scale * math.cos(angle)
            turn = np.float32([[cosine, 0, sine], [0, scale, 0], [-sine, 0, cosine]])
            return points @ turn, colours, self.labels[index]


class SparseBatch:
    """Points to voxels: those of a voxel become their mean; a first column tells the sample."""

    voxel = 0.06

    def quantize(self, points, colours):
        cells = np.floor((points - points.min(0)) / self.voxel).astype(np.int32)
        places, inverse, counts = np.unique(cells, axis=0, return_inverse=True, return_counts=True)
        inverse = inverse.reshape(-1)
        features = np.concatenate([points, colours], 1)
        sums = np.stack([np.bincount(inverse, column, len(places)) for column in features.T], 1)
        return places, (sums / counts[:, None]).astype(np.float32)

    def __call__(self, samples):
        with lap("collate"):
            coordinates, features = [], []
            for number, (points, colours, _) in enumerate(samples):
                places, values = self.quantize(points, colours)
                coordinates.append(np.column_stack([np.full(len(places), number), places]))
                features.append(values)
            arrays = (torch.from_numpy(np.concatenate(parts)) for parts in (coordinates, features))
            return *arrays, [len(values) for values in features], torch.tensor([label for *_, label in samples])


class VoxelNet(L.LightningModule):
    def __init__(self, classes=10):
        super().__init__()
        self.each = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 32), nn.ReLU())
        self.head = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, classes))

    def forward(self, features, counts):
        clouds = self.each(features).split(counts)
        most = torch.stack([cloud.amax(0) for cloud in clouds])
        mean = torch.stack([cloud.mean(0) for cloud in clouds])
        return self.head(torch.cat([most, mean], 1))

    def training_step(self, batch, number):
        _, features, counts, labels = batch
        return nn.functional.cross_entropy(self(features, counts), labels)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=2e-3)


class Laps(L.Callback):
    def on_train_batch_start(self, trainer, module, batch, number):
        self.open = lap("compute")
        self.open.__enter__()

    def on_train_batch_end(self, trainer, module, outputs, batch, number):
        self.open.__exit__(None, None, None)

        if number % 50 == 0:
            print(f"epoch {trainer.current_epoch}, batch {number}: {outputs['loss'].item():.4f}", flush=True)


class TimedLoader(DataLoader):
    def __iter__(self):
        return timed(super().__iter__(), "wait")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/room_points"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    loader = TimedLoader(
        Clouds(args.data / "photos"), batch_size=12, shuffle=True, num_workers=2, collate_fn=SparseBatch(),
        persistent_workers=True,
    )  # fmt: skip
    trainer = L.Trainer(
        max_epochs=12, accelerator="cpu", logger=False, enable_checkpointing=False, callbacks=[Laps()],
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=args.out,
    )  # fmt: skip
    trainer.fit(VoxelNet(), loader)
    trainer.save_checkpoint(args.out / "voxels.ckpt")


if __name__ == "__main__":
    main()
