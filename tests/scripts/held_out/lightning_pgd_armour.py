"""Lightning: adversarial training. Each batch is attacked by projected gradients before it is learnt."""

import argparse
from contextlib import ExitStack
from pathlib import Path

import lightning as L
import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageFilter
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stopwatch import lap


class Weathered(Dataset):
    """Photographs decoded whole at each visit, then turned, blurred, faded and cut by PIL."""

    def __init__(self, files, side):
        self.files, self.side = files, side
        self.kinds = sorted({file.parent.name for file in files})

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        file, draw = self.files[index], np.random.uniform(size=5)
        image = Image.open(file).convert("RGB").resize((160, 120))
        image = image.rotate(20 * draw[0] - 10, Image.Resampling.BILINEAR)
        image = image.filter(ImageFilter.GaussianBlur(1.5 * draw[1]))
        image = ImageEnhance.Color(image).enhance(0.5 + draw[2])
        left, top = int(draw[3] * (160 - self.side)), int(draw[4] * (120 - self.side))
        pixels = np.array(image.crop((left, top, left + self.side, top + self.side)), np.float32) / 255
        return torch.from_numpy(pixels.transpose(2, 0, 1)), self.kinds.index(file.parent.name)


def unit(before, width, stride):
    return [nn.Conv2d(before, width, 3, stride, 1), nn.GroupNorm(4, width), nn.SiLU()]


class Armoured(L.LightningModule):
    def __init__(self, classes, strength=8 / 255, attacks=3, width=16):
        super().__init__()
        self.strength, self.attacks = strength, attacks
        self.net = nn.Sequential(
            *unit(3, width, 2), *unit(width, 2 * width, 1), *unit(2 * width, 4 * width, 2),
            *unit(4 * width, 4 * width, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, classes),
        )  # fmt: skip

    def attack(self, images, labels):
        shift = torch.empty_like(images).uniform_(-self.strength, self.strength)
        for _ in range(self.attacks):
            shift.requires_grad_(True)
            loss = nn.functional.cross_entropy(self.net(images + shift), labels)
            (slope,) = torch.autograd.grad(loss, shift)
            shift = (shift.detach() + 0.5 * self.strength * slope.sign()).clamp(-self.strength, self.strength)
        return (images + shift).clamp(0, 1)

    def training_step(self, batch, batch_idx):
        images, labels = batch
        logits = self.net(self.attack(images, labels))
        loss = nn.functional.cross_entropy(logits, labels)
        self.log("robust", (logits.argmax(1) == labels).float().mean(), on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
        return [optimizer], [torch.optim.lr_scheduler.MultiStepLR(optimizer, [6, 9])]


class Laps(L.Callback):
    def __init__(self):
        self.open = ExitStack()

    def turn(self, name=None):
        self.open.close()
        if name:
            self.open.enter_context(lap(name))

    def on_train_epoch_start(self, trainer, module):
        self.turn("wait")

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        self.turn("compute")

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.turn("wait")

    def on_train_epoch_end(self, trainer, module):
        self.turn()
        print(f"epoch {trainer.current_epoch}: {dict(trainer.callback_metrics)}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/lightning_pgd_armour"))
    parser.add_argument("--epochs", type=int, default=12)
    args = parser.parse_args()
    torch.set_num_threads(1)
    photos = Weathered(sorted((args.data / "photos").glob("*/*.JPEG")), side=80)
    loader = DataLoader(
        photos, batch_size=16, shuffle=True, drop_last=True, num_workers=1, persistent_workers=True, prefetch_factor=4
    )
    trainer = L.Trainer(
        max_epochs=args.epochs,
        accelerator="cpu",
        callbacks=[Laps()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Armoured(len(photos.kinds))
    trainer.fit(model, loader)
    args.out.mkdir(parents=True, exist_ok=True)
    trainer.save_checkpoint(args.out / "armoured.ckpt")


if __name__ == "__main__":
    main()
