"""Ignite: pictures looked up in a register of a museum (a JSON file of many lines). The register is opened lazily, so
that the dataset is small when it goes to the workers."""

import argparse
import json
import random
from functools import cached_property
from pathlib import Path

import torch
from ignite.engine import Engine, Events
from ignite.metrics import RunningAverage
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset, RandomSampler
from torchvision import transforms

from stopwatch import lap, timed


def write_register(photos: Path, path: Path, lines: int, seed=21):
    """A line of JSON for each object of the collection; the objects with a photograph are among them."""
    rng = random.Random(seed)
    files = sorted(photos.glob("*/*.JPEG"))
    folders = sorted({file.parent.name for file in files})
    with open(path, "w") as out:
        for number in range(lines):
            entry = {"id": f"MUS.{number:06d}", "room": rng.randrange(60), "size": [rng.randrange(900), 40, 7]}
            if number % (lines // len(files)) == 0 and number // (lines // len(files)) < len(files):
                file = files[number // (lines // len(files))]
                entry["photo"], entry["kind"] = str(file), folders.index(file.parent.name)
            out.write(json.dumps(entry) + "\n")


class Collection(Dataset):
    def __init__(self, register: Path, length: int, transform):
        self.path, self.length, self.transform = register, length, transform

    @cached_property
    def register(self):
        """The objects with a photograph, by room, then by number."""
        with lap("register"), open(self.path) as lines:
            objects = [json.loads(line) for line in lines]
            return sorted((item for item in objects if "photo" in item), key=lambda item: (item["room"], item["id"]))

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        item = self.register[index]
        with lap("decode"):
            image = Image.open(item["photo"])
            image.draft("RGB", (96, 96))
            image = image.convert("RGB")
        return self.transform(image), item["kind"]


class TimedLoader(DataLoader):
    def __iter__(self):
        yield from timed(super().__iter__(), "wait")


def make_trainer(model, optimizer):
    def update(engine, batch):
        pictures, kinds = batch
        with lap("compute"):
            loss = nn.functional.cross_entropy(model(pictures), kinds)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss.item()

    trainer = Engine(update)
    RunningAverage(output_transform=float).attach(trainer, "loss")
    return trainer


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/ignite_lazy_register"))
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--lines", type=int, default=160_000)
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    photos = args.data / "photos"
    write_register(photos, args.out / "register.jsonl", args.lines)
    transform = transforms.Compose(
        [transforms.RandomResizedCrop(64, (0.4, 1.0)), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
    )
    collection = Collection(args.out / "register.jsonl", len(list(photos.glob("*/*.JPEG"))), transform)
    few = RandomSampler(collection, num_samples=16 * 24)
    loader = TimedLoader(collection, batch_size=16, sampler=few, num_workers=2)
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, stride=2), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Conv2d(32, 48, 3, stride=2), nn.BatchNorm2d(48), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, 10),
    )  # fmt: skip
    trainer = make_trainer(model, torch.optim.Adam(model.parameters(), 1e-3))

    @trainer.on(Events.EPOCH_COMPLETED)
    def tell(engine):
        print(f"epoch {engine.state.epoch}: loss {engine.state.metrics['loss']:.3f}", flush=True)
        torch.save(model.state_dict(), args.out / "collection.pt")

    trainer.run(loader, max_epochs=args.epochs)


if __name__ == "__main__":
    main()
