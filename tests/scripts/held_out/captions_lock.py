"""Picture and caption matching (CLIP in small) from a store that lets one reader in at a time."""

import argparse
import io
import multiprocessing
import sqlite3
import time
from pathlib import Path

import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import functional as F

from stopwatch import lap, timed

WORDS = "a photo of the one in on with small large bright dark old new wild quiet".split()
LENGTH = 12


def build(root: Path, database: Path, every=6):
    """Pictures (as small JPEGs) and made-up captions in one table."""
    if database.exists():
        return
    with sqlite3.connect(database) as store:
        store.execute("create table pairs (id integer primary key, picture blob, caption text)")
        for number, path in enumerate(sorted(root.glob("*/*.JPEG"))[::every]):
            image = Image.open(path)
            image.draft("RGB", (96, 96))
            buffer = io.BytesIO()
            image.convert("RGB").resize((96, 96)).save(buffer, "JPEG")
            extra = " ".join(WORDS[(number * k) % len(WORDS)] for k in (3, 5, 7))
            store.execute(
                "insert into pairs values (?, ?, ?)",
                (number, buffer.getvalue(), f"a photo of {path.parent.name} {extra}"),
            )


class Store:
    """The archive's server takes one request at a time and answers after `latency` seconds."""

    def __init__(self, database: Path, latency: float):
        self.database, self.latency = database, latency
        self.turn = multiprocessing.Lock()
        self.connection = None

    def count(self):
        with sqlite3.connect(self.database) as store:
            return store.execute("select count(*) from pairs").fetchone()[0]

    def get(self, key):
        with lap("turn"):
            self.turn.acquire()
        try:
            if self.connection is None:
                self.connection = sqlite3.connect(self.database)
            row = self.connection.execute("select picture, caption from pairs where id = ?", (key,)).fetchone()
            time.sleep(self.latency)
            return row
        finally:
            self.turn.release()


class Pairs(Dataset):
    def __init__(self, store):
        self.store, self.length = store, store.count()
        self.vocabulary = {}

    def __len__(self):
        return self.length

    def tokens(self, caption):
        ids = [sum(map(ord, word)) % 500 + 1 for word in caption.split()][:LENGTH]
        return torch.tensor(ids + [0] * (LENGTH - len(ids)))

    def __getitem__(self, index):
        blob, caption = self.store.get(index)
        image = Image.open(io.BytesIO(blob)).convert("RGB")
        return F.to_tensor(image), self.tokens(caption)


class TwoTowers(nn.Module):
    def __init__(self, size=64):
        super().__init__()
        self.image = nn.Sequential(
            nn.Conv2d(3, 16, 5, 3, 2),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, 2, 1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(128, size),
        )
        self.words = nn.EmbeddingBag(501, size, padding_idx=0)
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, images, tokens):
        a = nn.functional.normalize(self.image(images), dim=1)
        b = nn.functional.normalize(self.words(tokens), dim=1)
        return self.scale.exp() * a @ b.T


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/captions_lock"))
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--latency", type=float, default=0.006)
    parser.add_argument("--workers", type=int, default=4)
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    build(args.data / "photos", args.out / "pairs.sqlite")
    pairs = Pairs(Store(args.out / "pairs.sqlite", args.latency))
    loader = DataLoader(
        pairs, batch_size=16, shuffle=True, num_workers=args.workers, persistent_workers=True, drop_last=True
    )
    model = TwoTowers()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=0.05)
    for epoch in range(args.epochs):
        losses = []
        for images, tokens in timed(loader, "wait"):
            with lap("compute"):
                logits = model(images, tokens)
                same = torch.arange(len(images))
                loss = nn.functional.cross_entropy(logits, same) + nn.functional.cross_entropy(logits.T, same)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            with lap("own"):
                losses.append(loss.item())
        print(f"epoch {epoch} loss {sum(losses) / len(losses):.4f}", flush=True)
        torch.save(model.state_dict(), args.out / "towers.pt")


if __name__ == "__main__":
    main()
