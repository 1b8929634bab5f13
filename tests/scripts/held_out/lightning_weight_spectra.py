"""Lightning: do the weights' spectra grow heavy tails? A callback measures them as the network learns (after Martin
and Mahoney, who judge networks by the power law of their singular values)."""

import argparse
import csv
import os
from contextlib import ExitStack
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before NumPy is loaded

import lightning as L  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from PIL import Image  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from stopwatch import lap  # noqa: E402


def spectrum(weight):
    """Eigenvalues of the correlation matrix, the largest first."""
    matrix = weight.detach().flatten(1).numpy().astype(np.float64)
    return np.linalg.svd(matrix, compute_uv=False) ** 2 / matrix.shape[1]


def tail_exponent(values):
    """The power law that fits best, of all places where the tail may begin (Clauset et al.)."""
    best = (np.inf, 0.0)
    ordered = np.sort(values)
    for start in range(0, len(ordered) - 8, 4):
        tail = ordered[start:]
        alpha = 1 + len(tail) / max(np.log(tail / tail[0]).sum(), 1e-9)
        fitted = 1 - (tail / tail[0]) ** (1 - alpha)
        distance = np.abs(fitted - np.arange(len(tail)) / len(tail)).max()
        best = min(best, (distance, alpha))
    return best[1]


class WeightSpectra(L.Callback):
    def __init__(self, file):
        self.file, self.laps = file, ExitStack()

    def turn(self, name=None):
        self.laps.close()
        if name:
            self.laps.enter_context(lap(name))

    def on_train_start(self, trainer, module):
        self.table = csv.writer(self.file.open("w", newline="", buffering=1))
        self.table.writerow(["step", "layer", "alpha", "largest", "stable_rank"])

    def on_train_epoch_start(self, trainer, module):
        self.turn("wait")

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        self.turn("compute")

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.turn("own")
        for name, weight in module.named_parameters():
            if weight.ndim > 1 and min(weight.flatten(1).shape) >= 32:
                values = spectrum(weight)
                row = tail_exponent(values), values[0], values.sum() / values[0]
                self.table.writerow([trainer.global_step, name, *(f"{number:.5f}" for number in row)])
        self.turn("wait")

    def on_train_epoch_end(self, trainer, module):
        self.turn()
        print(f"epoch {trainer.current_epoch}: {trainer.callback_metrics}", flush=True)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.mix = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.SiLU())

    def forward(self, x):
        return x + self.mix(x)


class Classifier(L.LightningModule):
    def __init__(self, classes, width=320):
        super().__init__()
        self.net = nn.Sequential(
            nn.Flatten(), nn.Linear(3 * 16 * 16, width), *(Block(width) for _ in range(4)),
            nn.Linear(width, classes),
        )  # fmt: skip

    def training_step(self, batch, batch_idx):
        images, labels = batch
        loss = nn.functional.cross_entropy(self.net(images.float() / 127.5 - 1), labels)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def thumbnails(photos: Path, side=16):
    images, labels = [], []
    for label, folder in enumerate(sorted(photos.iterdir())):
        for file in sorted(folder.glob("*.JPEG"))[:100]:
            image = Image.open(file)
            image.draft("RGB", (side, side))
            images.append(np.asarray(image.convert("RGB").resize((side, side))))
            labels.append(label)
    return TensorDataset(torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2), torch.tensor(labels))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/lightning_weight_spectra"))
    parser.add_argument("--epochs", type=int, default=60)
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    data = thumbnails(options.data / "photos")
    trainer = L.Trainer(
        max_epochs=options.epochs,
        accelerator="cpu",
        callbacks=[WeightSpectra(options.out / "spectra.csv")],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Classifier(10), DataLoader(data, batch_size=32, shuffle=True, drop_last=True))
