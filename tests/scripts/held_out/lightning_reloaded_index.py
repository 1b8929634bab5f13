"""Photographs keep coming in while we train (volunteers upload them), so the training set is gathered anew for each short
epoch: what is readable, large enough and not there twice."""

import argparse
import hashlib
from contextlib import ExitStack
from pathlib import Path

import lightning as L
import torch
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.loggers import CSVLogger
from PIL import Image
from stopwatch import lap
from torch import nn
from torch.utils.data import DataLoader, Dataset, RandomSampler
from torchvision.transforms import v2


def gather(folder, smallest):
    """Files by class; no file twice, no thumbnails."""
    seen, found = set(), []
    for file in sorted(folder.glob("*/*.JPEG")):
        digest = hashlib.sha256(file.read_bytes()).digest()
        if digest in seen:
            continue
        seen.add(digest)
        try:
            with Image.open(file) as photo:
                if min(photo.size) >= smallest:
                    found.append((file, file.parent.name))
        except OSError:
            print("unreadable:", file)
    return found


class Uploads(Dataset):
    def __init__(self, files, classes, transform, side):
        self.files, self.classes, self.transform, self.side = files, classes, transform, side

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        file, name = self.files[index]
        with Image.open(file) as photo:
            photo.draft("RGB", (self.side, self.side))
            return self.transform(photo.convert("RGB")), self.classes.index(name)


class UploadsModule(L.LightningDataModule):
    def __init__(self, root, side=48, batch=16, steps=18):
        super().__init__()
        self.root, self.side, self.batch, self.steps = root, side, batch, steps
        self.classes = sorted(folder.name for folder in root.iterdir() if folder.is_dir())
        self.transform = v2.Compose(
            [
                v2.RandomCrop(side, pad_if_needed=True),
                v2.RandomHorizontalFlip(),
                v2.ToImage(),
                v2.ToDtype(torch.float32, scale=True),
                v2.Normalize([0.5] * 3, [0.25] * 3),
            ]
        )

    def train_dataloader(self):
        files = gather(self.root, 2 * self.side)
        photos = Uploads(files, self.classes, self.transform, self.side)
        sampler = RandomSampler(photos, num_samples=self.batch * self.steps)
        return DataLoader(photos, self.batch, sampler=sampler, num_workers=2, drop_last=True)


class Sorter(L.LightningModule):
    def __init__(self, classes, width=24, rate=2e-3):
        super().__init__()
        self.save_hyperparameters()
        layers, before = [], 3
        for channels in (width, width * 2, width * 3):
            layers += [
                nn.Conv2d(before, channels, 3, padding=1),
                nn.BatchNorm2d(channels),
                nn.SiLU(),
                nn.MaxPool2d(2),
            ]
            before = channels
        self.net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes))
        self.laps = ExitStack()

    def turn(self, name=None):
        self.laps.close()
        if name:
            self.laps.enter_context(lap(name))

    def on_train_start(self):
        self.turn("wait")

    def on_train_batch_start(self, batch, batch_idx):
        self.turn("compute")

    def training_step(self, batch, batch_idx):
        images, labels = batch
        scores = self.net(images)
        loss = nn.functional.cross_entropy(scores, labels, label_smoothing=0.1)
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.turn("wait")

    def on_train_end(self):
        self.turn()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.hparams.rate)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", default="runs/lightning_reloaded_index")
    parser.add_argument("--epochs", type=int, default=500)
    parser.add_argument("--patience", type=int, default=200)
    args = parser.parse_args()
    L.seed_everything(21)
    uploads = UploadsModule(args.data / "photos")
    trainer = L.Trainer(
        accelerator="cpu", max_epochs=args.epochs, reload_dataloaders_every_n_epochs=1, logger=CSVLogger(args.out),
        callbacks=[EarlyStopping("loss", patience=args.patience)], default_root_dir=args.out, log_every_n_steps=15,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    module = Sorter(len(uploads.classes))
    trainer.fit(module, datamodule=uploads)
    trainer.save_checkpoint(f"{args.out}/sorter.ckpt")


if __name__ == "__main__":
    main()
