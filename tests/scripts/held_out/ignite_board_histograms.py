"""Ignite with its TensorBoard logger: how weights and gradients spread is watched from the first step on."""

import argparse
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch
from ignite.engine import Engine, Events
from ignite.handlers.tensorboard_logger import (
    GradsHistHandler,
    OutputHandler,
    TensorboardLogger,
    WeightsHistHandler,
)
from ignite.metrics import RunningAverage
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from stopwatch import lap


class Squeeze(nn.Module):
    """Channels are weighed by what the whole picture holds."""

    def __init__(self, width, narrow=8):
        super().__init__()
        self.weigh = nn.Sequential(nn.Linear(width, narrow), nn.ReLU(), nn.Linear(narrow, width), nn.Sigmoid())

    def forward(self, x):
        return x * self.weigh(x.mean((2, 3)))[:, :, None, None]


class Unit(nn.Module):
    def __init__(self, before, width, stride):
        super().__init__()
        self.far = nn.Conv2d(before, before, 3, stride, 1, groups=before)
        self.near = nn.Conv2d(before, width, 1)
        self.norm = nn.BatchNorm2d(width)
        self.squeeze = Squeeze(width)

    def forward(self, x):
        return torch.relu(self.squeeze(self.norm(self.near(self.far(x)))))


def network(classes):
    units, before = [], 24
    for width, stride in [(48, 2), (64, 1), (96, 2)]:
        units.append(Unit(before, width, stride))
        before = width
    stem = [nn.Conv2d(3, 24, 3, 2, 1), nn.ReLU()]
    return nn.Sequential(*stem, *units, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes))


def load(photos: Path, side=48, each=90):
    images, labels = [], []
    for label, folder in enumerate(sorted(path for path in photos.iterdir() if path.is_dir())):
        for file in sorted(folder.iterdir())[:each]:
            image = Image.open(file)
            image.draft("RGB", (side, side))
            images.append(np.asarray(image.convert("RGB").resize((side, side))))
            labels.append(label)
    return TensorDataset(torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).contiguous(), torch.tensor(labels))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/ignite_board_histograms"))
    parser.add_argument("--epochs", type=int, default=80)
    args = parser.parse_args()
    torch.manual_seed(3)
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    loader = DataLoader(load(args.data / "photos"), batch_size=24, shuffle=True, drop_last=True)
    model = network(10)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)

    def update(engine, batch):
        with lap("compute"):
            images, labels = batch
            loss = nn.functional.cross_entropy(model(images.float() / 127.5 - 1), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return {"loss": loss.item()}

    trainer, laps = Engine(update), ExitStack()
    RunningAverage(output_transform=lambda output: output["loss"]).attach(trainer, "loss")
    trainer.add_event_handler(Events.GET_BATCH_STARTED, lambda: laps.enter_context(lap("wait")))
    trainer.add_event_handler(Events.GET_BATCH_COMPLETED, laps.close)
    trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda: laps.enter_context(lap("own")))
    board = TensorboardLogger(log_dir=args.out / "board")
    board.attach(trainer, WeightsHistHandler(model), Events.ITERATION_COMPLETED)
    board.attach(trainer, GradsHistHandler(model), Events.ITERATION_COMPLETED)
    board.attach(trainer, OutputHandler("training", metric_names=["loss"]), Events.ITERATION_COMPLETED)
    trainer.add_event_handler(Events.ITERATION_COMPLETED, laps.close)

    @trainer.on(Events.EPOCH_COMPLETED)
    def show(engine):
        print(f"epoch {engine.state.epoch}: loss {engine.state.metrics['loss']:.4f}", flush=True)

    trainer.run(loader, max_epochs=args.epochs)
    board.close()
    torch.save(model.state_dict(), args.out / "model.pt")


if __name__ == "__main__":
    main()
