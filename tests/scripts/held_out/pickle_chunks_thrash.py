"""Photographs in pickled, compressed chunks, as an HDF5 file would hold them, drawn in random order."""

import argparse
import pickle
import tempfile
import zlib
from collections import OrderedDict
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from stopwatch import lap, timed
from torch import nn
from torch.utils.data import DataLoader, Dataset


def write_chunks(photos, folder, rows_per_chunk, side):
    classes = sorted(d.name for d in photos.iterdir())
    rows, count = [], 0
    rng = np.random.default_rng(0)
    files = list(photos.glob("*/*.jpg")) + list(photos.glob("*/*.jpeg")) + list(photos.glob("*/*.JPEG"))
    for file in rng.permutation(sorted(files)):
        image = Image.open(file)
        image.draft("RGB", (side, side))
        image = image.convert("RGB").resize((side, side))
        rows.append({"pixels": np.array(image), "label": classes.index(file.parent.name), "name": file.name})
        if len(rows) == rows_per_chunk:
            with open(folder / f"chunk_{count:04d}.pkl.z", "wb") as f:
                f.write(zlib.compress(pickle.dumps(rows), level=1))
            rows, count = [], count + 1
    return count, len(classes)


class ChunkCache:
    """The chunks used last."""

    def __init__(self, folder, capacity):
        self.folder, self.capacity = folder, capacity
        self.chunks = OrderedDict()

    def read_chunk(self, number):
        with open(self.folder / f"chunk_{number:04d}.pkl.z", "rb") as f:
            return pickle.loads(zlib.decompress(f.read()))

    def __getitem__(self, number):
        if number in self.chunks:
            self.chunks.move_to_end(number)
        else:
            with lap("read"):
                self.chunks[number] = self.read_chunk(number)
            if len(self.chunks) > self.capacity:
                self.chunks.popitem(last=False)
        return self.chunks[number]


class ChunkedPhotos(Dataset):
    def __init__(self, folder, chunks, rows_per_chunk, cached):
        self.cache = ChunkCache(folder, cached)
        self.length = chunks * rows_per_chunk
        self.rows_per_chunk = rows_per_chunk

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        chunk, row = divmod(i, self.rows_per_chunk)
        record = self.cache[chunk][row]
        image = torch.from_numpy(record["pixels"])
        if np.random.random() < 0.5:
            image = image.flip(1)
        return image.permute(2, 0, 1).float().mul(1 / 255), record["label"]


class Net(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 5, stride=3)
        self.conv2 = nn.Conv2d(16, 32, 3, stride=2)
        self.fc = nn.Linear(32, n)

    def forward(self, x):
        x = torch.relu(self.conv2(torch.relu(self.conv1(x))))
        return self.fc(x.amax((2, 3)))


ap = argparse.ArgumentParser()
ap.add_argument("data")
ap.add_argument("--out", default="runs/pickle_chunks_thrash")
ap.add_argument("--epochs", type=int, default=2)
ap.add_argument("--rows-per-chunk", type=int, default=48)
ap.add_argument("--cached-chunks", type=int, default=4)
ap.add_argument("--workers", type=int, default=2)


def main(args, folder):
    torch.set_num_threads(1)
    chunks, n = write_chunks(Path(args.data) / "photos", folder, args.rows_per_chunk, side=128)
    train = ChunkedPhotos(folder, chunks, args.rows_per_chunk, args.cached_chunks)
    dl = DataLoader(train, batch_size=32, shuffle=True, num_workers=args.workers, persistent_workers=True)
    net = Net(n)
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    loss_fn = nn.CrossEntropyLoss()
    for epoch in range(args.epochs):
        net.train()
        for i, (x, y) in enumerate(timed(dl, "wait")):
            with lap("compute"):
                loss = loss_fn(net(x), y)
                opt.zero_grad()
                loss.backward()
                opt.step()
            if i % 20 == 19:
                print(f"[{epoch + 1}, {i + 1:3d}] loss {loss.item():.3f}", flush=True)
    Path(args.out).mkdir(parents=True, exist_ok=True)
    torch.save(net.state_dict(), Path(args.out) / "net.pt")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as d:
        main(ap.parse_args(), Path(d))
