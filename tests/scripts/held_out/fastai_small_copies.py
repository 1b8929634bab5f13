"""Train an XResNet with self-attention by fastai on small copies of the photos, all in one process.

The copies are made once, 200 pixels wide, so that reading them takes little; then there is no need for workers.
"""

import argparse
from pathlib import Path

import torch
from fastai.callback.progress import CSVLogger
from fastai.vision.all import (
    Callback,
    CrossEntropyLossFlat,
    ImageDataLoaders,
    Learner,
    RandomResizedCrop,
    TfmdDL,
    accuracy,
    aug_transforms,
    xresnet34,
)
from PIL import Image

from stopwatch import lap, timed

COPIES, SIDE = 320, 128


def make_copies(photos: Path, folder: Path) -> Path:
    listed = sorted(photos.glob("*/*.JPEG"))
    for path in listed[:: max(1, len(listed) // COPIES)][:COPIES]:
        target = folder / path.parent.name / f"{path.stem}.jpg"
        if target.exists():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        image = Image.open(path)
        image.draft("RGB", (200, 150))
        image.convert("RGB").resize((200, 150)).save(target, quality=88)
    return folder


class LapDL(TfmdDL):
    """fastai's loader, with its waits timed."""

    def __iter__(self):
        yield from timed(super().__iter__(), "wait")


class Laps(Callback):
    """Time the computing of each batch, from before the forward pass until the step is done."""

    order = 90

    def before_batch(self) -> None:
        self.running = lap("compute")
        self.running.__enter__()

    def after_batch(self) -> None:
        self.running.__exit__(None, None, None)


class Diary(Callback):
    """A line for each step: the loss, its smoothed value, the norm of the gradient of the last layer."""

    order = 95

    def before_fit(self) -> None:
        self.smooth = None

    def after_batch(self) -> None:
        if not self.training:
            return
        with lap("own"):
            loss = self.loss.item()
            self.smooth = loss if self.smooth is None else 0.95 * self.smooth + 0.05 * loss
            spread = self.model[-1].weight.norm().item()
            with open("diary.txt", "a") as out:
                out.write(f"{self.epoch} {self.iter} {loss:.4f} {self.smooth:.4f} {spread:.3f}\n")
            if self.iter % 5 == 0:
                print(f"epoch {self.epoch}, batch {self.iter}: {self.smooth:.3f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--epochs", type=int, default=500)
    options = parser.parse_args()
    torch.manual_seed(19)
    copies = make_copies(options.data / "photos", Path("copies"))
    loaders = ImageDataLoaders.from_folder(
        copies,
        valid_pct=0.1,
        seed=3,
        item_tfms=RandomResizedCrop(SIDE, min_scale=0.4),
        batch_tfms=aug_transforms(max_rotate=15, max_warp=0.2),
        bs=16,
        num_workers=0,
        dl_type=LapDL,
        device=torch.device("cpu"),
    )
    learner = Learner(
        loaders,
        xresnet34(n_out=10, sa=True),
        loss_func=CrossEntropyLossFlat(),
        metrics=accuracy,
        cbs=[Laps(), Diary(), CSVLogger()],
    )
    with learner.no_bar():
        learner.fit(options.epochs, 2e-3)


if __name__ == "__main__":
    main()
