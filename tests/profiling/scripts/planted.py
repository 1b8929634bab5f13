"""One small image-training script with one planted cost, as `PLANT` on the command line:

decode, read, collate, slow_worker, serialise, compute, main_thread, transform, none; with --device cuda also
copy (large batches of floats from pageable memory) and sync (a number of every gradient in every step)
"""

import argparse
import io
import json
import os
import time

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset, get_worker_info
from torch.utils.data.dataloader import default_collate


def spin(seconds):
    """Use a core for that long."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


class Ready(Dataset):
    """Whole batches that are there already."""

    def __init__(self, count):
        self.count = count
        self.batches = [(torch.rand(64, 3, 224, 224), torch.randint(10, (64,))) for _ in range(4)]

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return self.batches[index % len(self.batches)]


class Trace:
    """What torch.profiler sees of some steps: kernels, and when the loop got a batch and asked for the next."""

    def __init__(self, file, first=30, last=90):
        self.file, self.first, self.last = file, first, last

    def got(self, number):
        if self.file and number == self.first:
            kinds = torch.profiler.ProfilerActivity
            self.profiler = torch.profiler.profile(activities=[kinds.CPU, kinds.CUDA])
            self.profiler.start()
        self.mark("got", number)

    def asks(self, number):
        self.mark("asks", number)
        if self.file and number == self.last:
            torch.cuda.synchronize()
            self.profiler.stop()
            self.profiler.export_chrome_trace(self.file)

    def mark(self, what, number):
        if self.file and self.first <= number <= self.last:
            with torch.profiler.record_function(f"loop:{what}:{number}"):
                pass


class Stopwatch:
    """What each part takes by its own clock, written down now and then, in every process."""

    def __init__(self, folder, every=50):
        self.folder, self.every = folder, every
        self.samples, self.spent = 0, {"read": 0.0, "decode": 0.0, "transform": 0.0, "collate": 0.0}

    def lap(self, part, since):
        now = time.perf_counter()
        self.spent[part] += now - since
        return now

    def count(self):
        self.samples += 1
        if self.folder and self.samples % self.every == 0:
            with open(f"{self.folder}/{os.getpid()}", "a") as file:
                file.write(json.dumps([time.perf_counter(), self.samples, self.spent]) + "\n")


class Jitter:
    def __init__(self, seconds):
        self.seconds = seconds

    def __call__(self, image):
        spin(self.seconds)
        return image


class Pictures(Dataset):
    def __init__(self, plant, samples, cost, folder, watch):
        self.watch = watch
        self.plant, self.samples, self.cost, self.folder = plant, samples, cost, folder
        self.boxes = [[i / 7 for i in range(8000)] for _ in range(12)]
        self.transform = Jitter(cost if plant == "transform" else 0.0)

    def __len__(self):
        return self.samples

    def read_bytes(self, index):
        with open(f"{self.folder}/{index % 8}.jpg", "rb") as file:
            data = file.read()
        if self.plant == "read":
            time.sleep(self.cost)
        return data

    def decode(self, image):
        image = image.convert("RGB")
        if self.plant == "decode":
            spin(self.cost)
        return image

    def __getitem__(self, index):
        now = time.perf_counter()
        image = Image.open(io.BytesIO(self.read_bytes(index)))
        now = self.watch.lap("read", now)
        image = self.decode(image)
        now = self.watch.lap("decode", now)
        image = self.transform(image)
        if self.plant == "slow_worker" and get_worker_info() is not None and get_worker_info().id == 0:
            image = self.resize_twice(image)
        array = torch.from_numpy(np.asarray(image, dtype=np.float32) / 255).permute(2, 0, 1)
        self.watch.lap("transform", now)
        self.watch.count()
        if self.plant == "serialise":
            return array, index % 10, [row[:] for row in self.boxes]
        return array, index % 10

    def resize_twice(self, image):
        spin(self.cost)
        return image


def slow_collate(samples):
    now = time.perf_counter()
    spin(slow_collate.cost * len(samples))
    batch = default_collate(samples)
    slow_collate.watch.lap("collate", now)
    return batch


def keep_lists(samples):
    images, labels, extra = zip(*samples)
    return torch.stack(images), torch.tensor(labels), list(extra)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("plant")
    parser.add_argument("folder")
    parser.add_argument("--cost-ms", type=float, default=3.0)
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--start-method", default=None)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--trace", help="a file for what torch.profiler sees of steps 30 to 90")
    parser.add_argument("--log", help="a file for the seconds that the epoch took after its first 20 batches")
    parser.add_argument("--clock", help="a folder for what each part took by the script's own clock")
    args = parser.parse_args()
    cost = args.cost_ms / 1e3
    torch.set_num_threads(1)
    watch = Stopwatch(args.clock)
    dataset = Pictures(args.plant, args.samples, cost, args.folder, watch)
    slow_collate.cost, slow_collate.watch = cost, watch
    collate = {"collate": slow_collate, "serialise": keep_lists}.get(args.plant)
    loader = DataLoader(
        dataset,
        batch_size=args.batch_size,
        num_workers=args.workers,
        collate_fn=collate,
        multiprocessing_context=args.start_method,
    )
    if args.plant == "copy":
        loader = DataLoader(Ready(args.samples // 64), batch_size=None)
    width = 96 if args.plant == "compute" else 4
    model = nn.Sequential(
        nn.Conv2d(3, width, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10)
    )
    model.to(args.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    criterion = nn.CrossEntropyLoss()
    history, trace = [], Trace(args.trace)
    for number, batch in enumerate(loader):
        trace.got(number)
        if number == 20:
            started = time.perf_counter()
        images, labels = batch[0], batch[1]
        if args.device != "cpu":
            images, labels = images.to(args.device), labels.to(args.device)
        optimizer.zero_grad()
        if args.plant == "compute":
            for _ in range(4 if args.device == "cpu" else 60):
                criterion(model(images), labels).backward()
        loss = criterion(model(images), labels)
        loss.backward()
        optimizer.step()
        if args.plant == "main_thread":
            history = summarise(history, float(loss), cost * len(images))
        if args.plant == "sync":
            history = [p.grad.norm().item() for _ in range(100) for p in model.parameters()]
        trace.asks(number)
    if args.log:
        with open(args.log, "w") as file:
            file.write(f"{time.perf_counter() - started}")


def summarise(history, loss, seconds):
    """What bookkeeping in the loop looks like."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        history = json.loads(json.dumps([*history, loss]))[-50:]
    return history


if __name__ == "__main__":
    main()
