"fastai: self-supervised pretraining by quarter turns (RotNet) with an xresnet."

import argparse
from contextlib import ExitStack
from pathlib import Path

import torch
from fastai.vision.all import (
    Callback, CSVLogger, Datasets, GradientClip, IntToFloatTensor, ItemTransform, Learner,
    Normalize, PILImage, ProgressCallback, RandomResizedCrop, ToTensor, accuracy, get_image_files, imagenet_stats, ranger,
    xresnet18,
)  # fmt: skip
from PIL import Image, ImageEnhance, ImageOps
from torch import nn

from stopwatch import lap

TURNS = [None, Image.Transpose.ROTATE_90, Image.Transpose.ROTATE_180, Image.Transpose.ROTATE_270]


class Open:
    "Whole photographs; large ones are softened so that the network cannot look at JPEG blocks"

    def __call__(self, file):
        with lap("decode"):
            image = PILImage.create(file)
            return ImageOps.autocontrast(image, cutoff=1)


class QuarterTurn(ItemTransform):
    order = 5
    split_idx = None

    def encodes(self, pair):
        image, _ = pair
        with lap("transform"):
            turn = int(torch.randint(4, ()))
            image = ImageEnhance.Color(image).enhance(float(torch.empty(1).uniform_(0.4, 1.6)))
            image = image if TURNS[turn] is None else image.transpose(TURNS[turn])
        return PILImage(image), torch.tensor(turn)


class Laps(Callback):
    order, stack = 90, ExitStack()

    def turn(self, name=None):
        self.stack.close()
        if name and self.training:
            self.stack.enter_context(lap(name))

    def before_batch(self):
        self.turn("compute")

    def after_step(self):
        self.turn("own")

    def after_batch(self):
        self.turn("wait")

    def after_train(self):
        self.turn()


class TurnTable(Callback):
    "How often each turn is taken for each other, as a table that is rewritten every ten batches"

    def before_fit(self):
        self.counts = torch.zeros(4, 4, dtype=torch.long)

    def after_step(self):
        for true, guess in zip(self.y.tolist(), self.pred.argmax(1).tolist()):
            self.counts[true, guess] += 1
        if self.iter % 10 == 0:
            rows = (" ".join(f"{n:6d}" for n in row) for row in self.counts.tolist())
            (self.path / "turns.txt").write_text("\n".join(rows) + "\n")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/fastai_quarter_turns"))
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--bs", type=int, default=8)
    parser.add_argument("--size", type=int, default=80)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)

    files = get_image_files(args.data / "photos").sorted()
    splits = [list(range(len(files)))[64:], list(range(64))]
    sets = Datasets(files, [[Open()], [lambda file: 0]], splits=splits)
    loaders = sets.dataloaders(
        bs=args.bs,
        num_workers=2,
        after_item=[QuarterTurn(), RandomResizedCrop(args.size, min_scale=0.4), ToTensor()],
        after_batch=[IntToFloatTensor(), Normalize.from_stats(*imagenet_stats, cuda=False)],
        device=torch.device("cpu"),
    )
    learner = Learner(
        loaders, xresnet18(n_out=4), nn.CrossEntropyLoss(), opt_func=ranger, path=args.out, metrics=accuracy,
        cbs=[TurnTable(), GradientClip(1.0), CSVLogger(), Laps()],
    )  # fmt: skip
    learner.remove_cb(ProgressCallback)
    learner.fit_flat_cos(args.epochs, 2e-3)
    learner.save("turns")


if __name__ == "__main__":
    main()
