"""fastai: will it rain tomorrow, at ten stations? What the network says is not yet a probability, so a step function is
kept for each station that turns scores into shares of rainy days (isotonic regression over the last forecasts)."""

import argparse
import bisect
import csv
from collections import deque
from pathlib import Path

import torch
from fastai.callback.core import Callback
from fastai.callback.tracker import SaveModelCallback
from fastai.data.core import DataLoaders
from fastai.learner import Learner
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from stopwatch import lap, timed

STATIONS, READINGS = 10, 40


def weather(days, seed=6):
    """Pressure, wind and the like wander from day to day; each station has a temper of its own."""
    torch.manual_seed(seed)
    state, rows = torch.zeros(READINGS), []
    for _ in range(days):
        state = 0.85 * state + 0.5 * torch.randn(READINGS)
        rows.append(state)
    readings = torch.stack(rows)
    temper = torch.randn(READINGS, STATIONS) / 3
    chance = (readings @ temper + (readings[:, :STATIONS] * readings[:, -STATIONS:]) - 0.6).sigmoid()
    return readings, (torch.rand(days, STATIONS) < chance).float()


class Steps:
    """A rising step function from scores to shares, by pooling neighbours that are in the wrong order."""

    def __init__(self, window):
        self.pairs = deque(maxlen=window)
        self.edges, self.shares = [], []

    def fit(self):
        edges, weights, shares = [], [], []
        for score, rain in sorted(self.pairs):
            edges.append(score)
            weights.append(1)
            shares.append(rain)
            while len(shares) > 1 and shares[-2] >= shares[-1]:
                weight = weights[-2] + weights[-1]
                shares[-2] = (weights[-2] * shares[-2] + weights[-1] * shares[-1]) / weight
                weights[-2] = weight
                del edges[-1], weights[-1], shares[-1]
        self.edges, self.shares = edges, shares

    def __call__(self, score):
        return self.shares[max(0, bisect.bisect_right(self.edges, score) - 1)] if self.edges else 0.5


class Reliability(Callback):
    """Brier's score before and after, for each batch."""

    order = 65

    def __init__(self, window):
        self.stations = [Steps(window) for _ in range(STATIONS)]
        self.rows = []

    def after_batch(self):
        if not self.training:
            return
        with lap("own"):
            chances, rain = self.pred.detach().sigmoid(), self.yb[0]
            before = (chances - rain).square().mean().item()
            after = 0.0
            for steps, scores, truths in zip(self.stations, chances.t().tolist(), rain.t().tolist()):
                after += sum((steps(score) - truth) ** 2 for score, truth in zip(scores, truths)) / len(scores)
                steps.pairs.extend(zip(scores, truths))
                steps.fit()
            self.rows.append((self.train_iter, f"{before:.4f}", f"{after / STATIONS:.4f}"))
            if len(self.rows) == 100:
                with open(self.learn.path / "brier.csv", "a", newline="") as file:
                    csv.writer(file).writerows(self.rows)
                self.rows.clear()
                print(f"step {self.train_iter}: Brier {before:.4f}, {after / STATIONS:.4f} by steps", flush=True)


class Computing(Callback):
    order = -50

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


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", help="not used: the weather is made up")
    parser.add_argument("--out", type=Path, default=Path("runs/fastai_reliability_steps"))
    parser.add_argument("--epochs", type=int, default=400)
    parser.add_argument("--window", type=int, default=2500)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    readings, rain = weather(9000)
    train = TimedLoader(TensorDataset(readings[:8000], rain[:8000]), batch_size=48, shuffle=True, drop_last=True)
    valid = DataLoader(TensorDataset(readings[8000:], rain[8000:]), batch_size=500)
    body = [nn.Linear(READINGS, 128), nn.BatchNorm1d(128), nn.SiLU(), nn.Linear(128, 128), nn.SiLU()]
    learner = Learner(
        DataLoaders(train, valid, device=torch.device("cpu")), nn.Sequential(*body, nn.Linear(128, STATIONS)),
        loss_func=nn.BCEWithLogitsLoss(), path=args.out,
        cbs=[Computing(), Reliability(args.window), SaveModelCallback(fname="rain")],
    )  # fmt: skip
    with learner.no_bar(), learner.no_logging():
        learner.fit(args.epochs, lr=1e-3)


if __name__ == "__main__":
    main()
