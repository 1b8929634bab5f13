"""Ignite: cells under a microscope, found by a small U-Net, and a census of them: how many there are, how large, how
round, how ragged and how long, by the network and by the truth."""

import argparse
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch
from ignite.engine import Engine, Events
from ignite.handlers import ModelCheckpoint
from ignite.metrics import RunningAverage
from scipy.ndimage import gaussian_filter
from skimage.measure import label, regionprops_table
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from stopwatch import lap


def slides(count, side, seed=9):
    """Cells are ellipses with a wavy rim; the stain is uneven and the camera noisy."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:side, :side]
    images, masks = np.zeros((count, 1, side, side), np.float32), np.zeros((count, 1, side, side), np.float32)
    for k in range(count):
        for cy, cx in rng.uniform(4, side - 4, (rng.integers(7, 12), 2)):
            a, b, turn = rng.uniform(4, 9), rng.uniform(3, 7), rng.uniform(0, np.pi)
            u = (x - cx) * np.cos(turn) + (y - cy) * np.sin(turn)
            v = (y - cy) * np.cos(turn) - (x - cx) * np.sin(turn)
            rim = 1 + 0.15 * np.sin(rng.integers(3, 7) * np.arctan2(v, u))
            inside = (u / a) ** 2 + (v / b) ** 2 < rim
            masks[k, 0, inside] = 1
            images[k, 0] += inside * rng.uniform(0.3, 0.6)
        light = gaussian_filter(rng.normal(0, 1, (side, side)), side / 4)
        images[k, 0] = (
            gaussian_filter(images[k, 0], 1) + 0.2 * light / light.std() + rng.normal(0, 0.15, (side, side))
        )
    return torch.from_numpy(images), torch.from_numpy(masks)


def block(inner, outer):
    return nn.Sequential(nn.Conv2d(inner, outer, 3, padding=1), nn.BatchNorm2d(outer), nn.ReLU())


class UNet(nn.Module):
    def __init__(self, width=6):
        super().__init__()
        self.top, self.middle, self.bottom = block(1, width), block(width, 2 * width), block(2 * width, 4 * width)
        self.up, self.out = block(6 * width, 2 * width), block(3 * width, width)
        self.last = nn.Conv2d(width, 1, 1)

    def forward(self, x):
        top = self.top(x)
        middle = self.middle(nn.functional.max_pool2d(top, 2))
        bottom = self.bottom(nn.functional.max_pool2d(middle, 2))
        x = self.up(torch.cat([middle, nn.functional.interpolate(bottom, scale_factor=2)], 1))
        return self.last(self.out(torch.cat([top, nn.functional.interpolate(x, scale_factor=2)], 1)))


TRAITS = ("area", "eccentricity", "solidity", "feret_diameter_max", "mean_intensity")


def count_cells(mask, picture, smallest=12):
    table = regionprops_table(label(mask), intensity_image=picture, properties=TRAITS)
    kept = table["area"] >= smallest
    return kept.sum(), [float(np.mean(table[trait][kept])) if kept.any() else 0.0 for trait in TRAITS]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", help="not used: slides are made up")
    parser.add_argument("--out", type=Path, default=Path("runs/ignite_cell_census"))
    parser.add_argument("--epochs", type=int, default=2000)
    parser.add_argument("--batch-size", type=int, default=8)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(9)
    loader = DataLoader(TensorDataset(*slides(320, 64)), args.batch_size, shuffle=True, drop_last=True)
    model = UNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

    def update(engine, batch):
        with lap("compute"):
            images, masks = batch
            scores = model(images)
            loss = nn.functional.binary_cross_entropy_with_logits(scores, masks)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return {"loss": loss.item(), "found": scores.detach() > 0}

    trainer, waiting = Engine(update), ExitStack()
    RunningAverage(output_transform=lambda out: out["loss"]).attach(trainer, "loss")
    trainer.add_event_handler(Events.GET_BATCH_STARTED, lambda: waiting.enter_context(lap("wait")))
    trainer.add_event_handler(Events.GET_BATCH_COMPLETED, waiting.close)

    @trainer.on(Events.ITERATION_COMPLETED)
    def census(engine):
        with lap("own"):
            images, masks = (part[:, 0].numpy() for part in engine.state.batch)
            found, rows = engine.state.output["found"][:, 0].numpy(), []
            for picture, mask, guess in zip(images, masks, found):
                real, seen = count_cells(mask > 0.5, picture), count_cells(guess, picture)
                rows.append([seen[0] - real[0], *(a - b for a, b in zip(seen[1], real[1]))])
            engine.state.census = np.abs(rows).mean(0)

    @trainer.on(Events.ITERATION_COMPLETED(every=20))
    def tell(engine):
        with lap("own"), open(args.out / "census.tsv", "a") as file:
            print(engine.state.iteration, *np.round(engine.state.census, 4), sep="\t", file=file)
            loss = engine.state.metrics["loss"]
            print(f"{engine.state.iteration}: loss {loss:.4f}, {engine.state.census[0]:.1f} cells off", flush=True)

    saver = ModelCheckpoint(args.out, "cells", n_saved=1, require_empty=False)
    trainer.add_event_handler(Events.EPOCH_COMPLETED(every=5), saver, {"model": model})
    trainer.run(loader, max_epochs=args.epochs)


if __name__ == "__main__":
    main()
