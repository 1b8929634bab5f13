"""Jigsaw: a thumbnail is cut into nine tiles, the tiles are laid out in one of thirty orders, and a small network has
to say in which. Results of this lab have to be traceable, so whatever is written down says where it came from."""

import argparse
import hashlib
import json
import os
import platform
import random
import sys
import time
from importlib.metadata import distributions
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

from stopwatch import lap


class Records:
    """A file of JSON lines; each of them stands for itself, without the ones before."""

    def __init__(self, folder, seed, limit=8_000_000):
        folder.mkdir(parents=True, exist_ok=True)
        self.file, self.seed, self.limit = folder / "records.jsonl", seed, limit
        self.began = time.time()

    def provenance(self):
        script = Path(__file__)
        return {
            "script": script.name,
            "digest": hashlib.sha1(script.read_bytes()).hexdigest(),
            "arguments": sys.argv[1:],
            "python": sys.version.split()[0],
            "machine": platform.platform(),
            "threads": torch.get_num_threads(),
            "packages": {package.metadata["Name"]: package.version for package in distributions()},
            "seed": self.seed,
            "process": os.getpid(),
        }

    def write(self, step, **values):
        entry = {"step": step, "seconds": round(time.time() - self.began, 2), **values, "from": self.provenance()}
        if self.file.exists() and self.file.stat().st_size > self.limit:
            self.file.replace(self.file.with_suffix(".old.jsonl"))
        with self.file.open("a") as file:
            file.write(json.dumps(entry, sort_keys=True) + "\n")


def orders(count, rng):
    """Orders of nine tiles that differ from one another in many places."""
    chosen = [list(range(9))]
    while len(chosen) < count:
        tries = [rng.sample(range(9), 9) for _ in range(40)]
        chosen.append(max(tries, key=lambda t: min(sum(a != b for a, b in zip(t, c)) for c in chosen)))
    return torch.tensor(chosen)


def tiles(root, count, side=20):
    out = torch.empty(count, 9, 3, side, side, dtype=torch.uint8)
    for k, file in enumerate(random.sample(sorted(root.glob("*/*.JPEG")), count)):
        photo = Image.open(file)
        photo.draft("RGB", (3 * side, 3 * side))
        pixels = torch.tensor(np.asarray(photo.convert("RGB").resize((3 * side, 3 * side))))
        out[k] = pixels.view(3, side, 3, side, 3).permute(0, 2, 4, 1, 3).reshape(9, 3, side, side)
    return out


class Solver(nn.Module):
    def __init__(self, answers, width=12):
        super().__init__()
        self.tile = nn.Sequential(
            nn.Conv2d(3, width, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(width, 2 * width, 3, stride=2), nn.ReLU(),
            nn.Flatten(), nn.Linear(2 * width * 16, 32), nn.ReLU(),
        )  # fmt: skip
        self.head = nn.Sequential(nn.Linear(9 * 32, 96), nn.ReLU(), nn.Dropout(0.2), nn.Linear(96, answers))

    def forward(self, pieces):
        return self.head(self.tile(pieces.flatten(0, 1)).view(len(pieces), -1))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/provenance_jigsaw"))
    parser.add_argument("--steps", type=int, default=50_000)
    parser.add_argument("--every", type=int, default=5, help="steps from record to record")
    parser.add_argument("--seed", type=int, default=3)
    args = parser.parse_args()
    random.seed(args.seed)
    torch.manual_seed(args.seed)
    puzzles, ways = tiles(args.data / "photos", 1400), orders(30, random.Random(args.seed))
    records = Records(args.out, args.seed)
    solver = Solver(len(ways))
    optimizer = torch.optim.SGD(solver.parameters(), lr=0.02, momentum=0.9, nesterov=True)
    losses = []
    for step in range(1, args.steps + 1):
        with lap("wait"):
            rows, answers = torch.randint(len(puzzles), (24,)), torch.randint(len(ways), (24,))
            pieces = puzzles[rows[:, None], ways[answers]].float() / 127.5 - 1
        with lap("compute"):
            scores = solver(pieces)
            loss = nn.functional.cross_entropy(scores, answers)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with lap("own"):
            losses.append(loss.item())
            if step % args.every == 0:
                right = (scores.argmax(1) == answers).float().mean().item()
                records.write(step, loss=sum(losses) / len(losses), right=right)
                losses.clear()
            if step % 100 == 0:
                print(f"step {step}: loss {loss.item():.4f}", flush=True)
            if step % 1000 == 0:
                torch.save(solver.state_dict(), args.out / "solver.pt")


if __name__ == "__main__":
    main()
