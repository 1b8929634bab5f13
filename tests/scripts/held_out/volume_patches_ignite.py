"""Segmentation of volumes in patches: each worker opens a case, makes it isotropic and cuts many patches."""

import argparse
import gzip
import random
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch
from ignite.engine import Engine, Events
from ignite.handlers import Checkpoint, DiskSaver
from PIL import Image
from scipy import ndimage
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from stopwatch import lap

SHAPE, SPACING = (40, 112, 112), (1.6, 0.9, 0.9)


def make_volumes(photos: Path, folder: Path, count=16):
    """Slices that turn from one photograph into the next, int16 and gzipped like a NIfTI file."""
    folder.mkdir(parents=True, exist_ok=True)
    files = sorted(photos.glob("*/*.JPEG"))
    for number in range(count):
        keys = []
        for file in files[number * 7 :: len(files) // 5][:5]:
            photo = Image.open(file)
            photo.draft("L", (128, 128))
            keys.append(np.asarray(photo.convert("L").resize(SHAPE[:0:-1]), np.float32))
        volume = ndimage.zoom(np.stack(keys), (SHAPE[0] / 5, 1, 1), order=1) * 8 - 1000
        with gzip.open(folder / f"case_{number:02d}.raw.gz", "wb", compresslevel=1) as file:
            file.write(volume.astype(np.int16).tobytes())


class PatchStream(IterableDataset):
    def __init__(self, folder: Path, patch=32, per_volume=20, rounds=30):
        self.cases, self.patch, self.per_volume, self.rounds = sorted(folder.glob("*.gz")), patch, per_volume, rounds

    def open_case(self, path):
        with lap("read"), gzip.open(path) as file:
            return np.frombuffer(file.read(), np.int16).reshape(SHAPE)

    def prepare(self, raw):
        with lap("transform"):
            volume = ndimage.zoom(raw.astype(np.float32), SPACING, order=3)
            low, high = np.percentile(volume, (0.5, 99.5))
            volume = (volume.clip(low, high) - volume.mean()) / (volume.std() + 1e-6)
            organ = ndimage.binary_opening(ndimage.gaussian_filter(volume, 1.5) > 0.4, iterations=2)
            return volume.astype(np.float32), organ

    def patches(self, volume, organ):
        for _ in range(self.per_volume):
            place = [random.randrange(size - self.patch + 1) for size in volume.shape]
            window = tuple(slice(start, start + self.patch) for start in place)
            turn = random.randrange(4)
            image, mask = (np.rot90(array[window], turn, (1, 2)).copy() for array in (volume, organ))
            yield torch.from_numpy(image)[None], torch.from_numpy(mask).float()[None]

    def __iter__(self):
        worker = get_worker_info()
        mine = self.cases[worker.id :: worker.num_workers] if worker else list(self.cases)
        for _ in range(self.rounds):
            random.shuffle(mine)
            for path in mine:
                yield from self.patches(*self.prepare(self.open_case(path)))


def conv(before, after):
    return nn.Sequential(nn.Conv3d(before, after, 3, padding=1), nn.InstanceNorm3d(after), nn.LeakyReLU(0.01, True))


class UNet3d(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.one, self.two = conv(1, width), nn.Sequential(conv(width, 2 * width), conv(2 * width, 2 * width))
        self.three = nn.Sequential(conv(2 * width, 4 * width), conv(4 * width, 4 * width))
        self.up_two, self.up_one = conv(6 * width, 2 * width), conv(3 * width, width)
        self.head, self.pool, self.up = nn.Conv3d(width, 1, 1), nn.MaxPool3d(2), nn.Upsample(scale_factor=2)

    def forward(self, x):
        one = self.one(x)
        two = self.two(self.pool(one))
        two = self.up_two(torch.cat([self.up(self.three(self.pool(two))), two], 1))
        return self.head(self.up_one(torch.cat([self.up(two), one], 1)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/volume_patches"))
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    make_volumes(args.data / "photos", args.out / "cases")
    loader = DataLoader(PatchStream(args.out / "cases"), batch_size=4, num_workers=2, prefetch_factor=3)
    model = UNet3d()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.99, nesterov=True)

    def update(engine, batch):
        with lap("compute"):
            images, masks = batch
            logits = model(images)
            chance = torch.sigmoid(logits)
            dice = (2 * (chance * masks).sum() + 1) / (chance.sum() + masks.sum() + 1)
            loss = nn.functional.binary_cross_entropy_with_logits(logits, masks) + 1 - dice
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 12)
            optimizer.step()
        return loss.item()

    trainer, waiting = Engine(update), ExitStack()
    trainer.add_event_handler(Events.GET_BATCH_STARTED, lambda: waiting.enter_context(lap("wait")))
    trainer.add_event_handler(Events.GET_BATCH_COMPLETED, waiting.close)

    @trainer.on(Events.ITERATION_COMPLETED(every=10))
    def show(engine):
        print(f"{engine.state.iteration}: {engine.state.output:.4f}", flush=True)

    keep = Checkpoint({"model": model}, DiskSaver(args.out, require_empty=False), n_saved=1)
    trainer.add_event_handler(Events.ITERATION_COMPLETED(every=200), keep)
    trainer.run(loader, max_epochs=3)


if __name__ == "__main__":
    main()
