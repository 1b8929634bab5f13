"fastai: wear of a machine from its sensors, trained as the records come in. Is what comes in still what it was?"

import argparse
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch
from fastai.callback.core import Callback
from fastai.callback.progress import ProgressCallback
from fastai.data.core import DataLoaders
from fastai.data.load import DataLoader
from fastai.learner import Learner
from fastai.optimizer import Adam
from scipy.stats import ks_2samp
from torch import nn

from stopwatch import lap

SENSORS = 36


class Plant:
    "A year of records in order of time; some sensors age, and a few are exchanged"

    def __init__(self, count, seed=17):
        rng = np.random.default_rng(seed)
        hidden = np.cumsum(rng.normal(0, 0.03, (count, 6)), 0) + rng.normal(0, 1, (count, 6))
        sensors = np.tanh(hidden @ rng.normal(0, 0.6, (6, SENSORS))) + rng.normal(0, 0.2, (count, SENSORS))
        for sensor in rng.choice(SENSORS, 9, replace=False):
            changed = rng.integers(count // 4, count)
            sensors[changed:, sensor] = 0.8 * sensors[changed:, sensor] + 0.4
        wear = np.abs(hidden[:, :2]).sum(1) + 0.3 * hidden[:, 2] * hidden[:, 3]
        self.sensors = torch.tensor(sensors, dtype=torch.float32)
        self.wear = torch.tensor(wear[:, None], dtype=torch.float32)

    def __len__(self):
        return len(self.wear)

    def __getitem__(self, index):
        return self.sensors[index], self.wear[index]


class Regressor(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.norm = nn.BatchNorm1d(SENSORS)
        self.body = nn.Sequential(
            nn.Linear(SENSORS, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, width // 4)
        )
        self.head = nn.Linear(width // 4, 1)

    def forward(self, sensors):
        self.features = self.body(self.norm(sensors))
        return self.head(self.features.relu())


class Laps(Callback):
    order, stack = 60, ExitStack()

    def turn(self, name=None):
        self.stack.close()
        if name and self.training:
            self.stack.enter_context(lap(name))

    def before_batch(self):
        self.turn("compute")

    def after_step(self):
        self.turn("own")

    def after_batch(self):
        self.turn("wait")

    def after_train(self):
        self.turn()


class DriftAlarm(Callback):
    "Kolmogorov and Smirnov's test of each column, of a window of late against the first records"

    order = 65

    def __init__(self, file, reference=400, window=300, level=1e-4):
        self.file, self.reference, self.window, self.level = file, reference, window, level
        self.first, self.late = [], []

    def drifted(self):
        first, late = np.concatenate(self.first), np.concatenate(self.late)
        return [k for k in range(first.shape[1]) if ks_2samp(first[:, k], late[:, k]).pvalue < self.level]

    def after_step(self):
        rows = self.xb[0].numpy()
        if sum(map(len, self.first)) < self.reference:
            self.first.append(rows)
            return
        self.late.append(rows)
        while sum(map(len, self.late)) - len(self.late[0]) >= self.window:
            del self.late[0]
        columns = self.drifted()
        with self.file.open("a") as file:
            print(self.epoch, self.iter, f"{self.loss.item():.4f}", len(columns), *columns, sep="\t", file=file)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", help="not used: the plant is made up")
    parser.add_argument("--out", type=Path, default=Path("runs/fastai_drift_alarm"))
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--records", type=int, default=60_000)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    plant = Plant(args.records)
    cut = int(0.98 * len(plant))
    train = DataLoader(torch.utils.data.Subset(plant, range(cut)), bs=32, shuffle=False, drop_last=True)
    valid = DataLoader(torch.utils.data.Subset(plant, range(cut, len(plant))), bs=256)
    learner = Learner(
        DataLoaders(train, valid, device=torch.device("cpu")), Regressor(), nn.HuberLoss(), opt_func=Adam,
        path=args.out, cbs=[Laps(), DriftAlarm(args.out / "drift.tsv")],
    )  # fmt: skip
    learner.remove_cb(ProgressCallback)
    learner.fit(args.epochs, 1e-3)
    learner.save("wear")


if __name__ == "__main__":
    main()
