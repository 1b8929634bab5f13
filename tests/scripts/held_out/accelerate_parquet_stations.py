"""Accelerate: tomorrow's temperature from the last two days at a weather station. The archive is one Parquet file, a
row for each station and hour, a row group for each station; convolutions read 48 hours and forecast 24."""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stopwatch import lap, timed

INPUTS = ["temperature", "dew_point", "pressure", "wind_u", "wind_v", "cloud", "rain", "radiation"]
WEATHER = np.array(["clear", "cloudy", "rain", "snow", "fog", "thunder"])


def write_archive(file, stations, hours):
    rng = np.random.default_rng(21)
    times = pd.date_range("2024-01-01", periods=hours, freq="h")
    day, year = 2 * np.pi * np.arange(hours) / 24, 2 * np.pi * np.arange(hours) / 8766
    writer = None
    for number in range(stations):
        front = np.convolve(rng.normal(size=hours + 47), np.hanning(48) / 8, "valid")
        base = rng.uniform(5, 15) - 10 * np.cos(year) - rng.uniform(2, 6) * np.cos(day) + 3 * front
        frame = pd.DataFrame({"station": f"station-{number:04d}", "time": times, "temperature": base})
        for k, name in enumerate(INPUTS[1:]):
            frame[name] = 0.5 * np.roll(base, k) + front + rng.normal(0, 1, hours)
        frame["weather"] = WEATHER[np.digitize(front, [-2, -1, 0, 1, 2])]
        frame["observer"] = [f"shift {hour // 8 % 3} of {number}" for hour in range(hours)]
        table = pa.Table.from_pandas(frame.round(2), preserve_index=False)
        writer = writer or pq.ParquetWriter(file, table.schema, compression="zstd")
        writer.write_table(table)
    writer.close()


class Windows(Dataset):
    def __init__(self, file, past=48, ahead=24):
        self.file, self.past, self.ahead = file, past, ahead
        footer = pq.ParquetFile(file).metadata
        self.groups = [footer.row_group(k).num_rows for k in range(footer.num_row_groups)]
        self.each = 40

    def __len__(self):
        return len(self.groups) * self.each

    def window(self, group, start):
        with pq.ParquetFile(self.file) as archive:
            frame = archive.read_row_group(group).to_pandas()
        frame = frame.sort_values("time").set_index("time")
        return frame.iloc[start : start + self.past + self.ahead]

    def __getitem__(self, index):
        group = index // self.each
        start = int(torch.randint(self.groups[group] - self.past - self.ahead, ()))
        frame = self.window(group, start)
        values = torch.from_numpy(frame[INPUTS].to_numpy(np.float32))
        values = (values - values[: self.past].mean(0)) / 10
        hour = torch.from_numpy(frame.index.hour.to_numpy()[: self.past].astype(np.float32)) * (2 * torch.pi / 24)
        past = torch.cat([values[: self.past], hour.sin()[:, None], hour.cos()[:, None]], 1)
        return {"past": past, "ahead": values[self.past :, 0]}


class Forecaster(nn.Module):
    def __init__(self, width=32, ahead=24):
        super().__init__()
        self.past = nn.Sequential(
            nn.Conv1d(len(INPUTS) + 2, width, 6, stride=3), nn.SiLU(), nn.Conv1d(width, width, 5, stride=2), nn.SiLU(),
            nn.AdaptiveAvgPool1d(4), nn.Flatten(), nn.Linear(4 * width, width), nn.SiLU(),
        )  # fmt: skip
        self.head = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 2 * ahead))

    def forward(self, past):
        mean, spread = self.head(self.past(past.transpose(1, 2))).chunk(2, 1)
        return mean, nn.functional.softplus(spread) + 1e-3


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", help="not used: the weather is made up")
    parser.add_argument("--out", type=Path, default=Path("runs/accelerate_parquet_stations"))
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--workers", type=int, default=1)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    write_archive(args.out / "stations.parquet", stations=40, hours=8766)
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True)
    windows = Windows(args.out / "stations.parquet")
    loader = DataLoader(windows, 16, shuffle=True, num_workers=args.workers, persistent_workers=True, drop_last=True)
    model = Forecaster()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    step = 0
    while step < args.steps:
        for batch in timed(loader, "wait"):
            with lap("compute"):
                mean, spread = model(batch["past"])
                loss = nn.functional.gaussian_nll_loss(mean, batch["ahead"], spread**2)
                accelerator.backward(loss)
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            step += 1
            with lap("own"):
                if step % 25 == 0:
                    error = 10 * (mean - batch["ahead"]).abs().mean().item()
                    accelerator.print(f"step {step}: likelihood {-loss.item():.3f}, off by {error:.2f} K", flush=True)
                if step % 500 == 0:
                    accelerator.save_model(model, str(args.out / "forecaster"))


if __name__ == "__main__":
    main()
