"""Histograms of oriented gradients, made by a process of our own and handed over through a ring in shared memory, so
that nothing is pickled."""

import argparse
import multiprocessing as mp
import random
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from skimage.feature import hog
from stopwatch import lap
from torch import nn

SIDE, CELLS, BINS = 128, 15, 9
FEATURES = CELLS * CELLS * 4 * BINS


class Ring:
    """Slots of batches in one piece of shared memory; two semaphores count the empty and the full ones."""

    def __init__(self, context, slots, batch):
        self.slots, self.batch = slots, batch
        self.memory = SharedMemory(create=True, size=slots * batch * (FEATURES + 1) * 4)
        self.array = np.ndarray((slots, batch, FEATURES + 1), np.float32, self.memory.buf)
        self.empty, self.full = context.Semaphore(slots), context.Semaphore(0)
        self.at = 0

    def put(self, rows):
        self.empty.acquire()
        self.array[self.at] = rows
        self.at = (self.at + 1) % self.slots
        self.full.release()

    def get(self):
        self.full.acquire()
        rows = torch.from_numpy(self.array[self.at].copy())
        self.at = (self.at + 1) % self.slots
        self.empty.release()
        return rows[:, :FEATURES], rows[:, FEATURES].long()

    def close(self):
        self.array = None
        self.memory.close()
        self.memory.unlink()


def describe(path):
    with lap("decode"):
        image = Image.open(path)
        image.draft("L", (SIDE, SIDE))
        grey = np.asarray(image.convert("L").resize((SIDE, SIDE)), np.float32) / 255
    with lap("transform"):
        if random.random() < 0.5:
            grey = grey[:, ::-1]
        return hog(grey, orientations=BINS, pixels_per_cell=(8, 8), cells_per_block=(2, 2))


def produce(ring, files, kinds):
    torch.set_num_threads(1)
    rows = np.empty((ring.batch, FEATURES + 1), np.float32)
    try:
        while True:
            for k, path in enumerate(random.sample(files, ring.batch)):
                rows[k, :FEATURES] = describe(path)
                rows[k, FEATURES] = kinds.index(path.parent.name)
            ring.put(rows)
    except KeyboardInterrupt:
        pass


class Experts(nn.Module):
    """Four small perceptrons and a gate."""

    def __init__(self, classes, experts=4, width=48):
        super().__init__()
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(FEATURES, width), nn.ReLU(), nn.Dropout(0.3), nn.Linear(width, classes))
            for _ in range(experts)
        )
        self.gate = nn.Linear(FEATURES, experts)

    def forward(self, x):
        shares = self.gate(x).softmax(1)
        return sum(shares[:, k, None] * expert(x) for k, expert in enumerate(self.experts))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/hog_ring_buffer"))
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--batch", type=int, default=12)
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    files = sorted((args.data / "photos").glob("*/*.JPEG"))
    kinds = sorted({file.parent.name for file in files})
    context = mp.get_context("fork")
    ring = Ring(context, slots=6, batch=args.batch)
    producer = context.Process(target=produce, args=(ring, files, kinds), daemon=True)
    producer.start()
    model = Experts(len(kinds))
    optimizer = torch.optim.Adam(model.parameters(), 3e-4)
    try:
        for step in range(args.steps):
            with lap("wait"):
                features, labels = ring.get()
            with lap("compute"):
                loss = nn.functional.cross_entropy(model(features), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            if step % 50 == 0:
                print(f"step {step}: loss {loss.item():.3f}", flush=True)
        torch.save(model.state_dict(), args.out / "experts.pt")
    finally:
        producer.terminate()
        producer.join()
        ring.close()


if __name__ == "__main__":
    main()
