"""Ignite: a small GAN of sprites, its Frechet distance to the real ones followed closely, as the losses say nothing."""

import argparse
import os
from collections import deque
from contextlib import ExitStack
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before NumPy is loaded

import numpy as np  # noqa: E402
import torch  # noqa: E402
from ignite.engine import Engine, Events  # noqa: E402
from ignite.handlers import Timer  # noqa: E402
from PIL import Image  # noqa: E402
from scipy import linalg  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.functional import softplus  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402
from torchvision.utils import save_image  # noqa: E402

from stopwatch import lap  # noqa: E402

SIDE, NOISE, FEATURES = 32, 48, 576


def sprites(photos: Path, each=80):
    found = []
    for folder in sorted(p for p in photos.iterdir() if p.is_dir()):
        for file in sorted(folder.iterdir())[:each]:
            image = Image.open(file)
            image.draft("RGB", (2 * SIDE, 2 * SIDE))
            found.append(np.asarray(image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BOX)))
    return torch.from_numpy(np.stack(found)).permute(0, 3, 1, 2).float() / 127.5 - 1


def generator(width=32):
    return nn.Sequential(
        nn.ConvTranspose2d(NOISE, 4 * width, 4), nn.BatchNorm2d(4 * width), nn.ReLU(),
        nn.ConvTranspose2d(4 * width, 2 * width, 4, 2, 1), nn.BatchNorm2d(2 * width), nn.ReLU(),
        nn.ConvTranspose2d(2 * width, width, 4, 2, 1), nn.BatchNorm2d(width), nn.ReLU(),
        nn.ConvTranspose2d(width, 3, 4, 2, 1), nn.Tanh(),
    )  # fmt: skip


def critic(width=24):
    return nn.Sequential(
        nn.Conv2d(3, width, 4, 2, 1), nn.LeakyReLU(0.2),
        nn.Conv2d(width, 2 * width, 4, 2, 1), nn.LeakyReLU(0.2),
        nn.Conv2d(2 * width, 4 * width, 4, 2, 1), nn.LeakyReLU(0.2),
        nn.Flatten(), nn.Linear(64 * width, 1),
    )  # fmt: skip


class Frechet:
    """The distance of two clouds of features of an untrained network, taken as normal distributions."""

    def __init__(self, real, keep=640):
        self.net = nn.Sequential(
            nn.Conv2d(3, 32, 4, 4), nn.ReLU(), nn.Conv2d(32, FEATURES, 3, 2), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        ).requires_grad_(False)  # fmt: skip
        self.mean, self.covariance = self.moments(self.net(real).numpy())
        self.recent = deque(maxlen=keep // 32)

    def moments(self, features):
        return features.mean(0), np.cov(features, rowvar=False) + 1e-4 * np.eye(FEATURES)

    def add(self, images):
        self.recent.append(self.net(images.detach()).numpy())

    def distance(self):
        mean, covariance = self.moments(np.concatenate(self.recent))
        root = linalg.sqrtm(self.covariance @ covariance)
        shift = np.square(self.mean - mean).sum()
        return float(shift + np.trace(self.covariance + covariance - 2 * np.real(root)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/ignite_frechet_sprites"))
    parser.add_argument("--epochs", type=int, default=60)
    args = parser.parse_args()
    torch.manual_seed(6)
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    real = sprites(args.data / "photos")
    loader = DataLoader(TensorDataset(real), batch_size=32, shuffle=True, drop_last=True)
    painter, judge, frechet = generator(), critic(), Frechet(real)
    paint = torch.optim.Adam(painter.parameters(), lr=2e-4, betas=(0.5, 0.999))
    learn = torch.optim.Adam(judge.parameters(), lr=2e-4, betas=(0.5, 0.999))

    def update(engine, batch):
        with lap("compute"):
            (images,) = batch
            fakes = painter(torch.randn(len(images), NOISE, 1, 1))
            loss = softplus(-judge(images)).mean() + softplus(judge(fakes.detach())).mean()
            learn.zero_grad()
            loss.backward()
            learn.step()
            fooled = softplus(-judge(fakes)).mean()
            paint.zero_grad()
            fooled.backward()
            paint.step()
        return {"judge": loss.item(), "painter": fooled.item(), "fakes": fakes.detach()}

    trainer, waiting, clock = Engine(update), ExitStack(), Timer(average=True)
    trainer.add_event_handler(Events.GET_BATCH_STARTED, lambda: waiting.enter_context(lap("wait")))
    trainer.add_event_handler(Events.GET_BATCH_COMPLETED, waiting.close)
    clock.attach(trainer, step=Events.ITERATION_COMPLETED)
    best = float("inf")

    @trainer.on(Events.ITERATION_COMPLETED)
    def remember(engine):
        with lap("own"):
            frechet.add(engine.state.output["fakes"])

    @trainer.on(Events.ITERATION_COMPLETED(every=2))
    def compare(engine):
        nonlocal best
        with lap("own"):
            engine.state.metrics["frechet"] = distance = frechet.distance()
            if distance < best:
                best = distance
                torch.save(painter.state_dict(), args.out / "painter.pt")

    @trainer.on(Events.EPOCH_COMPLETED)
    def show(engine):
        save_image(engine.state.output["fakes"], args.out / "sprites.png", normalize=True)
        distance = engine.state.metrics["frechet"]
        losses = f"judge {engine.state.output['judge']:.3f}, painter {engine.state.output['painter']:.3f}"
        print(f"epoch {engine.state.epoch}: {distance:.3f}, {losses}, {clock.value():.3f} s", flush=True)

    trainer.run(loader, max_epochs=args.epochs)


if __name__ == "__main__":
    main()
