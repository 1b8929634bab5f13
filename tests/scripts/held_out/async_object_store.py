"""Batches from an object store read by asyncio: the dataset makes whole batches, so the loader has batch_size=None."""

import argparse
import asyncio
import os
import random

import cv2
import numpy as np
import torch
from stopwatch import lap, timed
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class ObjectStore:
    """A folder behind a network of so many milliseconds, which allows a client few requests at a time."""

    def __init__(self, root, latency, connections):
        self.root, self.latency = root, latency
        self.slots = asyncio.Semaphore(connections)

    async def get(self, key):
        async with self.slots:
            await asyncio.sleep(self.latency * random.uniform(0.8, 1.2))
            with open(os.path.join(self.root, key), "rb") as file:
                return file.read()


class AsyncBatches(IterableDataset):
    def __init__(self, root, batch_size, side, latency, connections):
        self.root, self.batch_size, self.side = root, batch_size, side
        self.latency, self.connections = latency, connections
        self.classes = sorted(os.listdir(root))
        self.keys = sorted(f"{name}/{file}" for name in self.classes for file in os.listdir(f"{root}/{name}"))

    def __len__(self):
        return len(self.keys) // self.batch_size

    async def fetch(self, keys):
        store = ObjectStore(self.root, self.latency, self.connections)
        return await asyncio.gather(*(store.get(key) for key in keys))

    def to_batch(self, keys, blobs):
        images = np.empty((len(keys), self.side, self.side, 3), np.uint8)
        with lap("decode"):
            for row, blob in zip(images, blobs):
                image = cv2.imdecode(np.frombuffer(blob, np.uint8), cv2.IMREAD_REDUCED_COLOR_4)
                cv2.resize(image, (self.side, self.side), dst=row)
        labels = [self.classes.index(key.split("/")[0]) for key in keys]
        return torch.from_numpy(images).permute(0, 3, 1, 2), torch.tensor(labels)

    def __iter__(self):
        info = get_worker_info()
        cv2.setNumThreads(1)
        mine = self.keys[info.id :: info.num_workers] if info else list(self.keys)
        random.shuffle(mine)
        with asyncio.Runner() as runner:
            for start in range(0, len(mine) - self.batch_size + 1, self.batch_size):
                keys = mine[start : start + self.batch_size]
                with lap("read"):
                    blobs = runner.run(self.fetch(keys))
                yield self.to_batch(keys, blobs)


class Tiny(nn.Sequential):
    def __init__(self, classes):
        super().__init__(
            nn.Conv2d(3, 16, 4, stride=4),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Dropout(0.1),
            nn.Linear(128, classes),
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--out", default="runs/async_object_store")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--latency", type=float, default=0.04)
    parser.add_argument("--connections", type=int, default=4)
    args = parser.parse_args()
    torch.set_num_threads(1)

    batches = AsyncBatches(os.path.join(args.data, "photos"), 32, 80, args.latency, args.connections)
    loader = DataLoader(batches, batch_size=None, num_workers=args.workers, persistent_workers=True)
    model = Tiny(len(batches.classes))
    optimizer = torch.optim.NAdam(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        right = seen = 0
        for images, labels in timed(loader, "wait"):
            with lap("compute"):
                scores = model(images.float().div_(255))
                loss = nn.functional.cross_entropy(scores, labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            right += (scores.argmax(1) == labels).sum().item()
            seen += len(labels)
            if seen % 320 == 0:
                print(f"epoch {epoch} {seen}: {right / seen:.1%} right", flush=True)
    os.makedirs(args.out, exist_ok=True)
    torch.save(model.state_dict(), os.path.join(args.out, "tiny.pth"))
