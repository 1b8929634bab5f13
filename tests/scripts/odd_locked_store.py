"""Photos in one file of our own with an index; the workers share its handle, so a lock guards each read."""

import argparse
import io
import multiprocessing
import os
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from stopwatch import lap, timed
from torch import nn
from torch.utils.data import DataLoader, Dataset


def build_store(photos, target):
    index, names = [], sorted(os.listdir(photos))
    with open(target, "wb") as store:
        for path in sorted(Path(photos).glob("*/*.*")):
            data = path.read_bytes()
            index.append((store.tell(), len(data), names.index(path.parent.name)))
            store.write(data)
    return index, names


class LockedStore(Dataset):
    def __init__(self, path, index, seek_time):
        self.file = open(path, "rb", buffering=0)  # opened before the fork: all workers share its position
        self.lock = multiprocessing.Lock()
        self.index = index
        self.seek_time = seek_time

    def __len__(self):
        return len(self.index)

    def read_record(self, i):
        offset, length, _ = self.index[i]
        with self.lock:
            self.file.seek(offset)
            time.sleep(self.seek_time)  # what a spinning disk takes
            return self.file.read(length)

    def __getitem__(self, i):
        with lap("read"):
            data = self.read_record(i)
        with lap("decode"):
            image = Image.open(io.BytesIO(data))
            image.draft("RGB", (64, 64))
            image = image.convert("RGB")
        with lap("transform"):
            image = np.array(image.resize((64, 64)), dtype=np.float32)
            return torch.from_numpy(image).permute(2, 0, 1) / 255, self.index[i][2]


def train(args, folder):
    index, names = build_store(os.path.join(args.data, "photos"), os.path.join(folder, "photos.bin"))
    dataset = LockedStore(os.path.join(folder, "photos.bin"), index, args.seek_time)
    loader = DataLoader(dataset, 32, shuffle=True, num_workers=args.workers, persistent_workers=True, drop_last=True)
    model = nn.Sequential(
        nn.Conv2d(3, 24, 3, 2, 1), nn.ReLU(), nn.Conv2d(24, 48, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(48, len(names)),
    )  # fmt: skip
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        for images, labels in timed(loader, "wait"):
            with lap("compute"):
                loss = nn.functional.cross_entropy(model(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        print(f"epoch {epoch}  loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--epochs", type=int, default=7)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--seek-time", type=float, default=0.012)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as directory:
        train(arguments, directory)
