"""timm: a small MobileNetV3. So that one can see what the augmentation does, the first worker keeps previews as PNG."""

import argparse
from pathlib import Path

import timm
import torch
from PIL import Image, ImageDraw
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD, create_transform
from timm.loss import LabelSmoothingCrossEntropy
from timm.optim import create_optimizer_v2
from timm.utils import AverageMeter
from torch.utils.data import DataLoader, Dataset, get_worker_info

from stopwatch import lap, timed

MEAN = torch.tensor(IMAGENET_DEFAULT_MEAN).view(3, 1, 1)
STD = torch.tensor(IMAGENET_DEFAULT_STD).view(3, 1, 1)


class PreviewedPhotos(Dataset):
    def __init__(self, root: Path, transform, previews=None, keep=24):
        self.files = sorted(root.glob("*/*.JPEG"))
        self.classes = sorted({file.parent.name for file in self.files})
        self.transform, self.previews, self.keep = transform, previews, keep
        self.written = 0

    def __len__(self):
        return len(self.files)

    def dump_preview(self, image, caption):
        """Large enough to look at, and as small a file as can be; the last `keep` stay."""
        pixels = (image * STD + MEAN).clamp(0, 1).mul(255).byte().permute(1, 2, 0).numpy()
        preview = Image.fromarray(pixels).resize((384, 384), Image.Resampling.LANCZOS)
        ImageDraw.Draw(preview).text((6, 6), caption, fill="yellow")
        preview.save(self.previews / f"{self.written % self.keep:02d}.png", optimize=True)
        self.written += 1

    def __getitem__(self, index):
        file = self.files[index]
        with lap("decode"):
            photo = Image.open(file).convert("RGB")
        with lap("transform"):
            image = self.transform(photo)
        worker = get_worker_info()
        if self.previews and (worker is None or worker.id == 0):  # two would write over each other's files
            with lap("preview"):
                self.dump_preview(image, f"{file.parent.name} {file.stem}")
        return image, self.classes.index(file.parent.name)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/timm_debug_previews"))
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("-b", "--batch-size", type=int, default=16)
    parser.add_argument("-j", "--workers", type=int, default=2)
    parser.add_argument("--model", default="mobilenetv3_small_050")
    parser.add_argument("--no-previews", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(44)
    torch.set_num_threads(1)
    previews = args.out / "previews"
    previews.mkdir(parents=True, exist_ok=True)

    transform = create_transform(
        input_size=64, is_training=True, scale=(0.4, 1.0), hflip=0.5, color_jitter=None, interpolation="bilinear"
    )
    photos = PreviewedPhotos(args.data / "photos", transform, None if args.no_previews else previews)
    loader = DataLoader(
        photos,
        batch_size=args.batch_size,
        shuffle=True,
        num_workers=args.workers,
        persistent_workers=args.workers > 0,
        drop_last=True,
    )
    model = timm.create_model(args.model, pretrained=False, num_classes=len(photos.classes))
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05)
    criterion = LabelSmoothingCrossEntropy(0.1)
    for epoch in range(args.epochs):
        model.train()
        meter = AverageMeter()
        for step, (images, labels) in enumerate(timed(loader, "wait")):
            with lap("compute"):
                loss = criterion(model(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            meter.update(loss.item(), len(labels))
            if step % 20 == 0:
                print(f"epoch {epoch} step {step}/{len(loader)}: loss {meter.avg:.4f}", flush=True)
        torch.save({"model": model.state_dict(), "epoch": epoch}, args.out / "last.pth")


if __name__ == "__main__":
    main()
