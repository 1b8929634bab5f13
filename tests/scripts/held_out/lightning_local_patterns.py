"""Lightning on local binary patterns: the network sees texture codes of each photo instead of its colours."""

import argparse
from contextlib import ExitStack
from pathlib import Path

import lightning as L
import numpy as np
import torch
from PIL import Image
from stopwatch import lap
from torch import nn
from torch.utils.data import DataLoader, Dataset

RING = [(-1, -1), (-1, 0), (-1, 1), (0, 1), (1, 1), (1, 0), (1, -1), (0, -1)]


class LocalBinaryPatterns:
    """Three radii; the fraction of each of 8 bits in cells of 8 x 8 pixels."""

    def __init__(self, radii=(1, 2, 4), cell=8):
        self.radii, self.cell = radii, cell

    def __call__(self, grey):
        planes = []
        rows, columns = (size // self.cell * self.cell for size in grey.shape)
        for radius in self.radii:
            padded = np.pad(grey, radius, mode="reflect")
            for dy, dx in RING:
                y, x = radius + dy * radius, radius + dx * radius
                neighbour = padded[y : y + grey.shape[0], x : x + grey.shape[1]]
                bit = (neighbour >= grey).astype(np.float32)[:rows, :columns]
                cells = bit.reshape(rows // self.cell, self.cell, columns // self.cell, self.cell)
                planes.append(cells.mean(axis=(1, 3)))
        return np.stack(planes)


class Textures(Dataset):
    def __init__(self, root):
        self.files = sorted(root.glob("*/*.[jJ]*"))
        self.names = sorted({file.parent.name for file in self.files})
        self.patterns = LocalBinaryPatterns()

    def __len__(self):
        return 800

    def __getitem__(self, index):
        file = self.files[index % len(self.files)]
        with lap("decode"):
            grey = np.asarray(Image.open(file).convert("L").resize((480, 360)), dtype=np.int16)
        with lap("transform"):
            codes = self.patterns(grey)
        return torch.from_numpy(codes), self.names.index(file.parent.name)


class TextureNet(L.LightningModule):
    def __init__(self, classes):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(24, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU()
        )
        self.head = nn.Linear(64, classes)
        self.laps = ExitStack()

    def on_train_batch_start(self, batch, batch_idx):
        self.laps.close()
        self.laps.enter_context(lap("compute"))

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.laps.close()
        self.laps.enter_context(lap("wait"))

    def training_step(self, batch, batch_idx):
        codes, labels = batch
        loss = nn.functional.cross_entropy(self.head(self.body(codes).mean((2, 3))), labels)
        self.log("loss", loss, prog_bar=True)
        return loss

    def on_train_epoch_end(self):
        print(f"epoch {self.current_epoch}: {self.trainer.callback_metrics['loss']:.3f}", flush=True)

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 30)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--out", default="runs/lightning_local_patterns")
    options = parser.parse_args()
    torch.set_num_threads(1)
    textures = Textures(options.data / "photos")
    loader = DataLoader(textures, batch_size=16, shuffle=True, num_workers=1, persistent_workers=True)
    trainer = L.Trainer(
        max_epochs=options.epochs,
        accelerator="cpu",
        default_root_dir=options.out,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(TextureNet(len(textures.names)), loader)
