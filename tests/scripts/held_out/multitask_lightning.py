"""Lightning: three heads on one trunk: the class of a photograph, by how many quarters it was turned, its tint and
sharpness. The last two are measured on the photograph as it is, before it is cut."""

import argparse
import math
import os
import random

import lightning as L
import torch
from PIL import Image, ImageFilter, ImageStat
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from stopwatch import lap, timed

TURNS = [None, Image.Transpose.ROTATE_90, Image.Transpose.ROTATE_180, Image.Transpose.ROTATE_270]


def tint(photo):
    """Mean hue as a point in the plane, weighed by saturation."""
    hue, saturation, _ = photo.convert("HSV").split()
    counts = hue.histogram(mask=saturation.point(lambda value: 255 if value > 60 else 0))
    total = sum(counts) or 1
    angles = [2 * math.pi * number / 256 for number in range(256)]
    x = sum(count * math.cos(angle) for count, angle in zip(counts, angles, strict=True)) / total
    y = sum(count * math.sin(angle) for count, angle in zip(counts, angles, strict=True)) / total
    return x, y


def sharpness(photo):
    edges = photo.convert("L").filter(ImageFilter.FIND_EDGES)
    return math.log1p(ImageStat.Stat(edges).stddev[0]) / 4


class ManyQuestions(Dataset):
    def __init__(self, root, side):
        names = sorted(name for name in os.listdir(root) if os.path.isdir(os.path.join(root, name)))
        self.names = names
        self.items = [
            (os.path.join(root, name, file), label)
            for label, name in enumerate(names)
            for file in sorted(os.listdir(os.path.join(root, name)))
        ]
        self.augment = transforms.Compose(
            [
                transforms.RandomResizedCrop(side, (0.5, 1.0)),
                transforms.ColorJitter(0.2, 0.2, 0.2),
                transforms.ToTensor(),
                transforms.Normalize([0.5] * 3, [0.25] * 3),
            ]
        )

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        path, label = self.items[index]
        with lap("decode"):
            photo = Image.open(path).convert("RGB")
        with lap("transform"):
            measures = torch.tensor([*tint(photo), sharpness(photo)])
            turn = random.randrange(4)
            if turn:
                photo = photo.transpose(TURNS[turn])
            return self.augment(photo), {"label": label, "turn": turn, "measures": measures}


class StopwatchLoader(DataLoader):
    def __iter__(self):
        return timed(super().__iter__(), "wait")


class Photos(L.LightningDataModule):
    def __init__(self, root, side=80, batch_size=24):
        super().__init__()
        self.root, self.side, self.batch_size = root, side, batch_size

    def setup(self, stage):
        self.train_set = ManyQuestions(self.root, self.side)

    def train_dataloader(self):
        return StopwatchLoader(self.train_set, batch_size=self.batch_size, shuffle=True, drop_last=True)


class Trunk(L.LightningModule):
    def __init__(self, classes, width=24):
        super().__init__()
        layers, channels = [], 3
        for number in range(4):
            layers += [nn.Conv2d(channels, width, 3, stride=2, padding=1), nn.GroupNorm(4, width), nn.GELU()]
            channels, width = width, width + 16
        self.trunk = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.heads = nn.ModuleDict(
            {
                "label": nn.Linear(channels, classes),
                "turn": nn.Linear(channels, 4),
                "measures": nn.Linear(channels, 3),
            }
        )
        self.uncertainty = nn.Parameter(torch.zeros(3))  # Kendall, Gal and Cipolla

    def training_step(self, batch, number):
        images, targets = batch
        features = self.trunk(images)
        answers = {name: head(features) for name, head in self.heads.items()}
        losses = torch.stack(
            [
                nn.functional.cross_entropy(answers["label"], targets["label"]),
                nn.functional.cross_entropy(answers["turn"], targets["turn"]),
                nn.functional.smooth_l1_loss(answers["measures"], targets["measures"]),
            ]
        )
        loss = (losses * torch.exp(-self.uncertainty) + self.uncertainty).sum()
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        return {
            "optimizer": optimizer,
            "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, step_size=4, gamma=0.5),
        }


class StepLaps(L.Callback):
    def on_train_batch_start(self, trainer, module, batch, number):
        self.open = lap("compute")
        self.open.__enter__()

    def on_train_batch_end(self, trainer, module, outputs, batch, number):
        self.open.__exit__(None, None, None)

    def on_train_epoch_end(self, trainer, module):
        print(f"epoch {trainer.current_epoch}: loss {trainer.callback_metrics['loss']:.4f}", flush=True)
        torch.save(module.state_dict(), os.path.join(trainer.default_root_dir, "trunk.pt"))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--out", default="runs/multitask_lightning")
    parser.add_argument("--epochs", type=int, default=12)
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)
    torch.set_num_threads(1)
    L.seed_everything(22, verbose=False)

    photos = Photos(os.path.join(args.data, "photos"))
    trainer = L.Trainer(
        max_epochs=args.epochs,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[StepLaps()],
        default_root_dir=args.out,
    )
    trainer.fit(Trunk(classes=10), datamodule=photos)


if __name__ == "__main__":
    main()
