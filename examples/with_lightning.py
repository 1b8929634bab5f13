"""The same with Lightning: the loader is handed over as it is; its state is saved and restored with a checkpoint.

python examples/with_lightning.py OUT/train --epochs 2
"""

import argparse
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn

from feedline.pipeline.format.manifest import read_manifest
from feedline.pipeline.loader import Loader


class Classifier(lightning.LightningModule):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.model = nn.Sequential(
            nn.Conv2d(3, 8, 5, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, classes)
        )

    def training_step(self, batch: Any, batch_number: int) -> torch.Tensor:
        images_NCHW, labels_N = batch
        loss = nn.functional.cross_entropy(self.model(images_NCHW), labels_N)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05)


class Shards(lightning.LightningDataModule):
    """Lightning moves batches to the device itself; `device="cpu"` gives it normalised ones."""

    def __init__(self, split: str, **options: Any) -> None:
        super().__init__()
        self._split, self._options = split, options

    def setup(self, stage: str) -> None:
        """On each rank, once it knows which one it is."""
        self.loader = Loader(self._split, device="cpu", policy="wrap", **self._options)

    def train_dataloader(self) -> Loader:
        return self.loader


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("split")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--steps", type=int, default=-1, help="stop after so many, to try resuming")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--num-workers", type=int, default=None)
    parser.add_argument("--resume", help="a checkpoint of an earlier run")
    parser.add_argument("--save", help="a folder for checkpoints")
    parser.add_argument("--save-every", type=int, default=100, help="steps")
    args = parser.parse_args()
    data = Shards(args.split, batch_size=args.batch_size, image_size=args.image_size, num_workers=args.num_workers)
    trainer = lightning.Trainer(
        max_epochs=args.epochs,
        max_steps=args.steps,
        logger=False,
        enable_checkpointing=bool(args.save),
        callbacks=[ModelCheckpoint(args.save, "{step}", every_n_train_steps=args.save_every)] if args.save else [],
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Classifier(len(read_manifest(Path(args.split)).classes)), datamodule=data, ckpt_path=args.resume)
    state = data.loader.state_dict()
    print(f"epoch {state['epoch']}, {state['samples']} samples into it, {trainer.global_step} steps")


if __name__ == "__main__":
    main()
