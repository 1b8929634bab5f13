"fastai: which scanner class is it? Scans carry a colour profile, and are brought to sRGB before they are compared."

import argparse
import io
import random
from contextlib import ExitStack
from pathlib import Path

import torch
from fastai.callback.core import Callback
from fastai.callback.progress import CSVLogger, ProgressCallback
from fastai.callback.schedule import fit_one_cycle  # noqa: F401
from fastai.callback.tracker import SaveModelCallback
from fastai.data.block import CategoryBlock, DataBlock
from fastai.data.transforms import RandomSplitter, get_image_files, parent_label
from fastai.learner import Learner
from fastai.metrics import accuracy
from fastai.vision.augment import RandomCrop, Resize
from fastai.vision.core import PILImage
from fastai.vision.data import ImageBlock
from fasttransform import Transform
from PIL import Image, ImageCms
from torch import nn

from stopwatch import lap

SRGB = ImageCms.createProfile("sRGB")


def scan(photos, folder, each):
    "Puts some photographs of each class down as a scanner does: whole, at high quality, with its profile"
    profile = ImageCms.ImageCmsProfile(SRGB).tobytes()
    for source in sorted(p for p in photos.iterdir() if p.is_dir()):
        target = folder / source.name
        target.mkdir(parents=True, exist_ok=True)
        for file in sorted(source.glob("*.JPEG"))[:each]:
            if not (target / file.name).exists():
                photo = Image.open(file).convert("RGB")
                photo.thumbnail((500, 375))
                part = target / f"{file.stem}.part"
                photo.save(part, "JPEG", quality=90, icc_profile=profile)
                part.rename(target / file.name)


class ToSRGB(Transform):
    "From whatever profile a scan carries to sRGB, perceptually"

    order = 0

    def encodes(self, image: PILImage):
        data = image.info.get("icc_profile")
        if not data:
            return image
        profile = ImageCms.ImageCmsProfile(io.BytesIO(data))
        intent = ImageCms.Intent.PERCEPTUAL
        return PILImage(ImageCms.profileToProfile(image, profile, SRGB, renderingIntent=intent, outputMode="RGB"))


class Net(nn.Sequential):
    def __init__(self, kinds, width=8):
        def unit(inner, outer):
            return nn.Sequential(
                nn.Conv2d(inner, outer, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(outer), nn.Hardswish()
            )

        super().__init__(
            unit(3, width), unit(width, 2 * width), unit(2 * width, 4 * width), unit(4 * width, 4 * width),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, kinds),
        )  # fmt: skip


class Laps(Callback):
    order, stack = 70, ExitStack()

    def turn(self, name=None):
        self.stack.close()
        if name and self.training:
            self.stack.enter_context(lap(name))

    def before_train(self):
        self.stack.enter_context(lap("wait"))

    def before_batch(self):
        self.turn("compute")

    def after_step(self):
        self.turn("own")

    def after_batch(self):
        self.turn("wait")

    def after_train(self):
        self.turn()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/fastai_scanner_profiles"))
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--each", type=int, default=60)
    args = parser.parse_args()
    scans = args.out / "scans"
    scan(args.data / "photos", scans, args.each)
    random.seed(1)
    torch.set_num_threads(1)
    block = DataBlock(
        blocks=(ImageBlock, CategoryBlock), get_items=get_image_files, get_y=parent_label,
        splitter=RandomSplitter(0.06, seed=1), item_tfms=[ToSRGB(), Resize(88), RandomCrop(80)],
    )  # fmt: skip
    loaders = block.dataloaders(scans, bs=16, num_workers=2, device=torch.device("cpu"), persistent_workers=True)
    learner = Learner(
        loaders, Net(loaders.c), nn.CrossEntropyLoss(), metrics=accuracy, path=args.out,
        cbs=[Laps(), CSVLogger(), SaveModelCallback(fname="scanner")],
    )  # fmt: skip
    learner.remove_cb(ProgressCallback)
    learner.fit_one_cycle(args.epochs, 3e-3)


if __name__ == "__main__":
    main()
