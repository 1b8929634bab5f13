"""What is drawn? Sketches are lists of pen strokes of any number and length; a small GRU reads each stroke, another
one the strokes of a sketch. Nothing is padded until the network asks for it."""

import argparse
import math
import random
from pathlib import Path

import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence, pad_sequence
from torch.utils.data import DataLoader, Dataset

from stopwatch import lap, timed

KINDS = ["flower", "comb", "spiral", "fence", "sun", "waves", "stairs", "web"]


def line(points):
    return torch.tensor(points, dtype=torch.float32)


def arc(x, y, radius, start, end, count=9):
    turns = [start + (end - start) * k / (count - 1) for k in range(count)]
    return line([(x + radius * math.cos(t), y + radius * math.sin(t)) for t in turns])


def draw(kind, rng):
    """The strokes of one sketch, in a square of -1 to 1."""
    n, r = rng.randint(9, 15), rng.uniform(0.5, 0.9)
    turns = [2 * math.pi * k / n for k in range(n)]
    steps = [2 * k / n - 1 for k in range(n)]
    if kind == "flower":
        return [arc(r * math.cos(t) / 2, r * math.sin(t) / 2, r / 3, t - 2.5, t + 2.5) for t in turns]
    if kind == "comb":
        return [line([(x, -r / 2), (x, 0), (x, r)]) for x in steps] + [line([(-1, -r / 2), (0, -r / 2), (1, -r / 2)])]
    if kind == "spiral":
        return [arc(0, 0, r * (k + 1) / n, t, t + 0.9, 6) for k, t in enumerate(turns)]
    if kind == "fence":
        return [line([(x, -r), (x + 0.1, r), (x + 0.2, -r)]) for x in steps]
    if kind == "sun":
        rays = [line([(0.4 * math.cos(t), 0.4 * math.sin(t)), (r * math.cos(t), r * math.sin(t))]) for t in turns]
        return [arc(0, 0, 0.35, 0, 6.3, 16), *rays]
    if kind == "waves":
        return [line([(k / 5 - 1, y + 0.1 * math.sin(3 * k)) for k in range(11)]) for y in steps]
    if kind == "stairs":
        return [line([(x, x), (x + 2 / n, x), (x + 2 / n, x + 2 / n)]) for x in steps]
    return [arc(0, 0, r * (k // 3 + 1) / 5, 2.1 * k, 2.1 * k + 2, 7) for k in range(n)]


class Sketches(Dataset):
    def __init__(self, count, seed=0):
        rng = random.Random(seed)
        self.items = []
        for _ in range(count):
            label = rng.randrange(len(KINDS))
            self.items.append((draw(KINDS[label], rng), label))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        strokes, label = self.items[index]
        turn = torch.eye(2) + 0.2 * torch.randn(2, 2)
        return [stroke @ turn for stroke in strokes], label


def together(samples):
    sketches, labels = zip(*samples)
    return list(sketches), torch.tensor(labels)


class Reader(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.stroke = nn.GRU(2, width, batch_first=True)
        self.sketch = nn.GRU(width, 2 * width, batch_first=True)
        self.head = nn.Linear(2 * width, len(KINDS))

    def forward(self, sketches):
        counts = [len(strokes) for strokes in sketches]
        flat = [stroke for strokes in sketches for stroke in strokes]
        _, strokes = self.stroke(pack_sequence(flat, enforce_sorted=False))
        rows = pad_sequence(strokes[0].split(counts), batch_first=True)
        states, _ = self.sketch(rows)
        return self.head(states[torch.arange(len(counts)), torch.tensor(counts) - 1])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", help="not used: the sketches are made up")
    parser.add_argument("--out", type=Path, default=Path("runs/pen_strokes_ragged"))
    parser.add_argument("--epochs", type=int, default=300)
    parser.add_argument("--batch-size", type=int, default=32)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(
        Sketches(6000), args.batch_size, shuffle=True, num_workers=2, collate_fn=together, persistent_workers=True,
        drop_last=True,
    )  # fmt: skip
    model = Reader()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    step, running = 0, None
    for epoch in range(args.epochs):
        for sketches, labels in timed(loader, "wait"):
            with lap("compute"):
                loss = nn.functional.cross_entropy(model(sketches), labels)
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
            with lap("own"):
                step += 1
                running = loss.item() if running is None else 0.98 * running + 0.02 * loss.item()
                if step % 50 == 0:
                    print(f"epoch {epoch}, step {step}: loss {running:.4f}", flush=True)
        with lap("own"):
            torch.save(model.state_dict(), args.out / "reader.pt")


if __name__ == "__main__":
    main()
