"""Ignite: a trainer engine with handlers, on records that come one by one from a slow store."""

import argparse
import time
from contextlib import ExitStack

import torch
from ignite.engine import Engine, Events
from ignite.handlers import ModelCheckpoint
from ignite.metrics import RunningAverage
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stopwatch import lap


class SlowStore(Dataset):
    """Stands in for an object store across the network: each record takes 10 ms to come, and no CPU."""

    def __init__(self, count, latency=0.010):
        self.count, self.latency = count, latency
        self.templates = torch.randint(0, 256, (64, 3, 64, 64), dtype=torch.uint8)

    def __len__(self):
        return self.count

    def read_record(self, key):
        with lap("read"):
            time.sleep(self.latency)
            return self.templates[key % len(self.templates)]

    def __getitem__(self, index):
        return self.read_record(index).float().div(255), index % 10


def run(args):
    torch.manual_seed(0)
    store = SlowStore(args.records)
    loader = DataLoader(store, batch_size=32, shuffle=True, num_workers=2, persistent_workers=True)
    layers, width = [], 3
    for after in (16, 32):
        layers += [nn.Conv2d(width, after, 3, stride=2, padding=1), nn.ReLU()]
        width = after
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    criterion = nn.CrossEntropyLoss()

    def train_step(engine, batch):
        model.train()
        with lap("compute"):
            x, y = batch
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
        return loss.item()

    trainer = Engine(train_step)
    RunningAverage(output_transform=lambda loss: loss).attach(trainer, "loss")
    laps = ExitStack()
    trainer.add_event_handler(Events.GET_BATCH_STARTED, lambda: laps.enter_context(lap("wait")))
    trainer.add_event_handler(Events.GET_BATCH_COMPLETED, lambda: laps.close())

    @trainer.on(Events.ITERATION_COMPLETED(every=20))
    def report(engine):
        state = engine.state
        print(f"epoch {state.epoch}/{state.max_epochs} iteration {state.iteration}: {state.metrics['loss']:.4f}")

    @trainer.on(Events.EPOCH_COMPLETED)
    def summary(engine):
        print(f"epoch {engine.state.epoch} took {engine.state.times[Events.EPOCH_COMPLETED.name]:.1f} s")

    checkpoint = ModelCheckpoint(args.out, "small", n_saved=1, require_empty=False)
    trainer.add_event_handler(Events.EPOCH_COMPLETED, checkpoint, {"model": model})
    trainer.run(loader, max_epochs=args.epochs)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", help="not read: the store makes its records")
    parser.add_argument("--records", type=int, default=3200)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--out", default="runs/ignite_sleep_read")
    run(parser.parse_args())
