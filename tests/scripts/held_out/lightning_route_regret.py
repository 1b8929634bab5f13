"""Lightning: a network sees a map (relief, marsh, tracks) and tells what each cell costs to cross. What counts is not the
error of the costs but whether the route planned by them is a good one: its regret against the best."""

import argparse
import heapq
from contextlib import ExitStack
from pathlib import Path

import lightning as L
import numpy as np
import torch
from lightning.pytorch.loggers import CSVLogger
from scipy.ndimage import gaussian_filter
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stopwatch import lap


class Maps(Dataset):
    def __init__(self, count, side):
        rng = np.random.default_rng(21)
        self.items = []
        for _ in range(count):
            relief = gaussian_filter(rng.normal(size=(side, side)), 3)
            marsh = gaussian_filter(rng.normal(size=(side, side)), 2) > 0.1
            tracks = np.zeros((side, side), bool)
            tracks[rng.integers(side)] = tracks[:, rng.integers(side)] = True
            slope = np.hypot(*np.gradient(relief / relief.std()))
            cost = 1 + 4 * slope + 6 * marsh
            cost[tracks] = 0.5
            sheet = np.stack([relief / relief.std(), marsh, tracks]) + rng.normal(0, 0.1, (3, side, side))
            self.items.append((sheet.astype(np.float32), cost.astype(np.float32)))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]


def plan(cost):
    """The cheapest route from the upper left to the lower right corner."""
    height, width = len(cost), len(cost[0])
    best, before, queue = {(0, 0): cost[0][0]}, {}, [(cost[0][0], (0, 0))]
    while queue:
        spent, (y, x) = heapq.heappop(queue)
        if (y, x) == (height - 1, width - 1):
            break
        if spent > best[y, x]:
            continue
        for v, u in ((y - 1, x), (y + 1, x), (y, x - 1), (y, x + 1)):
            if 0 <= v < height and 0 <= u < width:
                total = spent + cost[v][u]
                if total < best.get((v, u), float("inf")):
                    best[v, u], before[v, u] = total, (y, x)
                    heapq.heappush(queue, (total, (v, u)))
    cell, route = (height - 1, width - 1), [(height - 1, width - 1)]
    while cell != (0, 0):
        cell = before[cell]
        route.append(cell)
    return route


class CostMap(L.LightningModule):
    def __init__(self, width=16):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 3, padding=2, dilation=2), nn.ReLU(),
            nn.Conv2d(width, 1, 3, padding=1), nn.Softplus(),
        )  # fmt: skip

    def training_step(self, batch, index):
        sheets, costs = batch
        guess = self.net(sheets).squeeze(1) + 0.1
        loss = nn.functional.smooth_l1_loss(guess.log(), costs.log())
        self.log("loss", loss.detach())
        return {"loss": loss, "guess": guess.detach()}

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=2e-3)


class Regret(L.Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        regrets = []
        for guess, cost in zip(outputs["guess"].tolist(), batch[1].tolist()):
            ours = sum(cost[y][x] for y, x in plan(guess))
            least = sum(cost[y][x] for y, x in plan(cost))
            regrets.append(ours / least - 1)
        module.log("regret", sum(regrets) / len(regrets))


class Laps(L.Callback):
    open = ExitStack()

    def __init__(self, first):
        self.first = first

    def turn(self, name):
        self.open.close()
        self.open.enter_context(lap(name))

    def on_train_epoch_start(self, trainer, module):
        if self.first:
            self.turn("wait")

    def on_train_batch_start(self, trainer, module, batch, index):
        if self.first:
            self.turn("compute")

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        self.turn("own" if self.first else "wait")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", help="not used: maps are made up")
    parser.add_argument("--out", type=Path, default=Path("runs/lightning_route_regret"))
    parser.add_argument("--epochs", type=int, default=500)
    args = parser.parse_args()
    L.seed_everything(21)
    loader = DataLoader(Maps(600, side=32), batch_size=16, shuffle=True, drop_last=True, num_workers=0)
    trainer = L.Trainer(
        max_epochs=args.epochs, accelerator="cpu", logger=CSVLogger(args.out), default_root_dir=args.out,
        callbacks=[Laps(True), Regret(), Laps(False)], enable_progress_bar=False, enable_model_summary=False,
        log_every_n_steps=10,
    )  # fmt: skip
    trainer.fit(CostMap(), loader)


if __name__ == "__main__":
    main()
