"""A photo classifier whose batches are drawn ahead by a background thread, from files on a slow network mount."""

import argparse
import io
import queue
import threading
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from stopwatch import lap, timed
from torch import nn
from torch.utils.data import DataLoader, Dataset


class BackgroundIterator(threading.Thread):
    def __init__(self, iterator, depth=2):
        super().__init__(daemon=True)
        self.iterator, self.queue = iterator, queue.Queue(depth)
        self.start()

    def run(self):
        for batch in self.iterator:
            self.queue.put(batch)
        self.queue.put(None)

    def __iter__(self):
        return iter(self.queue.get, None)


class DataLoaderX(DataLoader):
    def __iter__(self):
        return iter(BackgroundIterator(super().__iter__()))


class MountedPhotos(Dataset):
    def __init__(self, root, latency):
        self.latency = latency
        self.paths = sorted(Path(root).glob("*/*.*"))
        self.classes = sorted({path.parent.name for path in self.paths})

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        path = self.paths[index]
        with lap("read"):
            time.sleep(self.latency)  # the mount's round trip
            data = io.BytesIO(path.read_bytes())
        with lap("decode"):
            image = Image.open(data)
            image.draft("RGB", (96, 96))
            image = image.convert("RGB")
        with lap("transform"):
            pixels = np.asarray(image.resize((96, 96)), dtype=np.float32) / 127.5 - 1
        return torch.from_numpy(pixels).permute(2, 0, 1).contiguous(), self.classes.index(path.parent.name)


def block(c_in, c_out):
    return nn.Sequential(nn.Conv2d(c_in, c_out, 3, stride=2, padding=1), nn.BatchNorm2d(c_out), nn.ReLU())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--latency", type=float, default=0.011)
    parser.add_argument("--workers", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dataset = MountedPhotos(Path(args.data) / "photos", args.latency)
    loader = DataLoaderX(dataset, batch_size=32, shuffle=True, num_workers=args.workers, drop_last=True)
    model = nn.Sequential(block(3, 48), block(48, 96), block(96, 192), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model.append(nn.Linear(192, len(dataset.classes)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        began = time.time()
        for images, labels in timed(loader, "wait"):
            with lap("compute"):
                loss = nn.functional.cross_entropy(model(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.4f}, {time.time() - began:.1f} s", flush=True)


if __name__ == "__main__":
    main()
