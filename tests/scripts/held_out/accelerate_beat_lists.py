"""Accelerate: rhythms from three leads of an electrocardiogram. The recorder exports JSON, a line for each strip."""

import argparse
import json
import math
import random
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stopwatch import lap, timed

RHYTHMS = ("sinus", "bradycardia", "tachycardia", "fibrillation", "bigeminy")
RATE, LEADS, LENGTH = 125, 3, 600


def strip(rhythm, rng):
    """Beats as sums of bells (P, Q, R, S and T), each lead with weights of its own."""
    pace = {"bradycardia": 1.4, "tachycardia": 0.45}.get(rhythm, 0.85)
    waves = ((-0.18, 0.025, 0.12), (-0.03, 0.01, -0.1), (0.0, 0.012, 1.0), (0.03, 0.012, -0.2), (0.25, 0.05, 0.3))
    lead = [[rng.gauss(0, 0.02) for _ in range(LENGTH)] for _ in range(LEADS)]
    at, beat = rng.uniform(0, pace), 0
    while at < LENGTH / RATE:
        for k, (shift, width, height) in enumerate(waves):
            if k == 0 and rhythm == "fibrillation":
                continue
            centre = (at + shift) * RATE
            for n in range(max(0, int(centre - 4 * width * RATE)), min(LENGTH, int(centre + 4 * width * RATE) + 1)):
                bell = height * math.exp(-0.5 * ((n - centre) / (width * RATE)) ** 2)
                for channel in range(LEADS):
                    lead[channel][n] += bell * (1 - 0.3 * channel)
        beat += 1
        early = rhythm == "bigeminy" and beat % 2
        at += pace * (rng.uniform(0.5, 1.6) if rhythm == "fibrillation" else 0.6 if early else rng.gauss(1, 0.03))
    return lead


def record(file, count):
    rng = random.Random(4)
    with open(file, "w") as lines:
        for number in range(count):
            rhythm = RHYTHMS[number % len(RHYTHMS)]
            leads = [[round(value, 4) for value in lead] for lead in strip(rhythm, rng)]
            lines.write(json.dumps({"leads": leads, "rhythm": rhythm, "age": rng.randrange(20, 90)}) + "\n")


class Strips(Dataset):
    def __init__(self, file):
        with open(file) as lines:
            self.strips = [json.loads(line) for line in lines]

    def __len__(self):
        return len(self.strips)

    def __getitem__(self, index):
        strip = self.strips[index]
        return {"leads": strip["leads"], "age": strip["age"] / 100, "rhythm": RHYTHMS.index(strip["rhythm"])}


class Reader(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(LEADS, width, 9, stride=2, padding=4), nn.BatchNorm1d(width), nn.ReLU(),
            nn.Conv1d(width, width, 7, stride=2, padding=3), nn.BatchNorm1d(width), nn.ReLU(),
            nn.Conv1d(width, 2 * width, 5, stride=2, padding=2), nn.ReLU(), nn.AdaptiveMaxPool1d(4), nn.Flatten(),
        )  # fmt: skip
        self.head = nn.Sequential(
            nn.Linear(8 * width + 1, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, len(RHYTHMS))
        )

    def forward(self, signal, age):
        return self.head(torch.cat([self.body(signal), age[:, None]], 1))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", help="not used: the strips are made up")
    parser.add_argument("--out", type=Path, default=Path("runs/accelerate_beat_lists"))
    parser.add_argument("--epochs", type=int, default=400)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    set_seed(4)
    record(args.out / "strips.jsonl", 800)
    accelerator = Accelerator(cpu=True)
    loader = DataLoader(Strips(args.out / "strips.jsonl"), batch_size=20, shuffle=True, drop_last=True)
    model = Reader()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    step = 0
    for epoch in range(args.epochs):
        right = 0
        for batch in timed(loader, "wait"):
            with lap("wait"):
                signal = torch.stack([torch.stack(lead, 1) for lead in batch["leads"]], 1).float()
            with lap("compute"):
                scores = model(signal, batch["age"].float())
                loss = nn.functional.cross_entropy(scores, batch["rhythm"])
                optimizer.zero_grad()
                accelerator.backward(loss)
                accelerator.clip_grad_norm_(model.parameters(), 2.0)
                optimizer.step()
            step += 1
            with lap("own"):
                right += (scores.argmax(1) == batch["rhythm"]).sum().item()
                if step % 25 == 0:
                    accelerator.print(f"{epoch}/{step}: loss {loss.item():.4f}", flush=True)
        with lap("own"):
            accelerator.print(f"epoch {epoch}: {right / len(loader) / 20:.1%} right", flush=True)
            accelerator.save(accelerator.unwrap_model(model).state_dict(), args.out / "reader.pt")


if __name__ == "__main__":
    main()
