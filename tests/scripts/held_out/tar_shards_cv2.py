"""A tar reader of one's own: an IterableDataset over shards, split between the workers, and OpenCV for the pixels."""

import argparse
import random
import tarfile
import tempfile
from pathlib import Path

import cv2
import numpy as np
import torch
from stopwatch import lap, timed
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


def make_shards(photos, folder, number):
    """The photographs and their classes as NNNN.jpg and NNNN.cls, one after another."""
    classes = sorted(path.name for path in photos.iterdir() if path.is_dir())
    files = sorted(photos.glob("*/*"))
    random.Random(4).shuffle(files)
    for k in range(number):
        with tarfile.open(folder / f"shard{k:03d}.tar", "w") as tar:
            for i, file in enumerate(files[k::number]):
                tar.add(file, arcname=f"{i:05d}.jpg")
                label = folder / "label"
                label.write_text(str(classes.index(file.parent.name)))
                tar.add(label, arcname=f"{i:05d}.cls")
    return sorted(folder.glob("shard*.tar")), classes


class TarSamples(IterableDataset):
    def __init__(self, shards, side, buffer=100):
        super().__init__()
        self.shards, self.side, self.buffer = shards, side, buffer

    def my_shards(self):
        info = get_worker_info()
        shards = random.sample(self.shards, len(self.shards))
        return shards if info is None else sorted(self.shards)[info.id :: info.num_workers]

    def records(self):
        for shard in self.my_shards():
            with tarfile.open(shard, "r|") as tar:
                sample = {}
                for member in tar:
                    key, extension = member.name.split(".")
                    with lap("read"):
                        sample[extension] = tar.extractfile(member).read()
                    if extension == "cls":
                        yield sample["jpg"], int(sample["cls"])
                        sample = {}

    def shuffled(self):
        held = []
        for record in self.records():
            held.append(record)
            if len(held) >= self.buffer:
                k = random.randrange(len(held))
                held[k], held[-1] = held[-1], held[k]
                yield held.pop()
        random.shuffle(held)
        yield from held

    def smooth(self, image):
        """Takes the sensor's noise away and keeps the edges; OpenCV spreads this over its own threads."""
        return cv2.bilateralFilter(image, d=11, sigmaColor=40, sigmaSpace=7)

    def __iter__(self):
        for jpeg, label in self.shuffled():
            with lap("decode"):
                image = cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_COLOR)
            with lap("transform"):
                image = self.smooth(image)
                image = cv2.resize(image, (self.side, self.side), interpolation=cv2.INTER_AREA)
                if random.random() < 0.5:
                    image = cv2.flip(image, 1)
                image = cv2.cvtColor(image, cv2.COLOR_BGR2RGB)
            yield torch.from_numpy(image).permute(2, 0, 1).contiguous(), label


def train(args, folder):
    torch.set_num_threads(1)
    shards, classes = make_shards(args.data / "photos", folder, args.shards)
    loader = DataLoader(TarSamples(shards, args.side), batch_size=32, num_workers=args.workers, drop_last=True)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, len(classes)),
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    seen = 0
    for epoch in range(args.epochs):
        for images, labels in timed(loader, "wait"):
            with lap("compute"):
                loss = nn.functional.cross_entropy(model(images.float() / 255), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            seen += len(labels)
            if seen % 640 == 0:
                print(f"{seen} photographs, loss {loss.item():.3f}", flush=True)
    args.out.mkdir(parents=True, exist_ok=True)
    torch.save({"model": model.state_dict(), "classes": classes}, args.out / "final.pt")


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("data", type=Path)
    p.add_argument("--out", type=Path, default="runs/tar_shards_cv2")
    p.add_argument("--epochs", type=int, default=1)
    p.add_argument("--shards", type=int, default=11)
    p.add_argument("--side", type=int, default=96)
    p.add_argument("--workers", type=int, default=1)
    with tempfile.TemporaryDirectory() as temporary:
        train(p.parse_args(), Path(temporary))
