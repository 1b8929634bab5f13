"""Lightning: ConvMixer on photographs. Everything is logged at every step, and the state is saved every 25 steps."""

import argparse
import json
import time
from pathlib import Path

import lightning as L
import numpy as np
import torch
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stopwatch import lap, timed


class SmallPhotos(Dataset):
    def __init__(self, root: Path, side: int):
        self.side = side
        self.paths = sorted(root.glob("*/*.JPEG"))
        self.names = sorted({path.parent.name for path in self.paths})

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        path = self.paths[index]
        image = Image.open(path)
        image.draft("RGB", (self.side, self.side))
        image = np.asarray(image.convert("RGB").resize((self.side + 12, self.side + 12), Image.Resampling.BILINEAR))
        y, x = np.random.randint(0, 13, 2)
        image = image[y : y + self.side, x : x + self.side]
        if np.random.rand() < 0.5:
            image = image[:, ::-1]
        return torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1))), self.names.index(path.parent.name)


class LappedLoader(DataLoader):
    def __iter__(self):
        return timed(super().__iter__(), "wait")


class Residual(nn.Module):
    def __init__(self, body):
        super().__init__()
        self.body = body

    def forward(self, x):
        return x + self.body(x)


def conv_mixer(dim, depth, kernel, patch, classes):
    def after(*layers):
        return nn.Sequential(*layers, nn.GELU(), nn.BatchNorm2d(dim))

    blocks = [
        nn.Sequential(
            Residual(after(nn.Conv2d(dim, dim, kernel, groups=dim, padding="same"))), after(nn.Conv2d(dim, dim, 1))
        )
        for _ in range(depth)
    ]
    return nn.Sequential(
        after(nn.Conv2d(3, dim, patch, stride=patch)),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(dim, classes),
    )


class Mixer(L.LightningModule):
    def __init__(self, classes, steps, dim=128, depth=6, kernel=5, patch=8, lr=2e-3):
        super().__init__()
        self.save_hyperparameters()
        self.net = conv_mixer(dim, depth, kernel, patch, classes)

    def training_step(self, batch, number):
        images, labels = batch
        scores = self.net(images.float() / 127.5 - 1)
        loss = nn.functional.cross_entropy(scores, labels, label_smoothing=0.1)
        with torch.no_grad():
            top = scores.topk(3, 1).indices == labels[:, None]
            confidence = scores.softmax(1).max(1).values
        self.log_dict(
            {"loss": loss, "top1": top[:, 0].float().mean(), "top3": top.any(1).float().mean()}, on_step=True
        )
        return {"loss": loss, "confidence": confidence, "right": top[:, 0]}

    def on_before_optimizer_step(self, optimizer):
        self.log("gradient", nn.utils.get_total_norm([p.grad for p in self.parameters()]))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), self.hparams.lr, weight_decay=0.05)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, self.hparams.lr, total_steps=self.hparams.steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Journal(L.Callback):
    """One line of JSON for each step, with the confidence of every sample."""

    def __init__(self, path: Path):
        self.file = path.open("w")

    def on_train_batch_start(self, trainer, module, batch, number):
        self.began = time.time()
        self.open = lap("compute")
        self.open.__enter__()

    def on_train_batch_end(self, trainer, module, outputs, batch, number):
        self.open.__exit__(None, None, None)
        with lap("own"):
            line = {
                "step": trainer.global_step,
                "seconds": round(time.time() - self.began, 4),
                "loss": outputs["loss"].item(),
                "confidence": [round(value, 4) for value in outputs["confidence"].tolist()],
                "right": outputs["right"].tolist(),
            }
            self.file.write(json.dumps(line) + "\n")
            self.file.flush()

    def on_train_epoch_end(self, trainer, module):
        print(f"epoch {trainer.current_epoch}: {trainer.global_step} steps", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/convmixer_loggers_lightning"))
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=24)
    parser.add_argument("--side", type=int, default=96)
    args = parser.parse_args()
    L.seed_everything(28, workers=True, verbose=False)
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)

    photos = SmallPhotos(args.data / "photos", args.side)
    loader = LappedLoader(
        photos, args.batch_size, shuffle=True, drop_last=True, num_workers=1, persistent_workers=True
    )
    trainer = L.Trainer(
        max_epochs=args.epochs,
        accelerator="cpu",
        logger=CSVLogger(args.out, flush_logs_every_n_steps=5),
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[
            Journal(args.out / "journal.jsonl"),
            LearningRateMonitor("step"),
            ModelCheckpoint(args.out / "checkpoints", every_n_train_steps=25),
        ],
        default_root_dir=args.out,
    )
    trainer.fit(Mixer(len(photos.names), args.epochs * len(loader)), loader)


if __name__ == "__main__":
    main()
