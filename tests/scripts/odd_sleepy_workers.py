"""Photos fetched one by one from an object store (a sleep stands for the round trip); a light model."""

import argparse
import io
import os
import time

import numpy as np
import torch
from PIL import Image
from stopwatch import lap, timed
from torch import nn
from torch.utils.data import DataLoader, Dataset


class ObjectStore:
    def __init__(self, root, round_trip):
        self.root, self.round_trip = root, round_trip

    def list(self):
        return [f"{c}/{f}" for c in sorted(os.listdir(self.root)) for f in sorted(os.listdir(f"{self.root}/{c}"))]

    def get(self, key):
        time.sleep(self.round_trip)
        with open(os.path.join(self.root, key), "rb") as f:
            return f.read()


class StoredPhotos(Dataset):
    def __init__(self, store):
        self.store = store
        self.keys = store.list()
        self.labels = {c: i for i, c in enumerate(sorted({k.split("/")[0] for k in self.keys}))}

    def __len__(self):
        return len(self.keys)

    def __getitem__(self, i):
        key = self.keys[i]
        with lap("read"):
            blob = self.store.get(key)
        with lap("decode"):
            im = Image.open(io.BytesIO(blob))
            im.draft("RGB", (64, 64))
            im = im.convert("RGB").resize((64, 64))
        with lap("transform"):
            x = torch.from_numpy(np.array(im)).permute(2, 0, 1).float() / 255
        return x, self.labels[key.split("/")[0]]


class AverageMeter:
    def __init__(self):
        self.sum = self.count = 0

    def update(self, value, n=1):
        self.sum += value * n
        self.count += n

    @property
    def avg(self):
        return self.sum / max(1, self.count)


parser = argparse.ArgumentParser()
parser.add_argument("data")
parser.add_argument("--epochs", default=5, type=int)
parser.add_argument("--round-trip", default=0.03, type=float)
parser.add_argument("--workers", default=2, type=int)
opt = parser.parse_args()

torch.set_num_threads(1)
dataset = StoredPhotos(ObjectStore(f"{opt.data}/photos", opt.round_trip))
loader = DataLoader(dataset, batch_size=16, shuffle=True, num_workers=opt.workers, drop_last=True)
model = nn.Sequential(
    nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(), nn.Flatten(),
    nn.Linear(32 * 16 * 16, len(dataset.labels)),
)  # fmt: skip
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
for epoch in range(opt.epochs):
    losses = AverageMeter()
    for i, (x, y) in enumerate(timed(loader, "wait")):
        with lap("compute"):
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses.update(loss.item(), len(x))
        if i % 25 == 0:
            print(f"{epoch}:{i:4d}/{len(loader)} loss {losses.avg:.3f}", flush=True)
