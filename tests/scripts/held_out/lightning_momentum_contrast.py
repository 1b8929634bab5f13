"""Momentum contrast in Lightning: a query encoder, a key encoder that follows it, and a queue of keys."""

import argparse
import copy
from contextlib import ExitStack

import lightning as L
import torch
from lightning.pytorch.loggers import CSVLogger
from PIL import Image
from stopwatch import lap
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.models import resnet18
from torchvision.transforms import v2


class TwoViews:
    """Two random views of one photograph."""

    def __init__(self, transform):
        self.transform = transform

    def __call__(self, image):
        with lap("transform"):
            return self.transform(image), self.transform(image)


def small_photo(path):
    with lap("decode"):
        image = Image.open(path)
        image.draft("RGB", (96, 96))
        return image.convert("RGB")


class Photos(L.LightningDataModule):
    def __init__(self, root, batch_size, side=64):
        super().__init__()
        self.root, self.batch_size = root, batch_size
        self.transform = v2.Compose(
            [
                v2.RandomResizedCrop(side, scale=(0.3, 1.0)),
                v2.RandomHorizontalFlip(),
                v2.RandomGrayscale(0.2),
                v2.ToImage(),
                v2.ToDtype(torch.float32, scale=True),
            ]
        )

    def setup(self, stage=None):
        self.dataset = ImageFolder(self.root, TwoViews(self.transform), loader=small_photo)

    def train_dataloader(self):
        return DataLoader(
            self.dataset,
            batch_size=self.batch_size,
            shuffle=True,
            num_workers=1,
            persistent_workers=True,
            drop_last=True,
        )


class MomentumContrast(L.LightningModule):
    def __init__(self, dim=64, queue=1024, momentum=0.99, temperature=0.1, lr=0.03):
        super().__init__()
        self.save_hyperparameters()
        self.query_encoder = resnet18(num_classes=dim)
        self.key_encoder = copy.deepcopy(self.query_encoder).requires_grad_(False)
        self.register_buffer("queue", F.normalize(torch.randn(queue, dim), dim=1))
        self.cursor = 0

    @torch.no_grad()
    def follow(self):
        m = self.hparams.momentum
        for key, query in zip(self.key_encoder.parameters(), self.query_encoder.parameters()):
            key.lerp_(query, 1 - m)

    @torch.no_grad()
    def enqueue(self, keys):
        rows = torch.arange(self.cursor, self.cursor + len(keys)) % len(self.queue)
        self.queue[rows] = keys
        self.cursor = (self.cursor + len(keys)) % len(self.queue)

    def training_step(self, batch, batch_idx):
        (first, second), _ = batch
        queries = F.normalize(self.query_encoder(first), dim=1)
        with torch.no_grad():
            self.follow()
            keys = F.normalize(self.key_encoder(second), dim=1)
        positive = (queries * keys).sum(1, keepdim=True)
        negative = queries @ self.queue.clone().T
        logits = torch.cat([positive, negative], dim=1) / self.hparams.temperature
        loss = F.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long))
        self.enqueue(keys)
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.query_encoder.parameters(), lr=self.hparams.lr, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [40, 60], gamma=0.3)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


class Stopwatch(L.Callback):
    """`compute` is a whole training step, `wait` all between one step and the next."""

    laps = ExitStack()

    def on_train_batch_start(self, *args):
        self.laps.close()
        self.laps.enter_context(lap("compute"))

    def on_train_batch_end(self, *args):
        self.laps.close()
        self.laps.enter_context(lap("wait"))

    def on_train_end(self, *args):
        self.laps.close()


def cli():
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--out", default="runs/lightning_momentum_contrast")
    parser.add_argument("--max-steps", type=int, default=70)
    parser.add_argument("--batch-size", type=int, default=24)
    args = parser.parse_args()
    L.seed_everything(29, verbose=False)
    trainer = L.Trainer(
        accelerator="cpu",
        max_steps=args.max_steps,
        logger=CSVLogger(args.out),
        log_every_n_steps=10,
        enable_checkpointing=False,
        callbacks=[Stopwatch()],
    )
    trainer.fit(MomentumContrast(), datamodule=Photos(f"{args.data}/photos", args.batch_size))
    trainer.save_checkpoint(f"{args.out}/moco.ckpt", weights_only=True)


if __name__ == "__main__":
    cli()
