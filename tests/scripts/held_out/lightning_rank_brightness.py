"""Lightning, learning to rank photos by brightness; how well the order fits is followed by Kendall's tau."""

import argparse
from collections import deque
from contextlib import ExitStack
from pathlib import Path

import lightning as L
import numpy as np
import torch
from lightning.pytorch.loggers import CSVLogger
from PIL import Image
from stopwatch import lap
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchvision.models.mobilenetv3 import InvertedResidual, InvertedResidualConfig


def kendall_tau(pairs):
    """(concordant - discordant) / all, over every two of the pairs (predicted, true)."""
    concordant = discordant = 0
    for i, (predicted, true) in enumerate(pairs):
        for other_predicted, other_true in pairs[:i]:
            sign = (predicted - other_predicted) * (true - other_true)
            if sign > 0:
                concordant += 1
            elif sign < 0:
                discordant += 1
    return (concordant - discordant) / max(1, len(pairs) * (len(pairs) - 1) // 2)


class Ranker(L.LightningModule):
    def __init__(self, window=1500):
        super().__init__()
        rows = [
            InvertedResidualConfig(16, 3, 48, 24, False, "RE", 2, 1, 1.0),
            InvertedResidualConfig(24, 3, 72, 24, True, "HS", 1, 1, 1.0),
        ]
        blocks = [InvertedResidual(row, nn.BatchNorm2d) for row in rows]
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.Hardswish(), *blocks)
        self.score = nn.Linear(24, 1)
        self.seen = deque(maxlen=window)
        self.laps = ExitStack()

    def forward(self, images):
        return self.score(self.stem(images).mean((2, 3))).squeeze(1)

    def training_step(self, batch, batch_idx):
        images, brightness = batch
        scores = self(images)
        # every two of the batch: the brighter one should have the higher score
        margin = scores[:, None] - scores[None, :]
        brighter = (brightness[:, None] > brightness[None, :]).float()
        loss = (nn.functional.softplus(-margin) * brighter).sum() / brighter.sum().clamp_min(1)
        return {"loss": loss, "scores": scores.detach(), "brightness": brightness}

    def on_train_batch_start(self, batch, batch_idx):
        self.laps.close()
        self.laps.enter_context(lap("compute"))

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.laps.close()
        with lap("own"):
            self.seen.extend(zip(outputs["scores"].tolist(), outputs["brightness"].tolist()))
            tau = kendall_tau(list(self.seen))
        self.laps.enter_context(lap("wait"))
        self.log_dict({"tau": tau, "loss": outputs["loss"]})

    def on_train_epoch_end(self):
        shown = {name: round(float(value), 3) for name, value in self.trainer.callback_metrics.items()}
        print(f"epoch {self.current_epoch}: {shown}", flush=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=2e-3)


def load(root, side=96, count=640):
    files = sorted(root.glob("*/*.[jJ]*"))
    images, brightness = [], []
    for file in files[:: max(1, len(files) // count)]:
        with Image.open(file) as photo:
            photo.draft("RGB", (side, side))
            pixels = np.asarray(photo.convert("RGB").resize((side, side)), dtype=np.float32) / 255
        brightness.append(float(pixels.mean()))
        images.append(torch.from_numpy(pixels - pixels.mean(axis=(0, 1)) * 0.5).permute(2, 0, 1).contiguous())
    repeats = -(-count // len(images))
    return TensorDataset(torch.stack(images).repeat(repeats, 1, 1, 1), torch.tensor(brightness).repeat(repeats))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--epochs", type=int, default=120)
    parser.add_argument("--out", default="runs/lightning_rank_brightness")
    options = parser.parse_args()
    loader = DataLoader(load(options.data / "photos"), batch_size=32, shuffle=True, drop_last=True)
    trainer = L.Trainer(
        max_epochs=options.epochs,
        accelerator="cpu",
        logger=CSVLogger(options.out),
        log_every_n_steps=20,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Ranker(), loader)
