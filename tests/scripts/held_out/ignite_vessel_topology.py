"""Ignite: outlines of the subject as thin bright structures. A segmentation may be right pixel by pixel and still
fall to pieces, so the lifetimes of its connected parts (persistent homology in dimension 0) are followed next to the
loss."""

import argparse
import random
from contextlib import ExitStack
from pathlib import Path

import cv2
import numpy as np
import torch
from ignite.engine import Engine, Events
from ignite.handlers import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from stopwatch import lap


def lifetimes(chances):
    """Birth and death of each connected part as the threshold falls: pixels are joined from the brightest on."""
    height, width = chances.shape
    values = chances.ravel().tolist()
    order = sorted(range(height * width), key=values.__getitem__, reverse=True)
    parent, pairs = [-1] * len(values), []

    def root(pixel):
        while parent[pixel] != pixel:
            parent[pixel] = parent[parent[pixel]]
            pixel = parent[pixel]
        return pixel

    for pixel in order:
        parent[pixel] = pixel
        row, column = divmod(pixel, width)
        for near, inside in (
            (pixel - width, row > 0),
            (pixel + width, row < height - 1),
            (pixel - 1, column > 0),
            (pixel + 1, column < width - 1),
        ):
            if not inside or parent[near] < 0:
                continue
            one, other = root(pixel), root(near)
            if one == other:
                continue
            if values[one] < values[other]:
                one, other = other, one
            if values[other] > values[pixel]:
                pairs.append((values[other], values[pixel]))
            parent[other] = one
    return pairs


class Topology:
    """How many parts live for long, in the guess and in the truth."""

    def __init__(self, file, least=0.3):
        self.file, self.least = file, least
        self.error = None

    def __call__(self, engine):
        with lap("own"):
            chances, truths = engine.state.output["chances"], engine.state.output["truths"]
            errors = []
            for chance, truth in zip(chances, truths):
                parts = 1 + sum(birth - death > self.least for birth, death in lifetimes(chance))
                true_parts = cv2.connectedComponents(truth, connectivity=4)[0] - 1
                errors.append(abs(parts - true_parts))
            error = sum(errors) / len(errors)
            self.error = error if self.error is None else 0.95 * self.error + 0.05 * error
            with self.file.open("a") as file:
                file.write(
                    f"{engine.state.iteration},{engine.state.output['loss']:.4f},{error:.2f},{self.error:.2f}\n"
                )


def load(root, count, side):
    images, masks = [], []
    for file in random.sample(sorted(root.glob("*/*.JPEG")), count):
        photo = cv2.resize(cv2.imread(str(file), cv2.IMREAD_REDUCED_COLOR_4), (side, side))
        edges = cv2.Canny(cv2.GaussianBlur(photo, (3, 3), 0), 90, 180)
        images.append(torch.from_numpy(photo).permute(2, 0, 1))
        masks.append(torch.from_numpy((edges > 0).astype(np.uint8)))
    return TensorDataset(torch.stack(images), torch.stack(masks))


def network(width=6):
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
        nn.Conv2d(width, width, 3, padding=2, dilation=2), nn.BatchNorm2d(width), nn.ReLU(),
        nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, 1, 1),
    )  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/ignite_vessel_topology"))
    parser.add_argument("--epochs", type=int, default=500)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    random.seed(9)
    loader = DataLoader(load(args.data / "photos", 900, side=48), 12, shuffle=True, drop_last=True)
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

    def update(engine, batch):
        with lap("compute"):
            images, masks = batch
            logits = model(images.float() / 127.5 - 1).squeeze(1)
            truth = masks.float()
            chance = logits.sigmoid()
            dice = 1 - (2 * (chance * truth).sum() + 1) / (chance.sum() + truth.sum() + 1)
            loss = nn.functional.binary_cross_entropy_with_logits(logits, truth) + dice
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return {"loss": loss.item(), "chances": chance.detach().numpy(), "truths": masks.numpy()}

    trainer, waiting = Engine(update), ExitStack()
    trainer.add_event_handler(Events.GET_BATCH_STARTED, lambda: waiting.enter_context(lap("wait")))
    trainer.add_event_handler(Events.GET_BATCH_COMPLETED, waiting.close)
    topology = Topology(args.out / "parts.csv")
    trainer.add_event_handler(Events.ITERATION_COMPLETED, topology)
    saver = ModelCheckpoint(args.out, "vessels", n_saved=1, require_empty=False)
    trainer.add_event_handler(Events.EPOCH_COMPLETED, saver, {"model": model})

    @trainer.on(Events.ITERATION_COMPLETED(every=20))
    def report(engine):
        print(
            f"{engine.state.iteration}: {engine.state.output['loss']:.4f}, parts off by {topology.error:.1f}",
            flush=True,
        )

    trainer.run(loader, max_epochs=args.epochs)


if __name__ == "__main__":
    main()
