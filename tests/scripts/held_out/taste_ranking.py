"""Who likes which photograph? Two towers learn it; the training is a generator, and its caller keeps the board."""

import argparse
import math
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from stopwatch import lap
from torch import nn

USERS, TOP = 3000, 10


@dataclass
class Progress:
    step: int
    loss: float
    users: list[int]
    model: nn.Module


def visits(photos: Path, each=120, seed=9):
    """Users like pictures of two classes, and five others; one like of each user is held out."""
    classes = []
    for label, folder in enumerate(sorted(p for p in photos.iterdir() if p.is_dir())):
        classes += [label] * len(sorted(folder.iterdir())[:each])
    rng, classes = np.random.default_rng(seed), np.array(classes)
    liked, held_out = [], []
    for _ in range(USERS):
        favourites = np.flatnonzero(np.isin(classes, rng.choice(10, 2, replace=False)))
        items = np.concatenate([rng.choice(favourites, 25, replace=False), rng.choice(len(classes), 5)])
        liked.append(items[1:])
        held_out.append(int(items[0]))
    return np.stack(liked), held_out, len(classes)


class Towers(nn.Module):
    def __init__(self, items, width=64):
        super().__init__()
        self.users = nn.Sequential(
            nn.Embedding(USERS, width), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 32)
        )
        self.items = nn.Sequential(
            nn.Embedding(items, width), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 32)
        )

    def forward(self, users, items):
        return (self.users(users) * self.items(items)).sum(-1)

    def table(self, users):
        """The scores of all items for these users."""
        return self.users(users) @ self.items(torch.arange(self.items[0].num_embeddings)).T


class Board:
    """Hit rate and gain at ten: where do the held out likes of the last users stand?"""

    def __init__(self, liked, held_out):
        self.liked = [set(row.tolist()) for row in liked]
        self.held_out = held_out
        self.hits, self.gains = deque(maxlen=5000), deque(maxlen=5000)

    def rank(self, user, scores):
        """The user's ten best pictures, of those not liked before."""
        seen = self.liked[user]
        candidates = [(score, item) for item, score in enumerate(scores) if item not in seen]
        candidates.sort(key=lambda pair: (-pair[0], pair[1]))
        return [item for _, item in candidates[:TOP]]

    def add(self, progress):
        users = list(dict.fromkeys(progress.users))[:96]
        with torch.no_grad():
            table = progress.model.table(torch.tensor(users))
        for user, scores in zip(users, table.tolist()):
            best, wanted = self.rank(user, scores), self.held_out[user]
            self.hits.append(wanted in best)
            self.gains.append(1 / math.log2(best.index(wanted) + 2) if wanted in best else 0.0)

    def line(self):
        return f"HR@{TOP} {sum(self.hits) / len(self.hits):.3f}, NDCG {sum(self.gains) / len(self.gains):.3f}"


def pairs(liked, items, size, rng):
    """One epoch: each like once, and as many pictures at random that count as not liked."""
    users, chosen = np.repeat(np.arange(len(liked)), liked.shape[1]), liked.reshape(-1)
    order = rng.permutation(len(users))
    target = torch.cat([torch.ones(size), torch.zeros(size)])
    for start in range(0, len(order) - size + 1, size):
        rows = order[start : start + size]
        shown = np.concatenate([chosen[rows], rng.integers(items, size=size)])
        yield torch.from_numpy(np.tile(users[rows], 2)), torch.from_numpy(shown), target


def training(model, liked, items, epochs, size=2048):
    """Trains, and tells after each step where it stands."""
    rng = np.random.default_rng(1)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    step = 0
    for _ in range(epochs):
        source = pairs(liked, items, size, rng)
        while True:
            with lap("wait"):
                batch = next(source, None)
            if batch is None:
                break
            users, shown, target = batch
            with lap("compute"):
                loss = nn.functional.binary_cross_entropy_with_logits(model(users, shown), target)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            step += 1
            yield Progress(step, loss.item(), users[:128].tolist(), model)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/taste_ranking"))
    parser.add_argument("--epochs", type=int, default=40)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    liked, held_out, items = visits(args.data / "photos")
    model, board = Towers(items), Board(liked, held_out)
    for progress in training(model, liked, items, args.epochs):
        with lap("own"):
            board.add(progress)
        if progress.step % 25 == 0:
            print(f"{progress.step}: loss {progress.loss:.3f}, {board.line()}", flush=True)
    torch.save(model.state_dict(), args.out / "taste.pt")


if __name__ == "__main__":
    main()
