"""Ignite: how fast does the water run? A gauge's camera takes two pictures a moment apart. Dense optical flow between
them is what the network sees; it guesses speed and direction of the surface."""

import argparse
import math
import random
from contextlib import ExitStack
from pathlib import Path

import cv2
import numpy as np
import torch
from ignite.engine import Engine, Events
from ignite.handlers import ModelCheckpoint
from ignite.metrics import RunningAverage
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stopwatch import lap


class Gauge(Dataset):
    """Two looks at a moving surface: the second is shifted, turned a little and noisier."""

    def __init__(self, root, count, side=128):
        self.side = side
        files = random.sample(sorted(root.glob("*/*.JPEG")), count)
        self.photos = [cv2.imread(str(file), cv2.IMREAD_REDUCED_GRAYSCALE_2) for file in files]

    def __len__(self):
        return len(self.photos)

    def looks(self, photo):
        speed, angle = random.uniform(0, 6), random.uniform(-math.pi, math.pi)
        shift = speed * math.cos(angle), speed * math.sin(angle)
        centre = (photo.shape[1] / 2, photo.shape[0] / 2)
        turn = cv2.getRotationMatrix2D(centre, random.uniform(-1, 1), 1)
        turn[:, 2] += shift
        second = cv2.warpAffine(photo, turn, photo.shape[1::-1], borderMode=cv2.BORDER_REFLECT)
        top = random.randrange(max(1, photo.shape[0] - self.side))
        left = random.randrange(max(1, photo.shape[1] - self.side))
        pair = [look[top : top + self.side, left : left + self.side] for look in (photo, second)]
        return [cv2.resize(look, (self.side, self.side)) for look in pair], shift

    def flow(self, first, second):
        return cv2.calcOpticalFlowFarneback(
            first, second, None, 0.5, 4, 15, 3, 7, 1.5, cv2.OPTFLOW_FARNEBACK_GAUSSIAN
        )

    def __getitem__(self, index):
        (first, second), shift = self.looks(self.photos[index])
        noise = np.random.default_rng().normal(0, 4, second.shape)
        second = np.clip(second + noise, 0, 255).astype(np.uint8)
        field = cv2.resize(self.flow(first, second), (32, 32), interpolation=cv2.INTER_AREA)
        return torch.from_numpy(field).permute(2, 0, 1), torch.tensor(shift)


def network(width=16):
    return nn.Sequential(
        nn.Conv2d(2, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1), nn.BatchNorm2d(2 * width), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(2 * width, 2 * width, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
        nn.Linear(8 * width, 2),
    )  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/ignite_flow_rivers"))
    parser.add_argument("--epochs", type=int, default=1000)
    parser.add_argument("--batch-size", type=int, default=10)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    cv2.setNumThreads(0)
    gauge = Gauge(args.data / "photos", 500)
    loader = DataLoader(gauge, args.batch_size, shuffle=True, num_workers=1, persistent_workers=True, drop_last=True)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 500, 0.7)

    def update(engine, batch):
        with lap("compute"):
            fields, shifts = batch
            guess = model(fields)
            loss = nn.functional.huber_loss(guess, shifts)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        return {"loss": loss.item(), "off": (guess.detach() - shifts).norm(dim=1).mean().item()}

    trainer, waiting = Engine(update), ExitStack()
    RunningAverage(output_transform=lambda out: out["loss"]).attach(trainer, "loss")
    RunningAverage(output_transform=lambda out: out["off"]).attach(trainer, "off")
    trainer.add_event_handler(Events.GET_BATCH_STARTED, lambda: waiting.enter_context(lap("wait")))
    trainer.add_event_handler(Events.GET_BATCH_COMPLETED, waiting.close)
    saver = ModelCheckpoint(args.out, "gauge", n_saved=1, require_empty=False)
    trainer.add_event_handler(Events.EPOCH_COMPLETED(every=5), saver, {"model": model})

    @trainer.on(Events.ITERATION_COMPLETED)
    def report(engine):
        with lap("own"), open(args.out / "gauge.tsv", "a") as file:
            metrics = engine.state.metrics
            file.write(f"{engine.state.iteration}\t{metrics['loss']:.4f}\t{metrics['off']:.3f}\n")
            if engine.state.iteration % 50 == 0:
                print(f"{engine.state.iteration}: off by {metrics['off']:.2f} px", flush=True)

    trainer.run(loader, max_epochs=args.epochs)


if __name__ == "__main__":
    main()
