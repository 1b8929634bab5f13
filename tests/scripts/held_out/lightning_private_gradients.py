"""Lightning with differential privacy: every sample's own gradient is clipped before noise is added (DP-SGD), by
torch.func; batches are Poisson samples of the photographs and an accountant follows what has been spent."""

import argparse
import math
from contextlib import ExitStack
from pathlib import Path

import lightning as L
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import CSVLogger
from stopwatch import lap
from torch import nn
from torch.func import functional_call, grad_and_value, vmap
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2


class PoissonBatches:
    """Each photograph is in a batch by a coin of its own."""

    def __init__(self, count, rate, steps):
        self.count, self.rate, self.steps = count, rate, steps

    def __len__(self):
        return self.steps

    def __iter__(self):
        for _ in range(self.steps):
            chosen = [index for index in range(self.count) if np.random.random() < self.rate]
            yield chosen or [int(np.random.randint(self.count))]


class Accountant(Callback):
    """Renyi orders of the subsampled Gaussian mechanism (the usual bound for small rates), after each step."""

    def __init__(self, rate, noise, delta=1e-5):
        self.orders = [1 + x / 4 for x in range(1, 200)]
        self.rate, self.noise, self.delta, self.steps = rate, noise, delta, 0

    def epsilon(self):
        spent = (
            self.steps * 3.5 * self.rate**2 * a / self.noise**2 + math.log(1 / self.delta) / (a - 1)
            for a in self.orders
        )
        return min(spent)

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        module.turn("own")
        self.steps += 1
        module.log("epsilon", self.epsilon(), prog_bar=False)
        module.turn("wait")


class PrivateNet(L.LightningModule):
    def __init__(self, classes, expected, clip=1.0, noise=0.8, width=24):
        super().__init__()
        self.automatic_optimization = False
        self.expected, self.clip, self.noise = expected, clip, noise
        layers, channels = [], 3
        for _ in range(4):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.GroupNorm(4, width), nn.Mish(), nn.AvgPool2d(2)]
            channels, width = width, width + 16
        self.net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))
        self.laps = ExitStack()

    def turn(self, name):
        self.laps.close()
        self.laps.enter_context(lap(name))

    def on_train_batch_start(self, batch, batch_idx):
        self.turn("compute")

    def loss_of(self, weights, image, label):
        logits = functional_call(self.net, weights, (image[None],))
        return nn.functional.cross_entropy(logits, label[None])

    def training_step(self, batch, batch_idx):
        images, labels = batch
        weights = {name: weight.detach() for name, weight in self.net.named_parameters()}
        each, losses = vmap(grad_and_value(self.loss_of), in_dims=(None, 0, 0))(weights, images, labels)
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in each.values()]).norm(dim=0)
        factors = (self.clip / (norms + 1e-6)).clamp(max=1.0)
        for name, weight in self.net.named_parameters():
            total = torch.einsum("b,b...->...", factors, each[name])
            weight.grad = (total + self.noise * self.clip * torch.randn_like(total)) / self.expected
        self.optimizers().step()
        self.log_dict({"loss": losses.mean(), "clipped": (factors < 1).float().mean(), "batch": float(len(labels))})

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.5, momentum=0.9)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", default="runs/lightning_private_gradients")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--expected", type=int, default=20, help="size of a batch on average")
    parser.add_argument("--side", type=int, default=64)
    args = parser.parse_args()
    L.seed_everything(1)
    torch.set_num_threads(1)
    transform = v2.Compose(
        [
            v2.PILToTensor(),
            v2.RandomResizedCrop(args.side, scale=(0.3, 1.0), antialias=True),
            v2.RandomHorizontalFlip(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize([0.5] * 3, [0.25] * 3),
        ]
    )
    photos = ImageFolder(str(args.data / "photos"), transform)
    rate = args.expected / len(photos)
    batches = PoissonBatches(len(photos), rate, steps=110)
    loader = DataLoader(photos, batch_sampler=batches, num_workers=2, persistent_workers=True)
    module = PrivateNet(len(photos.classes), args.expected)
    trainer = L.Trainer(
        accelerator="cpu", max_epochs=args.epochs, logger=CSVLogger(args.out), log_every_n_steps=10,
        callbacks=[Accountant(rate, module.noise)], default_root_dir=args.out, enable_progress_bar=False,
    )  # fmt: skip
    trainer.fit(module, loader)


if __name__ == "__main__":
    main()
