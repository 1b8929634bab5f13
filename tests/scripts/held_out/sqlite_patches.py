"""Land cover from four-band patches that lie in a SQLite file, each packed by bz2; one row is one sample."""

import argparse
import bz2
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stopwatch import lap, timed

SIDE = 160


def bands_of(path: Path):
    """Red, green, blue and something like near infrared, channels first."""
    image = Image.open(path)
    image.draft("RGB", (SIDE, SIDE))
    rgb = np.asarray(image.convert("RGB").resize((SIDE, SIDE)))
    infrared = (rgb[..., 1].astype(np.uint16) * 2 + 255 - rgb[..., 0]) // 3
    return np.ascontiguousarray(np.dstack([rgb, infrared.astype(np.uint8)]).transpose(2, 0, 1))


def build(photos: Path, database: Path, count=700):
    if database.exists():
        return
    files = sorted(photos.glob("*/*.*"))
    names = sorted({path.parent.name for path in files})
    part = database.with_suffix(".part")
    part.unlink(missing_ok=True)
    with closing(sqlite3.connect(part)) as store, store:
        store.execute("create table patches (id integer primary key, label integer, bands blob)")
        for number, row in enumerate(np.linspace(0, len(files) - 1, count).astype(int)):
            path = files[row]
            packed = bz2.compress(bands_of(path).tobytes())
            store.execute("insert into patches values (?, ?, ?)", (number, names.index(path.parent.name), packed))
    part.replace(database)


class Patches(Dataset):
    """Several random crops of each patch make an epoch."""

    def __init__(self, database: Path, crop=96, crops_per_patch=4):
        self.database, self.crop, self.crops_per_patch = database, crop, crops_per_patch
        self.connection = None
        with closing(sqlite3.connect(database)) as store:
            self.keys = [key for (key,) in store.execute("select id from patches order by id")]
            self.classes = store.execute("select max(label) + 1 from patches").fetchone()[0]

    def __len__(self):
        return len(self.keys) * self.crops_per_patch

    def fetch(self, key):
        if self.connection is None:
            self.connection = sqlite3.connect(f"file:{self.database}?mode=ro", uri=True)
        return self.connection.execute("select bands, label from patches where id = ?", (key,)).fetchone()

    def unpack(self, blob):
        return np.frombuffer(bz2.decompress(blob), np.uint8).reshape(4, SIDE, SIDE)

    def cut(self, bands):
        top, left = torch.randint(0, SIDE - self.crop + 1, (2,)).tolist()
        window = bands[:, top : top + self.crop, left : left + self.crop]
        if torch.rand(()) < 0.5:
            window = window[:, :, ::-1]
        if torch.rand(()) < 0.5:
            window = window[:, ::-1]
        return torch.from_numpy(np.ascontiguousarray(window)).float().div_(255)

    def __getitem__(self, index):
        with lap("read"):
            blob, label = self.fetch(self.keys[index % len(self.keys)])
        with lap("decode"):
            bands = self.unpack(blob)
        with lap("transform"):
            return self.cut(bands), label


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/sqlite_patches"))
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    build(args.data / "photos", args.out / "patches.sqlite")
    patches = Patches(args.out / "patches.sqlite")
    loader = DataLoader(
        patches,
        batch_size=args.batch,
        shuffle=True,
        drop_last=True,
        num_workers=args.workers,
        persistent_workers=args.workers > 0,
        prefetch_factor=4 if args.workers else None,
    )
    model = nn.Sequential(
        nn.Conv2d(4, 16, 5, stride=4, padding=2),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.AdaptiveMaxPool2d(2),
        nn.Flatten(),
        nn.Linear(128, patches.classes),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        right = seen = 0
        for bands, labels in timed(loader, "wait"):
            with lap("compute"):
                scores = model(bands)
                loss = nn.functional.cross_entropy(scores, labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            with lap("own"):
                right += (scores.argmax(1) == labels).sum().item()
                seen += len(labels)
        print(f"epoch {epoch}: loss {loss.item():.3f}, {right / seen:.1%} right", flush=True)
        torch.save(model.state_dict(), args.out / "cover.pt")


if __name__ == "__main__":
    main()
