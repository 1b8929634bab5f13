"""Lightning with a LightningDataModule over large photographs: most of a sample's time is JPEG decoding."""

import argparse
import tempfile
from contextlib import ExitStack
from pathlib import Path

import lightning as L
import torch
from lightning.pytorch.loggers import CSVLogger
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader
from torchvision import transforms as T
from torchvision.datasets import ImageFolder

from stopwatch import lap


def load_photo(path):
    with lap("decode"), open(path, "rb") as file:
        return Image.open(file).convert("RGB")


class CameraPhotos(L.LightningDataModule):
    """Photographs at the size at which a camera leaves them, read and made smaller for each step."""

    def __init__(self, source, folder, count=384, batch_size=16):
        super().__init__()
        self.source, self.folder, self.count, self.batch_size = source, Path(folder), count, batch_size
        self.augment = T.Compose([T.Resize((96, 96)), T.RandomHorizontalFlip(), T.ToTensor()])

    def prepare_data(self):
        paths = sorted(self.source.glob("*/*.[jJ]*"))
        for path in paths[:: max(1, len(paths) // self.count)][: self.count]:
            target = self.folder / path.parent.name / path.name
            target.parent.mkdir(parents=True, exist_ok=True)
            Image.open(path).convert("RGB").resize((1920, 1440), Image.Resampling.BILINEAR).save(target, quality=92)

    def setup(self, stage):
        self.train_set = ImageFolder(self.folder, transform=self.transform, loader=load_photo)

    def transform(self, image):
        with lap("transform"):
            return self.augment(image)

    def train_dataloader(self):
        return DataLoader(self.train_set, self.batch_size, shuffle=True, num_workers=2, persistent_workers=True)


class PhotoClassifier(L.LightningModule):
    def __init__(self, classes=10):
        super().__init__()
        layers = []
        for before, after in ((3, 16), (16, 32), (32, 64)):
            layers += [nn.Conv2d(before, after, 3, stride=2, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
        self.net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes))

    def training_step(self, batch, batch_idx):
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


class Stopwatch(L.Callback):
    laps = ExitStack()

    def on_train_batch_end(self, *args):
        self.laps.enter_context(lap("wait"))

    def on_train_batch_start(self, *args):
        self.laps.close()

    on_train_end = on_train_batch_start


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--epochs", type=int, default=25)
    parser.add_argument("--out", default="runs/lightning_datamodule_decode")
    args = parser.parse_args()
    L.seed_everything(7)
    with tempfile.TemporaryDirectory() as folder:
        logger = CSVLogger(args.out)
        trainer = L.Trainer(max_epochs=args.epochs, accelerator="cpu", logger=logger, callbacks=[Stopwatch()])
        trainer.fit(PhotoClassifier(), datamodule=CameraPhotos(args.data / "photos", folder))
