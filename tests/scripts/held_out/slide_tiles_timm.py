"""timm on tiles of whole slides. The scanner's library may be open in one process at a time, says its manual."""

import argparse
import fcntl
import random
from contextlib import contextmanager
from pathlib import Path

import timm
import torch
from PIL import Image
from timm.data import create_transform
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import AverageMeter, accuracy
from torch.utils.data import DataLoader, Dataset, RandomSampler

from stopwatch import lap, timed


def scan_slides(photos: Path, folder: Path, count=20, grid=(4, 4)):
    """Slides of 1600 x 1200 pixels, each a mosaic of one kind of photographs."""
    folder.mkdir(parents=True, exist_ok=True)
    kinds = sorted(kind for kind in photos.iterdir() if kind.is_dir())
    for number in range(count):
        path = folder / f"slide_{number:02d}_{number % len(kinds)}.jpg"
        if path.exists():
            continue
        slide = Image.new("RGB", (400 * grid[0], 300 * grid[1]))
        files = sorted(kinds[number % len(kinds)].glob("*.JPEG"))
        for cell in range(grid[0] * grid[1]):
            photo = Image.open(files[(number * 5 + cell) % len(files)])
            photo = photo.convert("RGB").resize((400, 300))
            slide.paste(photo, (400 * (cell % grid[0]), 300 * (cell // grid[0])))
        slide.save(path, quality=92)


class Scanner:
    """The vendor's library, with the file it wants held while it is at work."""

    def __init__(self, folder: Path):
        self.folder, self.file = folder, None

    @contextmanager
    def session(self):
        if self.file is None:
            self.file = (self.folder / ".scanner").open("w")
        with lap("turn"):
            fcntl.flock(self.file, fcntl.LOCK_EX)
        try:
            yield self
        finally:
            fcntl.flock(self.file, fcntl.LOCK_UN)

    def region(self, slide, box):
        with lap("decode"), Image.open(slide) as image:
            return image.crop(box)


class Tiles(Dataset):
    def __init__(self, folder: Path, transform, size=224):
        self.slides, self.size = sorted(folder.glob("slide_*.jpg")), size
        self.scanner, self.transform = Scanner(folder), transform

    def __len__(self):
        return 60 * len(self.slides)

    def __getitem__(self, index):
        slide = self.slides[index % len(self.slides)]
        left, top = random.randrange(1600 - self.size), random.randrange(1200 - self.size)
        with self.scanner.session() as scanner:
            tile = scanner.region(slide, (left, top, left + self.size, top + self.size))
        with lap("transform"):
            return self.transform(tile), int(slide.stem.rsplit("_", 1)[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/slide_tiles"))
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("-b", "--batch-size", type=int, default=12)
    parser.add_argument("-j", "--workers", type=int, default=3)
    parser.add_argument("--model", default="mobilenetv3_small_050")
    args = parser.parse_args()
    torch.manual_seed(14)
    torch.set_num_threads(1)
    scan_slides(args.data / "photos", args.out / "slides")
    transform = create_transform(
        64, is_training=True, hflip=0.5, vflip=0.5, color_jitter=0.2, interpolation="bilinear"
    )
    tiles = Tiles(args.out / "slides", transform)
    loader = DataLoader(
        tiles,
        batch_size=args.batch_size,
        sampler=RandomSampler(tiles),
        num_workers=args.workers,
        persistent_workers=True,
        drop_last=True,
    )
    model = timm.create_model(args.model, pretrained=False, num_classes=10)
    optimizer = create_optimizer_v2(model, opt="sgd", lr=0.05, weight_decay=1e-4)
    scheduler = CosineLRScheduler(optimizer, t_initial=args.epochs, warmup_t=1, warmup_lr_init=1e-3)
    for epoch in range(args.epochs):
        losses, top = AverageMeter(), AverageMeter()
        for step, (images, labels) in enumerate(timed(loader, "wait")):
            with lap("compute"):
                logits = model(images)
                loss = torch.nn.functional.cross_entropy(logits, labels, label_smoothing=0.1)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            losses.update(loss.item(), len(images))
            top.update(accuracy(logits, labels)[0].item(), len(images))
            if step % 20 == 19:
                print(f"epoch {epoch} {step + 1}/{len(loader)}: {losses.avg:.3f}, {top.avg:.1f} %", flush=True)
        scheduler.step(epoch + 1)
        torch.save(model.state_dict(), args.out / "tiles.pth")


if __name__ == "__main__":
    main()
