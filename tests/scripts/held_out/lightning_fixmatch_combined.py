"""Lightning: FixMatch. A few labelled photographs and many without labels come from two loaders, put together by a
CombinedLoader; the strong view of an unlabelled one is warped by torchvision's transforms v2."""

import argparse
from contextlib import ExitStack
from pathlib import Path

import lightning as L
import torch
from lightning.pytorch.utilities import CombinedLoader
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2
from torchvision.transforms.functional import pil_to_tensor

from stopwatch import lap

SIDE = 80


class Labelled(Dataset):
    def __init__(self, images, labels):
        self.images, self.labels = images, labels
        self.weak = v2.Compose([v2.RandomCrop(SIDE), v2.RandomHorizontalFlip()])

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.weak(self.images[index]), self.labels[index]


class TwoViews(Dataset):
    """A weak view for the guess, a strong one to learn it from."""

    def __init__(self, images):
        self.images = images
        self.weak = v2.Compose([v2.RandomCrop(SIDE), v2.RandomHorizontalFlip()])
        self.strong = v2.Compose(
            [v2.RandomCrop(SIDE), v2.ElasticTransform(60.0, sigma=4.0), v2.RandomAutocontrast(), v2.RandomErasing()]
        )

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = self.images[index]
        with lap("strong"):
            strong = self.strong(image)
        return self.weak(image), strong


class Photos(L.LightningDataModule):
    def __init__(self, root: Path, labelled=8, batch=6, ratio=2):
        super().__init__()
        self.root, self.labelled, self.batch, self.ratio = root, labelled, batch, ratio

    def setup(self, stage=None):
        known, labels, unknown = [], [], []
        for label, folder in enumerate(sorted(path for path in self.root.iterdir() if path.is_dir())):
            for number, file in enumerate(sorted(folder.glob("*.JPEG"))[:60]):
                image = Image.open(file)
                image.draft("RGB", (SIDE + 16, SIDE + 16))
                image = pil_to_tensor(image.convert("RGB").resize((SIDE + 16, SIDE + 16)))
                if number < self.labelled:
                    known.append(image)
                    labels.append(label)
                else:
                    unknown.append(image)
        self.known, self.unknown = Labelled(known, labels), TwoViews(unknown)

    def train_dataloader(self):
        loaders = {
            "labelled": DataLoader(self.known, self.batch, shuffle=True, drop_last=True),
            "unlabelled": DataLoader(self.unknown, self.ratio * self.batch, shuffle=True, drop_last=True),
        }
        return CombinedLoader(loaders, mode="max_size_cycle")


class FixMatch(L.LightningModule):
    def __init__(self, classes=10, sure=0.6, width=16):
        super().__init__()
        self.sure = sure
        layers, before = [], 3
        for after in (width, 2 * width, 3 * width):
            layers += [nn.Conv2d(before, after, 3, 2, 1), nn.BatchNorm2d(after), nn.LeakyReLU(0.1)]
            before = after
        self.net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes))

    def training_step(self, batch, index):
        images, labels = batch["labelled"]
        weak, strong = batch["unlabelled"]
        logits = self.net(torch.cat([images, weak, strong]).float() / 127.5 - 1)
        known, weak, strong = logits.split([len(images), len(weak), len(strong)])
        chance, guess = weak.detach().softmax(1).max(1)
        unknown = (nn.functional.cross_entropy(strong, guess, reduction="none") * (chance > self.sure)).mean()
        self.log("sure", (chance > self.sure).float().mean(), prog_bar=True)
        return nn.functional.cross_entropy(known, labels) + unknown

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.03, momentum=0.9, nesterov=True, weight_decay=5e-4)


class Laps(L.Callback):
    """compute: from a batch's start to its end; wait: all between."""

    def __init__(self):
        self.open = ExitStack()

    def turn(self, name):
        self.open.close()
        self.open.enter_context(lap(name))

    def on_train_batch_start(self, *_):
        self.turn("compute")

    def on_train_batch_end(self, *_):
        self.turn("wait")

    def on_train_end(self, *_):
        self.open.close()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/lightning_fixmatch_combined"))
    parser.add_argument("--epochs", type=int, default=30)
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    trainer = L.Trainer(
        accelerator="cpu", max_epochs=args.epochs, logger=False, callbacks=[Laps()], enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=args.out,
    )  # fmt: skip
    trainer.fit(FixMatch(), datamodule=Photos(args.data / "photos"))
    trainer.save_checkpoint(args.out / "fixmatch.ckpt")


if __name__ == "__main__":
    main()
