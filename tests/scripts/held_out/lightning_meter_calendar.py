"""Lightning: tomorrow's load of a house from six days of its meter. Each network operator exports readings in a format
of its own, so rows are kept as they came and are read when a window is cut."""

import argparse
import math
import random
from contextlib import ExitStack
from datetime import datetime, timedelta

import lightning as L
import torch
from dateutil import parser as dates
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stopwatch import lap

OPERATORS = ("%d.%m.%Y %H:%M", "%Y-%m-%dT%H:%M:%S", "%a %d %b %Y, %I:%M %p", "%B %d, %Y %H:%M")


def export(house, days, rng):
    """A house's rows: moment and kWh, with a decimal comma where the operator writes one."""
    style, base, evening = OPERATORS[house % len(OPERATORS)], rng.uniform(0.1, 0.4), rng.uniform(0.3, 1.5)
    start, rows = datetime(2023, 1, 1) + timedelta(days=rng.randrange(300)), []
    for hour in range(24 * days):
        moment = start + timedelta(hours=hour)
        load = base + evening * math.exp(-(((moment.hour - 19) / 3) ** 2)) * (1.3 if moment.weekday() > 4 else 1.0)
        load += 0.4 * base * math.cos(2 * math.pi * moment.timetuple().tm_yday / 365)
        value = f"{max(0.0, load * rng.gauss(1, 0.15)):.3f}"
        rows.append(f"{moment.strftime(style)};{value.replace('.', ',') if house % 2 else value}")
    return rows


class Readings(Dataset):
    def __init__(self, houses, days, past=144, ahead=24):
        rng = random.Random(3)
        self.houses = [export(house, days, rng) for house in range(houses)]
        self.past, self.ahead, self.days = past, ahead, days

    def __len__(self):
        return len(self.houses) * self.days

    def row(self, line, day_first):
        stamp, value = line.split(";")
        moment = dates.parse(stamp, dayfirst=day_first)
        hour, day = 2 * math.pi * moment.hour / 24, 2 * math.pi * moment.timetuple().tm_yday / 365
        weekend = float(moment.weekday() > 4)
        return [float(value.replace(",", ".")), math.sin(hour), math.cos(hour), math.sin(day), math.cos(day), weekend]

    def __getitem__(self, index):
        house = index % len(self.houses)
        rows = self.houses[house]
        start = random.randrange(len(rows) - self.past - self.ahead)
        week = [self.row(line, day_first=house % len(OPERATORS) == 0) for line in rows[start : start + self.past]]
        after = rows[start + self.past : start + self.past + self.ahead]
        target = [float(line.split(";")[1].replace(",", ".")) for line in after]
        return torch.tensor(week).t().contiguous(), torch.tensor(target)


class Forecaster(L.LightningModule):
    def __init__(self, width=32, depth=4, ahead=24):
        super().__init__()
        self.save_hyperparameters()
        layers = [nn.Conv1d(6, width, 1)]
        for level in range(depth):
            layers += [nn.Conv1d(width, width, 3, padding=2**level, dilation=2**level), nn.GELU()]
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(width * 2, ahead)

    def forward(self, week):
        x = self.body(week)
        return self.head(torch.cat([x.mean(2), x[:, :, -1]], 1)) + week[:, 0, -24:]

    def training_step(self, batch, index):
        week, target = batch
        error = self(week) - target
        loss = torch.maximum(0.4 * error, -0.6 * error).mean()
        self.log("pinball", loss)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 50)]


class Laps(L.Callback):
    def __init__(self):
        self.stack = ExitStack()

    def turn(self, name):
        self.stack.close()
        self.stack.enter_context(lap(name))

    def on_train_epoch_start(self, trainer, module):
        self.turn("wait")

    def on_train_batch_start(self, trainer, module, batch, index):
        self.turn("compute")

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        self.turn("wait")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", help="not used: the readings are made up")
    parser.add_argument("--out", default="runs/lightning_meter_calendar")
    parser.add_argument("--epochs", type=int, default=100)
    args = parser.parse_args()
    L.seed_everything(12)
    torch.set_num_threads(1)
    readings = Readings(houses=32, days=90)
    loader = DataLoader(readings, 16, shuffle=True, num_workers=1, persistent_workers=True, drop_last=True)
    trainer = L.Trainer(
        accelerator="cpu", max_epochs=args.epochs, logger=CSVLogger(args.out), log_every_n_steps=20,
        callbacks=[Laps(), ModelCheckpoint(monitor="pinball", filename="best")], default_root_dir=args.out,
        gradient_clip_val=1.0, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Forecaster(), loader)


if __name__ == "__main__":
    main()
