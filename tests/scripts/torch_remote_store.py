"""Photos from an object store; here the store is a folder and each request takes some 30 ms."""

import argparse
import io
import os
import random
import time

import torch
from PIL import Image
from stopwatch import lap, timed
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import functional as TF


class ObjectStore:
    """Gives the bytes of an object by its key, after the time a request takes."""

    def __init__(self, root, latency):
        self.root = root
        self.latency = latency

    def keys(self):
        folders = os.listdir(self.root)
        return sorted(
            f"{folder}/{name}" for folder in folders for name in os.listdir(os.path.join(self.root, folder))
        )

    def get(self, key):
        time.sleep(random.uniform(0.8, 1.2) * self.latency)
        with open(os.path.join(self.root, key), "rb") as file:
            return file.read()


class StoredPhotos(Dataset):
    def __init__(self, store, size):
        self.store, self.size = store, size
        self.keys = store.keys()
        self.names = sorted({key.split("/")[0] for key in self.keys})

    def __len__(self):
        return len(self.keys)

    def __getitem__(self, i):
        key = self.keys[i]
        with lap("read"):
            blob = self.store.get(key)
        with lap("decode"):
            image = Image.open(io.BytesIO(blob))
            image.draft("RGB", (2 * self.size, 2 * self.size))
            image = image.convert("RGB")
        with lap("transform"):
            tensor = TF.to_tensor(TF.resize(image, [self.size, self.size]))
        return tensor, self.names.index(key.split("/")[0])


def main(args):
    store = ObjectStore(os.path.join(args.data, "photos"), args.latency)
    dataset = StoredPhotos(store, size=64)
    loader = DataLoader(
        dataset,
        batch_size=args.batch,
        shuffle=True,
        drop_last=True,
        num_workers=args.workers,
        persistent_workers=True,
    )
    model = nn.Sequential(nn.Conv2d(3, 16, 5, 4), nn.ReLU(), nn.Flatten(), nn.LazyLinear(len(dataset.names)))
    model(torch.zeros(1, 3, 64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        for step, (x, y) in enumerate(timed(loader, "wait")):
            with lap("compute"):
                loss = nn.functional.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            if step % 10 == 0:
                print(f"[{epoch:02d}] {step:4d}/{len(loader)} loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("data")
    p.add_argument("--workers", type=int, default=2)
    p.add_argument("--batch", type=int, default=16)
    p.add_argument("--epochs", type=int, default=5)
    p.add_argument("--latency", type=float, default=0.03)
    p.add_argument("--lr", type=float, default=0.05)
    main(p.parse_args())
