"""Estimate the cloud cover of satellite scenes whose bands come one by one from an archive over the network.

The archive is simulated: files on the disk, behind a client that takes as long as the real service does.
"""

import argparse
import random
import time
from pathlib import Path

import numpy as np
import torch
from ignite.engine import Engine, Events
from ignite.handlers import TerminateOnNan
from ignite.metrics import RunningAverage
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stopwatch import lap

BANDS = ("blue", "red", "nir")
SCENES, SIDE = 240, 96


def make_archive(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(23)
    ramp = np.linspace(0, 6, SIDE)
    for scene in range(SCENES):
        if (folder / f"{scene:04d}-cover.npy").exists():
            continue
        a, b, c = rng.uniform(0.3, 1.6, 3)
        field = np.sin(a * ramp[:, None] + c) + np.cos(b * ramp[None, :] - c) + rng.normal(0, 0.2, (SIDE, SIDE))
        clouds = field > rng.uniform(-0.5, 1.5)
        for number, band in enumerate(BANDS):
            ground = rng.normal(900 + 400 * number, 150, (SIDE, SIDE))
            values = np.where(clouds, 5200 + 300 * number, ground)
            np.save(folder / f"{scene:04d}-{band}.npy", values.astype(np.uint16))
        np.save(folder / f"{scene:04d}-cover.npy", np.float32(clouds.mean()))


class ArchiveClient:
    """Get objects from the archive: a request goes out, the answer comes some 20 to 30 ms later."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.requests = 0

    def get_object(self, key: str) -> np.ndarray:
        self.requests += 1
        time.sleep(random.uniform(0.018, 0.03))
        return np.load(self.folder / f"{key}.npy")


class Scenes(Dataset):
    def __init__(self, folder: Path) -> None:
        self.client = ArchiveClient(folder)
        self.keys = sorted(path.name[:4] for path in folder.glob("*-cover.npy"))
        self.covers = {key: float(np.load(folder / f"{key}-cover.npy")) for key in self.keys}

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        key = self.keys[index]
        bands = np.stack([self.client.get_object(f"{key}-{band}") for band in BANDS])
        scaled = torch.from_numpy(bands.astype(np.float32) / 6000.0)
        if random.random() < 0.5:
            scaled = scaled.flip(-1)
        return scaled, torch.tensor(self.covers[key])


def make_model() -> nn.Module:
    layers, inputs = [], len(BANDS)
    for outputs in (16, 32, 64):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(4, outputs), nn.ReLU(), nn.MaxPool2d(2)]
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", help="the data folder (the scenes are made up here)")
    parser.add_argument("--epochs", type=int, default=1000)
    options = parser.parse_args()
    torch.manual_seed(1)
    make_archive(Path("archive"))
    loader = DataLoader(
        Scenes(Path("archive")), batch_size=12, shuffle=True, num_workers=2, drop_last=True, persistent_workers=True
    )
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    waits: list = []

    def update(engine: Engine, batch) -> dict:
        with lap("compute"):
            scenes, covers = batch
            guessed = model(scenes).squeeze(1).sigmoid()
            loss = nn.functional.smooth_l1_loss(guessed, covers, beta=0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with lap("own"):
            return {"loss": loss.item(), "error": (guessed.detach() - covers).abs().mean().item()}

    trainer = Engine(update)
    RunningAverage(output_transform=lambda out: out["loss"]).attach(trainer, "loss")
    RunningAverage(output_transform=lambda out: out["error"]).attach(trainer, "error")
    trainer.add_event_handler(Events.ITERATION_COMPLETED, TerminateOnNan(output_transform=lambda out: out["loss"]))

    @trainer.on(Events.GET_BATCH_STARTED)
    def begin_wait() -> None:
        waits.append(lap("wait"))
        waits[-1].__enter__()

    @trainer.on(Events.GET_BATCH_COMPLETED)
    def end_wait() -> None:
        waits.pop().__exit__(None, None, None)

    @trainer.on(Events.EPOCH_COMPLETED)
    def report(engine: Engine) -> None:
        values = engine.state.metrics
        print(f"epoch {engine.state.epoch}: loss {values['loss']:.4f}, mean error {values['error']:.3f}", flush=True)

    trainer.run(loader, max_epochs=options.epochs)


if __name__ == "__main__":
    main()
