"""Training that may be stopped at any step and go on exactly: torchdata's StatefulDataLoader over a stream with a
shuffle buffer, whose state (with the samples that are in the buffer) comes along with each batch."""

import argparse
import io
import random
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader

from stopwatch import lap, timed


def write_strip(photos: Path, strip: Path, side: int):
    """All photographs, small and square, one after another in a single file."""
    files = sorted(photos.glob("*/*.JPEG"))
    folders = sorted({file.parent.name for file in files})
    random.Random(3).shuffle(files)
    with open(strip, "wb") as out:
        for file in files:
            image = Image.open(file)
            image.draft("RGB", (side, side))
            out.write(bytes([folders.index(file.parent.name)]))
            out.write(image.convert("RGB").resize((side, side)).tobytes())
    return len(folders)


class ShuffledStrip(IterableDataset):
    def __init__(self, strip: Path, side: int, capacity: int):
        self.strip, self.side, self.capacity = strip, side, capacity
        self.size = side * side * 3 + 1
        self.position, self.buffer, self.rng = 0, [], random.Random(0)

    def state_dict(self):
        return {"position": self.position, "buffer": list(self.buffer), "rng": self.rng.getstate()}

    def load_state_dict(self, state):
        self.position, self.buffer = state["position"], state["buffer"]
        self.rng.setstate(state["rng"])

    def records(self):
        with open(self.strip, "rb") as file:
            while True:
                file.seek(self.position * self.size)
                record = file.read(self.size)
                if len(record) < self.size:
                    self.position = 0
                    continue
                self.position += 1
                yield np.frombuffer(record, np.uint8)

    def crop(self, record):
        picture = torch.from_numpy(record[1:].reshape(self.side, self.side, 3).copy())
        top, left = self.rng.randrange(9), self.rng.randrange(9)
        return picture[top : top - 8 + self.side, left : left - 8 + self.side].permute(2, 0, 1), int(record[0])

    def __iter__(self):
        for record in self.records():
            if len(self.buffer) < self.capacity:
                self.buffer.append(record)
                continue
            k = self.rng.randrange(self.capacity)
            chosen, self.buffer[k] = self.buffer[k], record
            with lap("transform"):
                sample = self.crop(chosen)
            yield sample


class Checkpoint:
    def __init__(self, path):
        self.path = path

    def save(self, model, optimizer, loader):
        everything = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "data": loader.state_dict()}
        buffer = io.BytesIO()
        torch.save(everything, buffer)
        self.path.write_bytes(buffer.getvalue())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/stateful_shuffle_restart"))
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--side", type=int, default=96)
    parser.add_argument("--buffer", type=int, default=1200)
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    classes = write_strip(args.data / "photos", args.out / "strip.bin", args.side)
    stream = ShuffledStrip(args.out / "strip.bin", args.side, args.buffer)
    loader = StatefulDataLoader(stream, batch_size=32, num_workers=1, snapshot_every_n_steps=1)
    model = nn.Sequential(
        nn.Conv2d(3, 24, 5, stride=3), nn.ReLU(), nn.Conv2d(24, 48, 3, stride=2), nn.ReLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(192, classes),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    checkpoint = Checkpoint(args.out / "restart.pt")
    for step, (pictures, labels) in enumerate(timed(loader, "wait"), 1):
        with lap("compute"):
            loss = nn.functional.cross_entropy(model(pictures.float() / 127.5 - 1), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if step % 200 == 0:
            with lap("own"):
                checkpoint.save(model, optimizer, loader)
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
        if step == args.steps:
            break


if __name__ == "__main__":
    main()
