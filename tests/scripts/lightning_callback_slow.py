"""Lightning with every step logged and a callback that bootstraps the running accuracy in plain Python."""

import argparse
import random
from collections import deque

import lightning as L
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from stopwatch import lap


class TinyNet(L.LightningModule):
    def __init__(self, classes=10):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(8, 16, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(16, classes),
        )
        self.loss = nn.CrossEntropyLoss()

    def training_step(self, batch, batch_idx):
        images, labels = batch
        logits = self.net(images)
        loss = self.loss(logits, labels)
        self.log("train/loss", loss, on_step=True, on_epoch=True, prog_bar=True)
        return {"loss": loss, "hits": (logits.argmax(1) == labels).detach()}

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


class AccuracyInterval(L.Callback):
    """Logs a 90 % interval for the accuracy over the last `window` samples, anew after each step."""

    def __init__(self, window=1000, rounds=400):
        self.hits = deque(maxlen=window)
        self.rounds = rounds
        self.random = random.Random(3)

    def bootstrap(self):
        hits, count = list(self.hits), len(self.hits)
        means = []
        for _ in range(self.rounds):
            total = 0
            for _ in range(count):
                total += hits[int(self.random.random() * count)]
            means.append(total / count)
        means.sort()
        return means[int(0.05 * self.rounds)], means[int(0.95 * self.rounds)]

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        with lap("own"):
            self.hits.extend(outputs["hits"].tolist())
            low, high = self.bootstrap()
            module.log("train/acc_low", low, prog_bar=True)
            module.log("train/acc_high", high, prog_bar=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", help="not read: the images are random")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--out", default="runs/lightning_callback_slow")
    args = parser.parse_args()

    L.seed_everything(11)
    images, labels = torch.rand(2048, 3, 64, 64), torch.randint(0, 10, (2048,))
    loader = DataLoader(TensorDataset(images, labels), batch_size=64, shuffle=True, num_workers=0)
    logger = CSVLogger(args.out, flush_logs_every_n_steps=50)
    callbacks = [AccuracyInterval()]
    trainer = L.Trainer(
        max_epochs=args.epochs, accelerator="cpu", logger=logger, log_every_n_steps=1, callbacks=callbacks
    )
    trainer.fit(TinyNet(), train_dataloaders=loader)


if __name__ == "__main__":
    main()
