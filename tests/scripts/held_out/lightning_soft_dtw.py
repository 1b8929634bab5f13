"""Lightning: forecasts of a series under the soft-DTW loss of Cuturi and Blondel, an autograd function of our own."""

import argparse
import math
from contextlib import ExitStack
from pathlib import Path

import lightning as L
import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from stopwatch import lap

PAST, FUTURE = 40, 24
INFINITE = float("inf")


class Laps(L.Callback):
    """What the training is at; the loss says so where it works in Python."""

    def __init__(self):
        self.open = ExitStack()

    def turn(self, name):
        self.open.close()
        self.open.enter_context(lap(name))

    def on_train_start(self, *_):
        self.turn("wait")

    def on_train_batch_start(self, *_):
        self.turn("compute")

    def on_train_batch_end(self, *_):
        self.turn("wait")

    def on_train_end(self, *_):
        self.open.close()


laps = Laps()


def accumulate(costs, gamma):
    """The table of soft minima over all paths, one row and one column of infinity before the first."""
    rows, columns = len(costs), len(costs[0])
    table = [[INFINITE] * (columns + 1) for _ in range(rows + 1)]
    table[0][0] = 0.0
    for i in range(1, rows + 1):
        for j in range(1, columns + 1):
            a, b, c = table[i - 1][j - 1], table[i - 1][j], table[i][j - 1]
            low = min(a, b, c)
            total = math.exp((low - a) / gamma) + math.exp((low - b) / gamma) + math.exp((low - c) / gamma)
            table[i][j] = costs[i - 1][j - 1] + low - gamma * math.log(total)
    return table


def alignment(costs, table, gamma):
    """How much each pair of places takes part in the soft path: the gradient by the costs."""
    rows, columns = len(costs), len(costs[0])
    weight = [[0.0] * columns for _ in range(rows)]
    weight[-1][-1] = 1.0
    for i in range(rows - 1, -1, -1):
        for j in range(columns - 1, -1, -1):
            here, total = table[i + 1][j + 1], weight[i][j]
            for k, m in ((i + 1, j), (i, j + 1), (i + 1, j + 1)):
                if k < rows and m < columns:
                    total += weight[k][m] * math.exp((table[k + 1][m + 1] - costs[k][m] - here) / gamma)
            weight[i][j] = total
    return weight


class SoftDTW(torch.autograd.Function):
    @staticmethod
    def forward(ctx, costs, gamma):
        laps.turn("own")
        ctx.costs, ctx.gamma = costs.double().tolist(), gamma
        ctx.tables = [accumulate(one, gamma) for one in ctx.costs]
        value = costs.new_tensor([table[-1][-1] for table in ctx.tables])
        laps.turn("compute")
        return value

    @staticmethod
    def backward(ctx, gradient):
        laps.turn("own")
        weights = [alignment(one, table, ctx.gamma) for one, table in zip(ctx.costs, ctx.tables)]
        weights = gradient.new_tensor(weights)
        laps.turn("compute")
        return weights * gradient[:, None, None], None


class Forecaster(L.LightningModule):
    def __init__(self, width=64, gamma=0.1):
        super().__init__()
        self.gamma = gamma
        self.reader = nn.GRU(3, width, batch_first=True)
        self.head = nn.Sequential(nn.Linear(width, 128), nn.ReLU(), nn.Linear(128, 3 * FUTURE))

    def training_step(self, batch, _):
        (series,) = batch
        past, future = series[:, :PAST], series[:, PAST:]
        _, state = self.reader(past)
        forecast = self.head(state[0]).view(-1, FUTURE, 3) + past[:, -1:]
        loss = SoftDTW.apply(torch.cdist(forecast, future).square(), self.gamma).mean()
        self.log("loss", loss)
        return loss

    def on_train_epoch_end(self):
        print(f"epoch {self.current_epoch}: {self.trainer.callback_metrics['loss']:.3f}", flush=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=2e-3)


def series(photos: Path, each=40):
    """Four rows of each photograph, as series of three colours."""
    found = []
    for folder in sorted(p for p in photos.iterdir() if p.is_dir()):
        for file in sorted(folder.iterdir())[:each]:
            image = Image.open(file)
            image.draft("RGB", (128, 128))
            pixels = np.asarray(image.convert("RGB").resize((PAST + FUTURE, 16)), np.float32) / 127.5 - 1
            found.extend(pixels[::4])
    return torch.from_numpy(np.stack(found))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/lightning_soft_dtw"))
    parser.add_argument("--epochs", type=int, default=40)
    args = parser.parse_args()
    L.seed_everything(2, verbose=False)
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    loader = DataLoader(TensorDataset(series(args.data / "photos")), batch_size=32, shuffle=True, drop_last=True)
    quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    trainer = L.Trainer(
        accelerator="cpu", max_epochs=args.epochs, callbacks=[laps], default_root_dir=args.out, **quiet
    )
    trainer.fit(Forecaster(), loader)
    trainer.save_checkpoint(args.out / "forecaster.ckpt")


if __name__ == "__main__":
    main()
