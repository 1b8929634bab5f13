"""Who walks? Windows of accelerometer and gyroscope recordings, with pandas features, through a 1-D network."""

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stopwatch import lap, timed

CHANNELS = ["ax", "ay", "az", "gx", "gy", "gz"]
RATE = 50


@dataclass
class Recording:
    walker: int
    table: pd.DataFrame


def imitate_recordings(walkers: int, each: int, seconds: int, seed=24):
    """Each walker has a pace, a stride and a way to hold the phone; recordings differ in drift and noise."""
    rng = np.random.default_rng(seed)
    recordings = []
    for walker in range(walkers):
        pace = 1.5 + 0.08 * walker + 0.02 * rng.standard_normal()
        weights = rng.standard_normal((4, len(CHANNELS))) / np.arange(1, 5)[:, None]
        for _ in range(each):
            time = np.arange(seconds * RATE) / RATE
            phase = 2 * np.pi * pace * time + 0.2 * np.cumsum(rng.standard_normal(len(time))) / RATE
            waves = np.sin(phase[:, None] * np.arange(1, 5))
            values = waves @ weights + 0.4 * rng.standard_normal((len(time), len(CHANNELS)))
            recordings.append(Recording(walker, pd.DataFrame(values, columns=CHANNELS)))
    return recordings


def crossings(values):
    """How often a window changes its sign about its mean."""
    return np.count_nonzero(np.diff(np.signbit(values - values.mean())))


class GaitWindows(Dataset):
    def __init__(self, recordings, length, window=6 * RATE, width=25, train=True):
        self.recordings, self.length, self.window, self.width, self.train = recordings, length, window, width, train

    def __len__(self):
        return self.length

    def jitter(self, table):
        """A little faster or slower, a little louder or softer, and some noise."""
        speed = 1 + 0.1 * (torch.rand(()).item() - 0.5)
        old = np.arange(len(table))
        new = np.linspace(0, (len(table) - 1) * min(1.0, speed), len(table))
        gain = 1 + 0.2 * (torch.rand(len(CHANNELS)).numpy() - 0.5)
        noise = 0.05 * torch.randn(len(table), len(CHANNELS)).numpy()
        values = np.stack([np.interp(new, old, table[name].to_numpy()) for name in CHANNELS], 1)
        return pd.DataFrame(values * gain + noise, columns=CHANNELS)

    def features(self, table):
        rolling = table.rolling(self.width, min_periods=2)
        parts = {
            "raw": table,
            "mean": rolling.mean(),
            "std": rolling.std(),
            "peak": rolling.quantile(0.9),
            "slow": table.ewm(span=2 * self.width).mean(),
            "slope": table.diff(),
            "crossings": rolling.apply(crossings, raw=True),
        }
        joined = pd.concat(parts, axis=1).bfill().fillna(0.0)
        return (joined - joined.mean()) / (joined.std() + 1e-6)

    def __getitem__(self, index):
        recording = self.recordings[index % len(self.recordings)]
        start = int(torch.randint(len(recording.table) - self.window, ()))
        table = recording.table.iloc[start : start + self.window].reset_index(drop=True)
        with lap("transform"):
            if self.train:
                table = self.jitter(table)
            values = self.features(table).to_numpy(np.float32)
        return torch.from_numpy(np.ascontiguousarray(values.T)), recording.walker


class GaitNet(nn.Module):
    def __init__(self, inputs, walkers, width=48):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(inputs, width, 7, stride=2),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.Conv1d(width, width, 5, stride=2),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.Conv1d(width, width, 5, stride=2),
            nn.ReLU(),
            nn.AdaptiveMaxPool1d(1),
            nn.Flatten(),
            nn.Dropout(0.2),
            nn.Linear(width, walkers),
        )

    def forward(self, windows):
        return self.net(windows)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path, help="its photos are not used, only their number of classes")
    parser.add_argument("--out", type=Path, default=Path("runs/gait_windows_pandas"))
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    torch.manual_seed(24)
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)

    walkers = len([path for path in (args.data / "photos").iterdir() if path.is_dir()])
    windows = GaitWindows(imitate_recordings(walkers, each=8, seconds=60), length=50 * args.batch_size)
    loader = DataLoader(
        windows, args.batch_size, shuffle=True, num_workers=args.workers, persistent_workers=True, drop_last=True
    )
    model = GaitNet(7 * len(CHANNELS), walkers)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    for epoch in range(args.epochs):
        model.train()
        total, right = 0.0, 0
        for step, (inputs, targets) in enumerate(timed(loader, "wait"), start=1):
            with lap("compute"):
                scores = model(inputs)
                loss = nn.functional.cross_entropy(scores, targets)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
            total += loss.item()
            right += (scores.argmax(1) == targets).sum().item()
            if step % 10 == 0:
                print(f"[{epoch}:{step}] loss {total / step:.4f}", flush=True)
        schedule.step()
        torch.save(model.state_dict(), args.out / "gait.pt")
        print(f"epoch {epoch}: {right / len(windows):.1%} of the walkers known", flush=True)


if __name__ == "__main__":
    main()
