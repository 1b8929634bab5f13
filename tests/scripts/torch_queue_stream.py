"""Learn from a live feed: a thread takes frames from a camera and puts them in a queue."""

import argparse
import queue
import threading
import time

import numpy as np
import torch
from stopwatch import lap, timed
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


class Camera(threading.Thread):
    """A camera of some 80 frames a second, each with the label of what it shows."""

    def __init__(self, frames, rate=80.0, size=96):
        super().__init__(daemon=True)
        self.frames = frames
        self.rate = rate
        self.size = size
        self.rng = np.random.default_rng(5)
        self.scenes = self.rng.integers(0, 256, (10, 3, size, size), dtype=np.uint8)

    def run(self):
        while True:
            label = int(self.rng.integers(10))
            frame = np.roll(self.scenes[label], int(self.rng.integers(self.size)), axis=2)
            time.sleep(1 / self.rate)
            self.frames.put((frame, label))


class Feed(IterableDataset):
    """The next `count` frames of the queue make an epoch."""

    def __init__(self, frames, count):
        self.frames = frames
        self.count = count

    def __iter__(self):
        for _ in range(self.count):
            with lap("read"):
                frame, label = self.frames.get()
            yield torch.from_numpy(frame).float().div_(255), label


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", nargs="?", help="not used by the simulated camera")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--frames-per-epoch", type=int, default=640)
    parser.add_argument("--batch-size", type=int, default=32)
    args = parser.parse_args()

    frames = queue.Queue(maxsize=256)
    Camera(frames).start()
    loader = DataLoader(Feed(frames, args.frames_per_epoch), batch_size=args.batch_size)

    model = nn.Sequential(
        nn.Conv2d(3, 16, 5, stride=3),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(128, 10),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    loss_fn = nn.CrossEntropyLoss()

    for epoch in range(args.epochs):
        hits = total = 0
        for images, labels in timed(loader, "wait"):
            with lap("compute"):
                scores = model(images)
                loss = loss_fn(scores, labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            hits += (scores.argmax(1) == labels).sum().item()
            total += len(labels)
        print(f"epoch {epoch + 1}: {100 * hits / total:.1f} % right, loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
