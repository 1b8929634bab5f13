"""fastai: thumbnails by class, and a forecast of where the loss will end up. The loss follows a power law in the number
of steps, so the law is fitted to what has been seen, and a run that will not be worth its time can be ended early."""

import argparse
from pathlib import Path

import numpy as np
import torch
from fastai.callback.core import Callback
from fastai.data.core import DataLoaders
from fastai.learner import Learner
from PIL import Image
from scipy.optimize import curve_fit
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from stopwatch import lap, timed


def thumbnails(root, side, each):
    images, labels = [], []
    for label, folder in enumerate(sorted(root.iterdir())):
        for file in sorted(folder.glob("*.JPEG"))[:each]:
            image = Image.open(file)
            image.draft("RGB", (side, side))
            images.append(np.array(image.convert("RGB").resize((side, side))).transpose(2, 0, 1))
            labels.append(label)
    return torch.from_numpy(np.stack(images)).float() / 127.5 - 1, torch.tensor(labels)


LIMITS = ([0.0, 0.0, 0.02], [10.0, 50.0, 3.0])


def power_law(steps, floor, scale, exponent):
    return floor + scale * (steps + 1.0) ** -exponent


class LossForecast(Callback):
    """Fits the law to resampled losses; the spread of the forecasts tells how far they can be trusted."""

    order = 70

    def __init__(self, horizon, window=400, resamples=10):
        self.horizon, self.window, self.resamples = horizon, window, resamples
        self.losses, self.rng, self.lines = [], np.random.default_rng(3), []

    def forecast(self):
        losses = np.array(self.losses[-self.window :])
        steps = np.arange(len(self.losses) - len(losses), len(self.losses), dtype=float)
        ends = []
        for _ in range(self.resamples):
            rows = np.sort(self.rng.integers(len(losses), size=len(losses)))
            start = (losses.min(), 1.0, 0.3)
            try:
                law, _ = curve_fit(power_law, steps[rows], losses[rows], p0=start, bounds=LIMITS, max_nfev=200)
                ends.append(power_law(self.horizon, *law))
            except RuntimeError:
                continue
        return np.percentile(ends, [10, 50, 90]) if ends else np.full(3, np.nan)

    def after_batch(self):
        if not self.training:
            return
        with lap("own"):
            self.losses.append(float(self.learn.loss))
            if len(self.losses) < 20:
                return
            low, middle, high = self.forecast()
            self.lines.append(f"{len(self.losses)}\t{self.losses[-1]:.4f}\t{low:.4f}\t{middle:.4f}\t{high:.4f}\n")
            if len(self.lines) == 50:
                with open(self.learn.path / "forecast.tsv", "a") as file:
                    file.writelines(self.lines)
                self.lines.clear()
                print(f"step {len(self.losses)}: loss will be {middle:.3f} ({low:.3f} to {high:.3f})", flush=True)


class Computing(Callback):
    order = -100

    def before_batch(self):
        if self.training:
            self.running = lap("compute")
            self.running.__enter__()

    def after_batch(self):
        if self.training:
            self.running.__exit__(None, None, None)


class TimedLoader(DataLoader):
    def __iter__(self):
        yield from timed(super().__iter__(), "wait")


def network(classes):
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 48, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, classes),
    )  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/fastai_loss_forecast"))
    parser.add_argument("--epochs", type=int, default=300)
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    images, labels = thumbnails(args.data / "photos", 32, 120)
    train = TimedLoader(TensorDataset(images[40:], labels[40:]), batch_size=32, shuffle=True, drop_last=True)
    valid = DataLoader(TensorDataset(images[:40], labels[:40]), batch_size=40)
    loaders = DataLoaders(train, valid, device=torch.device("cpu"))
    forecast = LossForecast(horizon=args.epochs * len(train))
    learner = Learner(
        loaders, network(10), loss_func=nn.CrossEntropyLoss(), cbs=[Computing(), forecast], path=args.out
    )
    with learner.no_logging():
        learner.fit(args.epochs, lr=1e-3)


if __name__ == "__main__":
    main()
