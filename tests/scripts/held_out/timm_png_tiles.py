"""timm on map tiles kept without loss as PNG: its transforms, its model and its optimizer, a Dataset of one's own."""

import argparse
from pathlib import Path

import timm
import torch
from PIL import Image
from stopwatch import lap, timed
from timm.data import create_transform
from timm.loss import LabelSmoothingCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from torch.utils.data import DataLoader, Dataset


def make_tiles(photos, folder, count=40):
    """What the provider would send: 1200 x 900 tiles, as `CLASS_N.png`."""
    folder.mkdir(parents=True, exist_ok=True)
    for n in range(count):
        photo = photos[n * len(photos) // count]
        target = folder / f"{photo.parent.name}_{n}.png"
        if not target.exists():
            with Image.open(photo) as image:
                image.convert("RGB").resize((1200, 900), Image.Resampling.BICUBIC).save(target, compress_level=1)
    return sorted(folder.glob("*.png"))


class Tiles(Dataset):
    def __init__(self, files, transform, length):
        self.files, self.transform, self.length = files, transform, length
        self.classes = sorted({self.name(file) for file in files})

    @staticmethod
    def name(file):
        return file.stem.rsplit("_", 1)[0]

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        file = self.files[index % len(self.files)]
        with lap("decode"):
            tile = Image.open(file).convert("RGB")
        with lap("transform"):
            return self.transform(tile), self.classes.index(self.name(file))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--epochs", type=int, default=24)
    parser.add_argument("--model", default="mobilenetv3_small_050")
    parser.add_argument("--out", type=Path, default=Path("runs/timm_png_tiles"))
    args = parser.parse_args()

    torch.set_num_threads(1)
    files = make_tiles(sorted((args.data / "photos").glob("*/*.[jJ]*")), args.out / "tiles")
    transform = create_transform(
        input_size=96,
        is_training=True,
        scale=(0.2, 0.6),
        hflip=0.5,
        vflip=0.5,
        color_jitter=None,
        interpolation="bilinear",
    )
    tiles = Tiles(files, transform, length=320)
    loader = DataLoader(
        tiles, batch_size=16, shuffle=True, num_workers=2, prefetch_factor=3, persistent_workers=True, drop_last=True
    )
    model = timm.create_model(args.model, pretrained=False, num_classes=len(tiles.classes))
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.02)
    scheduler = CosineLRScheduler(optimizer, t_initial=args.epochs, warmup_t=2, warmup_lr_init=1e-5)
    criterion = LabelSmoothingCrossEntropy(0.1)
    model.train()
    for epoch in range(args.epochs):
        meter = timm.utils.AverageMeter()
        for images, labels in timed(loader, "wait"):
            with lap("compute"):
                loss = criterion(model(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            meter.update(loss.item(), len(labels))
        scheduler.step(epoch + 1)
        rate = optimizer.param_groups[0]["lr"]
        print(f"epoch {epoch} loss {meter.avg:.4f} lr {rate:.2e}", flush=True)
    torch.save(model.state_dict(), args.out / "tiles.pth")


if __name__ == "__main__":
    main()
