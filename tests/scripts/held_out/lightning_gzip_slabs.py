"""Segment lesions in thin slabs of gzipped NIfTI volumes with a 2.5-D U-Net, trained by Lightning.

The volumes stay as the archive delivers them, .nii.gz; a sample is a slab of three neighbouring slices.
"""

import argparse
import gzip
import struct
from pathlib import Path

import lightning as L
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stopwatch import lap, timed

CASES, DEPTH, SIDE = 24, 56, 128
TYPES = {4: np.dtype("<i2"), 2: np.dtype("u1")}


def write_nifti(path: Path, volume: np.ndarray, code: int) -> None:
    header = bytearray(352)
    struct.pack_into("<i", header, 0, 348)
    struct.pack_into("<8h", header, 40, 3, *volume.shape[::-1], 1, 1, 1, 1)
    struct.pack_into("<hh", header, 70, code, TYPES[code].itemsize * 8)
    struct.pack_into("<f", header, 108, 352.0)
    header[344:348] = b"n+1\0"
    with gzip.open(path, "wb", compresslevel=1) as out:
        out.write(bytes(header) + volume.astype(TYPES[code]).tobytes())


def read_nifti(path: Path) -> np.ndarray:
    with gzip.open(path, "rb") as source:
        raw = source.read()
    dims = struct.unpack_from("<8h", raw, 40)
    (code,) = struct.unpack_from("<h", raw, 70)
    offset = int(struct.unpack_from("<f", raw, 108)[0])
    return np.frombuffer(raw, TYPES[code], offset=offset).reshape(dims[3], dims[2], dims[1])


def make_cases(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(11)
    z, y, x = np.ogrid[:DEPTH, :SIDE, :SIDE]
    noise = rng.normal(0, 18, (DEPTH, SIDE, SIDE)).astype(np.float32)
    for case in range(CASES):
        if (folder / f"case{case:02d}_lesion.nii.gz").exists():
            continue
        body = ((y - 64) / 52) ** 2 + ((x - 64) / 44) ** 2 < 1
        volume = np.where(body, 40.0, -1000.0).astype(np.float32) + np.roll(noise, case * 1013)
        lesion = np.zeros(volume.shape, bool)
        for _ in range(7):
            c, r = rng.uniform((6, 36, 36), (50, 92, 92)), rng.uniform(4, 11)
            lesion |= ((z - c[0]) * 1.6) ** 2 + (y - c[1]) ** 2 + (x - c[2]) ** 2 < r * r
        volume[lesion] += 35
        write_nifti(folder / f"case{case:02d}_ct.nii.gz", volume, 4)
        write_nifti(folder / f"case{case:02d}_lesion.nii.gz", lesion, 2)


class Slabs(Dataset):
    """Some slabs of each case in an epoch, each from a place drawn anew."""

    def __init__(self, folder: Path, per_case: int = 10) -> None:
        self.scans = sorted(folder.glob("*_ct.nii.gz"))
        self.per_case = per_case

    def __len__(self) -> int:
        return len(self.scans) * self.per_case

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        scan = self.scans[index % len(self.scans)]
        volume = read_nifti(scan)
        lesion = read_nifti(scan.with_name(scan.name.replace("_ct", "_lesion")))
        z = int(torch.randint(1, len(volume) - 1, ()))
        slab = np.clip((volume[z - 1 : z + 2].astype(np.float32) + 160) / 400, 0, 1)
        mask = lesion[z].astype(np.float32)
        if torch.rand(()) < 0.5:
            slab, mask = slab[..., ::-1].copy(), mask[..., ::-1].copy()
        return torch.from_numpy(slab), torch.from_numpy(mask)


class LapLoader:
    """A loader whose waits are timed."""

    def __init__(self, loader: DataLoader) -> None:
        self.loader = loader

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self):
        return timed(self.loader, "wait")


def block(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU())


class SlabNet(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.top = nn.Sequential(nn.Conv2d(3, 8, 2, stride=2), nn.ReLU())
        self.mid, self.low, self.join = block(8, 16), block(16, 32), block(32 + 16, 16)
        self.head = nn.Sequential(nn.Conv2d(16 + 8, 1, 1), nn.Upsample(scale_factor=2, mode="bilinear"))
        self.pool, self.up = nn.MaxPool2d(2), nn.Upsample(scale_factor=2)
        self.dice: list[float] = []

    def forward(self, slabs: torch.Tensor) -> torch.Tensor:
        top = self.top(slabs)
        mid = self.mid(self.pool(top))
        low = self.low(self.pool(mid))
        joined = self.join(torch.cat([self.up(low), mid], 1))
        return self.head(torch.cat([self.up(joined), top], 1))[:, 0]

    def on_train_batch_start(self, batch, batch_idx):
        self.running = lap("compute")
        self.running.__enter__()

    def training_step(self, batch, batch_idx):
        slabs, masks = batch
        logits = self(slabs)
        chance = logits.sigmoid()
        overlap = (2 * (chance * masks).sum() + 1) / (chance.sum() + masks.sum() + 1)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, masks) + 1 - overlap
        return {"loss": loss, "dice": overlap.detach()}

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.running.__exit__(None, None, None)
        with lap("own"):
            self.dice.append(float(outputs["dice"]))

    def on_train_epoch_end(self) -> None:
        print(f"epoch {self.current_epoch}: dice {np.mean(self.dice):.3f}", flush=True)
        self.dice.clear()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 2e-3)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", help="the data folder (this script makes its own volumes)")
    parser.add_argument("--epochs", type=int, default=1000)
    options = parser.parse_args()
    torch.manual_seed(5)
    make_cases(Path("cases"))
    loader = DataLoader(Slabs(Path("cases")), batch_size=8, shuffle=True, drop_last=True)
    trainer = L.Trainer(
        max_epochs=options.epochs,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(SlabNet(), LapLoader(loader))


if __name__ == "__main__":
    main()
