"""Lightning: same species or not? A siamese network on pairs of photographs. All pairs may be drawn, each as often as
its weight says: half of them of one species, and pairs whose colours are alike rather than others."""

import argparse
import random
from contextlib import ExitStack
from pathlib import Path

import lightning as L
import numpy as np
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler

from stopwatch import lap


def thumbnails(root, count, side):
    files = random.Random(7).sample(sorted(root.glob("*/*.JPEG")), count)
    kinds = sorted({file.parent.name for file in files})
    images = torch.empty(count, 3, side, side, dtype=torch.uint8)
    for k, file in enumerate(files):
        photo = Image.open(file)
        photo.draft("RGB", (side, side))
        images[k] = torch.tensor(np.asarray(photo.convert("RGB").resize((side, side)))).permute(2, 0, 1)
    return images, torch.tensor([kinds.index(file.parent.name) for file in files])


class Pairs(Dataset):
    def __init__(self, images, species):
        self.images, self.species = images, species
        self.one, self.other = torch.triu_indices(len(images), len(images), offset=1)

    def __len__(self):
        return len(self.one)

    def weights(self):
        colours = self.images.float().mean((2, 3))
        alike = torch.exp(-(colours[self.one] - colours[self.other]).norm(dim=1) / 60).double()
        same = self.species[self.one] == self.species[self.other]
        return torch.where(same, 0.5 / same.sum(), 0.5 * alike / alike[~same].sum())

    def side(self, number):
        image = self.images[number]
        return image.flip(2) if random.random() < 0.5 else image

    def __getitem__(self, index):
        one, other = int(self.one[index]), int(self.other[index])
        return self.side(one), self.side(other), float(self.species[one] == self.species[other])


class Siamese(L.LightningModule):
    def __init__(self, width=16, rate=1e-3):
        super().__init__()
        self.rate = rate
        self.trunk = nn.Sequential(
            nn.Conv2d(3, width, 5, stride=2, padding=2), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, stride=2, padding=1), nn.BatchNorm2d(2 * width), nn.ReLU(),
            nn.Conv2d(2 * width, 4 * width, 3, stride=2, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        )  # fmt: skip
        self.head = nn.Sequential(nn.Linear(4 * width, 32), nn.ReLU(), nn.Linear(32, 1))

    def training_step(self, batch, index):
        one, other, same = batch
        features = self.trunk(torch.cat([one, other]).float() / 127.5 - 1)
        first, second = features.chunk(2)
        logits = self.head((first - second).abs()).squeeze(1)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, same.float())
        right = ((logits > 0) == (same > 0)).float().mean()
        self.log_dict({"loss": loss, "right": right}, on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.rate)
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=8)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "monitor": "loss"}}


class Laps(L.Callback):
    def __init__(self):
        self.stack = ExitStack()

    def turn(self, name):
        self.stack.close()
        self.stack.enter_context(lap(name))

    def on_train_epoch_start(self, trainer, module):
        self.turn("wait")

    def on_train_batch_start(self, trainer, module, batch, index):
        self.turn("compute")

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        self.turn("own" if index + 1 == trainer.num_training_batches else "wait")

    def on_train_end(self, trainer, module):
        self.stack.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/lightning_pair_lottery"))
    parser.add_argument("--photos", type=int, default=1500)
    parser.add_argument("--epochs", type=int, default=500)
    parser.add_argument("--batches", type=int, default=25, help="batches an epoch")
    args = parser.parse_args()
    torch.set_num_threads(1)
    L.seed_everything(7)
    pairs = Pairs(*thumbnails(args.data / "photos", args.photos, side=40))
    sampler = WeightedRandomSampler(pairs.weights(), num_samples=len(pairs))
    loader = DataLoader(pairs, 24, sampler=sampler, num_workers=1, persistent_workers=True, drop_last=True)
    best = ModelCheckpoint(args.out, "siamese", monitor="loss", save_weights_only=True)
    trainer = L.Trainer(
        max_epochs=args.epochs, limit_train_batches=args.batches, accelerator="cpu", default_root_dir=args.out,
        callbacks=[Laps(), best], enable_progress_bar=False, enable_model_summary=False, log_every_n_steps=20,
    )  # fmt: skip
    trainer.fit(Siamese(), loader)


if __name__ == "__main__":
    main()
