"""Ignite and a small 3D network that tells which way a camera pans; medians of the loss are kept for each direction."""

import argparse
import statistics
from collections import defaultdict, deque
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch
from ignite.engine import Engine, Events
from ignite.handlers import EarlyStopping, ModelCheckpoint
from PIL import Image
from stopwatch import lap
from torch import nn
from torch.utils.data import DataLoader, Dataset

DIRECTIONS = {"left": (-2, 0), "right": (2, 0), "up": (0, -2), "down": (0, 2), "still": (0, 0), "fall": (2, 2)}


class Pans(Dataset):
    """Clips of eight frames: a window that moves over a photo kept in memory."""

    def __init__(self, root, side=48, frames=8, most=200):
        self.side, self.frames = side, frames
        files = sorted(root.glob("*/*.[jJ]*"))
        self.photos = [self.load(file) for file in files[:: max(1, len(files) // most)]]
        self.moves = list(DIRECTIONS.values())

    @staticmethod
    def load(file):
        with Image.open(file) as photo:
            photo.draft("RGB", (250, 188))
            return np.asarray(photo.convert("RGB").resize((160, 120)))

    def __len__(self):
        return 960

    def __getitem__(self, index):
        with lap("read"):
            photo = self.photos[index % len(self.photos)]
            label = np.random.randint(len(self.moves))
            dx, dy = self.moves[label]
            x, y = np.random.randint(20, 160 - self.side - 20), np.random.randint(20, 120 - self.side - 20)
            clip = []
            for t in range(self.frames):
                top, left = y + dy * t, x + dx * t
                clip.append(photo[top : top + self.side, left : left + self.side])
            return torch.from_numpy(np.stack(clip)).permute(3, 0, 1, 2), label


def block(before, after, stride):
    return nn.Sequential(
        nn.Conv3d(before, after, 3, stride=stride, padding=1), nn.BatchNorm3d(after), nn.ReLU(inplace=True)
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--out", default="runs/ignite_pan_clips")
    args = parser.parse_args()

    loader = DataLoader(Pans(args.data / "photos"), batch_size=12, num_workers=1, persistent_workers=True)
    model = nn.Sequential(
        block(3, 16, 1), block(16, 32, 2), block(32, 64, 2), nn.AdaptiveAvgPool3d(1), nn.Flatten(),
        nn.Linear(64, len(DIRECTIONS)),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    criterion = nn.CrossEntropyLoss(reduction="none")
    history = defaultdict(lambda: deque(maxlen=400))

    def update(engine, batch):
        with lap("compute"):
            clips, labels = batch
            losses = criterion(model(clips.float() / 255), labels)
            optimizer.zero_grad()
            losses.mean().backward()
            optimizer.step()
        return losses.detach().tolist(), labels.tolist()

    trainer, waiting = Engine(update), ExitStack()
    trainer.add_event_handler(Events.GET_BATCH_STARTED, lambda: waiting.enter_context(lap("wait")))
    trainer.add_event_handler(Events.GET_BATCH_COMPLETED, waiting.close)

    @trainer.on(Events.ITERATION_COMPLETED)
    def medians(engine):
        """After every step, all the medians and quartiles anew, by the statistics module."""
        with lap("own"):
            for value, label in zip(*engine.state.output):
                history[label].append(value)
            engine.state.metrics["table"] = {
                name: statistics.quantiles(history[n], n=4)
                for n, name in enumerate(DIRECTIONS)
                if len(history[n]) > 1
            }

    @trainer.on(Events.ITERATION_COMPLETED(every=20))
    def show(engine):
        cells = (f"{name} {quarters[1]:.2f}" for name, quarters in engine.state.metrics["table"].items())
        print(f"{engine.state.epoch}:{engine.state.iteration:5d}  " + "  ".join(cells), flush=True)

    def score(engine):
        return -statistics.fmean(engine.state.output[0])

    keep = ModelCheckpoint(args.out, "pans", n_saved=1, require_empty=False)
    trainer.add_event_handler(Events.EPOCH_COMPLETED, keep, {"model": model})
    trainer.add_event_handler(Events.EPOCH_COMPLETED, EarlyStopping(50, score, trainer))
    trainer.run(loader, max_epochs=args.epochs)


if __name__ == "__main__":
    main()
