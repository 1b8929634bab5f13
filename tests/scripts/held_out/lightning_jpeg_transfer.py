"""Lightning, made for a GPU that decodes: the workers give JPEG files as bytes, and the module's transfer hook decodes
the batch. Without a GPU it falls back to the CPU."""

import argparse
from contextlib import ExitStack
from pathlib import Path

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision.io import ImageReadMode, decode_jpeg
from torchvision.transforms import v2

from stopwatch import lap


class JpegBytes(Dataset):
    def __init__(self, root: Path):
        self.files = sorted(root.glob("*/*.JPEG"))
        self.kinds = sorted({file.parent.name for file in self.files})

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        with lap("read"):
            return self.files[index].read_bytes(), self.kinds.index(self.files[index].parent.name)


def keep_lists(samples):
    files, labels = zip(*samples, strict=True)
    return list(files), torch.tensor(labels)


class Classifier(L.LightningModule):
    def __init__(self, classes, side=64):
        super().__init__()
        self.augment = v2.Compose(
            [
                v2.RandomResizedCrop(side, scale=(0.3, 1.0), antialias=True),
                v2.RandomHorizontalFlip(),
                v2.ToDtype(torch.float32, scale=True),
                v2.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
            ]
        )
        self.net = nn.Sequential(
            nn.Conv2d(3, 24, 3, stride=2), nn.BatchNorm2d(24), nn.SiLU(),
            nn.Conv2d(24, 48, 3, stride=2), nn.BatchNorm2d(48), nn.SiLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, classes),
        )  # fmt: skip

    def transfer_batch_to_device(self, batch, device, dataloader_idx):
        files, labels = batch
        files = [torch.frombuffer(bytearray(file), dtype=torch.uint8) for file in files]
        if device.type == "cuda":
            images = decode_jpeg(files, mode=ImageReadMode.RGB, device=device)
        else:
            images = [decode_jpeg(file, mode=ImageReadMode.RGB) for file in files]
        return torch.stack([self.augment(image) for image in images]), labels.to(device)

    def training_step(self, batch, index):
        images, labels = batch
        loss = nn.functional.cross_entropy(self.net(images), labels)
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), 1e-3)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.95)]


class Laps(L.Callback):
    """compute: from a batch's start to its end; wait: all between, with the transfer hook."""

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
    parser.add_argument("--out", type=Path, default=Path("runs/lightning_jpeg_transfer"))
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch", type=int, default=24)
    args = parser.parse_args()
    torch.set_num_threads(1)
    photos = JpegBytes(args.data / "photos")
    loader = DataLoader(
        photos,
        args.batch,
        shuffle=True,
        drop_last=True,
        num_workers=2,
        collate_fn=keep_lists,
        persistent_workers=True,
    )
    trainer = L.Trainer(
        accelerator="cpu", max_epochs=args.epochs, logger=False, callbacks=[Laps()], enable_checkpointing=False,
        enable_model_summary=False, enable_progress_bar=False,
    )  # fmt: skip
    model = Classifier(len(photos.kinds))
    trainer.fit(model, loader)
    args.out.mkdir(parents=True, exist_ok=True)
    trainer.save_checkpoint(args.out / "transfer.ckpt")


if __name__ == "__main__":
    main()
