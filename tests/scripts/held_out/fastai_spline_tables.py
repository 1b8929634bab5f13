"""fastai: a Kolmogorov-Arnold network on a table: each edge between two layers is a spline of its own. The rows come
from formulas with noise, so that one can see which of the formulas' bends the splines find."""

import argparse
import math
import random
from pathlib import Path

import fastai.callback.schedule  # noqa: F401, for fit_one_cycle
import torch
from fastai.callback.core import Callback
from fastai.callback.tracker import SaveModelCallback
from fastai.callback.training import GradientClip
from fastai.data.core import DataLoaders
from fastai.learner import Learner
from fastai.losses import MSELossFlat
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stopwatch import lap, timed

COLUMNS = 10


class Formulas(Dataset):
    """Friedman's first formula and one with kinks; a row is made when it is asked for."""

    def __init__(self, count, seed):
        self.count, self.seed = count, seed

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        rng = random.Random(self.seed * 1_000_003 + index)
        x = [rng.random() for _ in range(COLUMNS)]
        smooth = 10 * math.sin(math.pi * x[0] * x[1]) + 20 * (x[2] - 0.5) ** 2 + 10 * x[3] + 5 * x[4]
        kinks = 6 * abs(x[5] - 0.4) + 4 * max(0.0, x[6] - x[7]) + math.floor(4 * x[8])
        return torch.tensor(x) * 2 - 1, torch.tensor([(smooth - 14) / 5, kinks - 4]) + rng.gauss(0, 0.1)


class SplineLayer(nn.Module):
    """B-splines by Cox and de Boor on an even grid, and a plain path beside them."""

    def __init__(self, inner, outer, pieces=8, degree=3):
        super().__init__()
        self.degree = degree
        knots = torch.arange(-degree, pieces + degree + 1) * (2.4 / pieces) - 1.2
        self.register_buffer("knots", knots)
        self.plain = nn.Linear(inner, outer)
        self.weight = nn.Parameter(torch.randn(outer, inner, pieces + degree) * 0.1 / math.sqrt(inner))

    def bases(self, x):
        x, t = x[..., None], self.knots
        out = ((x >= t[:-1]) & (x < t[1:])).to(x.dtype)
        for k in range(1, self.degree + 1):
            left = (x - t[: -k - 1]) / (t[k:-1] - t[: -k - 1]) * out[..., :-1]
            out = left + (t[k + 1 :] - x) / (t[k + 1 :] - t[1:-k]) * out[..., 1:]
        return out

    def forward(self, x):
        bases = self.bases(x)
        self.used = bases.detach().sum(0).gt(0.5).float().mean()
        return self.plain(nn.functional.silu(x)) + nn.functional.linear(bases.flatten(1), self.weight.flatten(1))


class Watch(Callback):
    """How rough the splines are, and how many of their pieces are used."""

    order = 70

    @torch.no_grad()
    def after_step(self):
        with lap("own"):
            layers = [layer for layer in self.learn.model if isinstance(layer, SplineLayer)]
            rough = [layer.weight.diff(n=2).abs().mean().item() for layer in layers]
            used = [layer.used.item() for layer in layers]
            with open(self.learn.path / "splines.tsv", "a") as file:
                print(self.train_iter, *(f"{value:.4f}" for value in rough + used), sep="\t", file=file)
            if self.train_iter % 20 == 0:
                print(f"step {self.train_iter}: loss {self.learn.loss.item():.4f}", flush=True)


class Computing(Callback):
    order = -50

    def before_batch(self):
        if self.training:
            self.running = lap("compute")
            self.running.__enter__()

    def after_step(self):
        self.running.__exit__(None, None, None)


class TimedLoader(DataLoader):
    def __iter__(self):
        yield from timed(super().__iter__(), "wait")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", help="not used: rows are made up")
    parser.add_argument("--out", type=Path, default=Path("runs/fastai_spline_tables"))
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--width", type=int, default=128)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    train = TimedLoader(Formulas(40_000, 1), batch_size=320, shuffle=True, num_workers=1, drop_last=True)
    valid = DataLoader(Formulas(800, 2), batch_size=400)
    model = nn.Sequential(
        SplineLayer(COLUMNS, args.width), SplineLayer(args.width, args.width), SplineLayer(args.width, args.width),
        SplineLayer(args.width, 2),
    )  # fmt: skip
    learner = Learner(
        DataLoaders(train, valid, device=torch.device("cpu")), model, loss_func=MSELossFlat(), path=args.out,
        cbs=[Computing(), Watch(), GradientClip(1.0), SaveModelCallback(fname="splines")],
    )  # fmt: skip
    with learner.no_bar(), learner.no_logging():
        learner.fit_one_cycle(args.epochs, 2e-3)


if __name__ == "__main__":
    main()
