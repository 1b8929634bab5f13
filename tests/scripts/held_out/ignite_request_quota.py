"""Ignite: photographs from a store that answers so many requests a second for the whole account.

Here the store is a folder, and the client keeps to the quota by itself, as the real one's SDK does.
"""

import argparse
import io
import multiprocessing
import random
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch
from ignite.engine import Engine, Events
from ignite.handlers import ModelCheckpoint
from ignite.metrics import Accuracy, RunningAverage
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stopwatch import lap


class Quota:
    """`rate` requests a second in all processes together: each asker takes the next free slot and waits for it."""

    def __init__(self, rate):
        self.gap = 1 / rate
        self.next_slot = multiprocessing.Value("d", 0.0)

    def wait_for_slot(self):
        with self.next_slot.get_lock():
            slot = max(time.monotonic(), self.next_slot.value)
            self.next_slot.value = slot + self.gap
        time.sleep(max(0.0, slot - time.monotonic()))


class Store:
    def __init__(self, root: Path, quota: Quota):
        self.root, self.quota = root, quota

    def keys(self):
        return sorted(path.relative_to(self.root).as_posix() for path in self.root.glob("*/*.JPEG"))

    def fetch(self, key):
        self.quota.wait_for_slot()
        return (self.root / key).read_bytes()


class StoredPhotos(Dataset):
    def __init__(self, store: Store, side: int):
        self.store, self.side = store, side
        self.keys = store.keys()
        self.classes = sorted({key.split("/")[0] for key in self.keys})

    def __len__(self):
        return len(self.keys)

    def __getitem__(self, index):
        key = self.keys[index]
        with lap("read"):
            blob = self.store.fetch(key)
        with lap("decode"):
            image = Image.open(io.BytesIO(blob))
            image.draft("RGB", (self.side, self.side))
            image = image.convert("RGB")
        with lap("transform"):
            image = np.array(image.resize((self.side + 8, self.side + 8), Image.Resampling.BILINEAR))
            y, x = random.randint(0, 8), random.randint(0, 8)
            image = torch.from_numpy(image[y : y + self.side, x : x + self.side].transpose(2, 0, 1).copy())
        return image, self.classes.index(key.split("/")[0])


def small_cnn(classes):
    return nn.Sequential(
        nn.Conv2d(3, 24, 5, stride=2, padding=2),
        nn.BatchNorm2d(24),
        nn.ReLU(),
        nn.Conv2d(24, 32, 3, stride=2, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(512, classes),
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", default="runs/ignite_request_quota")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--rate", type=float, default=70.0, help="requests a second that the store allows")
    args = parser.parse_args()
    torch.manual_seed(43)
    torch.set_num_threads(1)

    photos = StoredPhotos(Store(args.data / "photos", Quota(args.rate)), side=56)
    loader = DataLoader(
        photos,
        batch_size=args.batch_size,
        shuffle=True,
        num_workers=args.workers,
        persistent_workers=args.workers > 0,
    )
    model = small_cnn(len(photos.classes))
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)

    def update(engine, batch):
        model.train()
        with lap("compute"):
            images, labels = batch
            scores = model(images.float() / 127.5 - 1)
            loss = nn.functional.cross_entropy(scores, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return {"loss": loss.item(), "y_pred": scores.detach(), "y": labels}

    trainer, waiting = Engine(update), ExitStack()
    RunningAverage(output_transform=lambda output: output["loss"]).attach(trainer, "loss")
    Accuracy(output_transform=lambda output: (output["y_pred"], output["y"])).attach(trainer, "accuracy")

    @trainer.on(Events.GET_BATCH_STARTED)
    def begin_wait():
        waiting.close()
        waiting.enter_context(lap("wait"))

    @trainer.on(Events.GET_BATCH_COMPLETED)
    def end_wait():
        waiting.close()

    @trainer.on(Events.ITERATION_COMPLETED(every=25))
    def tell(engine):
        print(f"iteration {engine.state.iteration}: loss {engine.state.metrics['loss']:.4f}", flush=True)

    @trainer.on(Events.EPOCH_COMPLETED)
    def tell_epoch(engine):
        print(f"epoch {engine.state.epoch}: {engine.state.metrics['accuracy']:.1%} right", flush=True)

    keep = ModelCheckpoint(args.out, "quota", n_saved=1, require_empty=False)
    trainer.add_event_handler(Events.EPOCH_COMPLETED, keep, {"model": model})
    trainer.run(loader, max_epochs=args.epochs)


if __name__ == "__main__":
    main()
