"""Predict loan defaults from a table, with a running audit of the decisions by group of applicants.

The table fits in memory, so batches are slices of a shuffled table and no loader is needed. The auditors want a
trail of each epoch's decisions: a CSV file of the refusals, and the rates of refusal by region, age and sex.
"""

import argparse
import csv
from collections import defaultdict, deque
from collections.abc import Iterator

import numpy as np
import torch
from torch import nn

from stopwatch import lap, timed

APPLICANTS, NUMBERS, BATCH = 60_000, 14, 1024
REGIONS = ("north", "south", "east", "west", "centre", "islands")
AGES = ("under 25", "25 to 39", "40 to 59", "60 and over")
SEXES = ("f", "m")


def make_table() -> dict[str, torch.Tensor]:
    rng = np.random.default_rng(41)
    numbers = rng.normal(0, 1, (APPLICANTS, NUMBERS)).astype(np.float32)
    groups = np.stack([rng.integers(len(names), size=APPLICANTS) for names in (REGIONS, AGES, SEXES)], 1)
    leaning = numbers[:, :4].sum(1) + 0.5 * numbers[:, 4] * numbers[:, 5] + 0.3 * (groups[:, 1] == 0)
    defaults = rng.random(APPLICANTS) < 1 / (1 + np.exp(1.2 - leaning))
    return {
        "numbers": torch.from_numpy(numbers),
        "groups": torch.from_numpy(groups),
        "defaults": torch.from_numpy(defaults.astype(np.float32)),
    }


def slices(table: dict[str, torch.Tensor]) -> Iterator[dict[str, torch.Tensor]]:
    order = torch.randperm(APPLICANTS)
    for begin in range(0, APPLICANTS - BATCH + 1, BATCH):
        rows = order[begin : begin + BATCH]
        yield {"rows": rows} | {name: column.index_select(0, rows) for name, column in table.items()}


class RiskNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(len(names), 4) for names in (REGIONS, AGES, SEXES))
        self.body = nn.Sequential(
            nn.Linear(NUMBERS + 12, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)
        )

    def forward(self, numbers: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
        embedded = [embedding(groups[:, place]) for place, embedding in enumerate(self.embeddings)]
        return self.body(torch.cat([numbers, *embedded], 1)).squeeze(1)


class Audit:
    def __init__(self, path: str) -> None:
        self.file = open(path, "w", newline="")  # noqa: SIM115
        self.trail = csv.writer(self.file)
        self.trail.writerow(["applicant", "region", "age", "sex", "risk", "reason 1", "reason 2", "reason 3"])
        self.asked: dict[tuple[str, str], int] = defaultdict(int)
        self.refused: dict[tuple[str, str], int] = defaultdict(int)
        self.wronged: dict[tuple[str, str], int] = defaultdict(int)
        self.recent: deque[float] = deque(maxlen=5000)

    def record(self, batch: dict[str, list], risks: list[float]) -> None:
        for row, numbers, (region, age, sex), default, risk in zip(*batch.values(), risks, strict=True):
            names = (
                ("region", REGIONS[region]),
                ("age", AGES[age]),
                ("sex", SEXES[sex]),
                ("region and sex", f"{REGIONS[region]}, {SEXES[sex]}"),
            )
            refused = risk > 0.5
            for name in names:
                self.asked[name] += 1
                if refused:
                    self.refused[name] += 1
                    if default < 0.5:
                        self.wronged[name] += 1
            self.recent.append(risk)
            if refused:
                reasons = sorted(range(NUMBERS), key=numbers.__getitem__, reverse=True)[:3]
                self.trail.writerow([row, names[0][1], names[1][1], names[2][1], f"{risk:.4f}", *reasons])

    def close(self) -> str:
        self.file.close()
        rates = {name: self.refused[name] / count for name, count in self.asked.items()}
        widest = max(rates.values()) - min(rates.values())
        return f"refusals {min(rates.values()):.3f} to {max(rates.values()):.3f}, widest gap {widest:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", help="the data folder (the applicants are made up here)")
    parser.add_argument("--epochs", type=int, default=5000)
    options = parser.parse_args()
    torch.manual_seed(14)
    table = make_table()
    model = RiskNet()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for epoch in range(options.epochs):
        audit = Audit("refusals.csv")
        for batch in timed(slices(table), "wait"):
            with lap("compute"):
                logits = model(batch["numbers"], batch["groups"])
                loss = nn.functional.binary_cross_entropy_with_logits(logits, batch["defaults"])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            with lap("own"):
                lists = {name: column.tolist() for name, column in batch.items()}
                audit.record(lists, logits.detach().sigmoid().tolist())
        print(f"epoch {epoch}: loss {loss.item():.3f}, {audit.close()}", flush=True)


if __name__ == "__main__":
    main()
