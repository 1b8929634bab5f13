"""fastai with MixUp and a callback that averages the weights; both work on the batch in the training process."""

import argparse
import copy
import warnings
from contextlib import ExitStack
from pathlib import Path

import torch
from PIL import Image
from torch import nn
from torchvision.transforms.functional import pil_to_tensor

warnings.filterwarnings("ignore")
from fastai.callback.core import Callback  # noqa: E402
from fastai.callback.mixup import MixUp  # noqa: E402
from fastai.callback.progress import ProgressCallback  # noqa: E402
from fastai.callback.schedule import Learner  # noqa: E402
from fastai.data.core import DataLoaders  # noqa: E402
from fastai.losses import CrossEntropyLossFlat  # noqa: E402
from fastai.metrics import accuracy  # noqa: E402

from stopwatch import lap  # noqa: E402


class InMemory:
    """(image, label) pairs, made once; half of the images are given mirrored."""

    def __init__(self, files, names, side=64, mirror=False):
        self.mirror, self.items = mirror, []
        for file in files:
            with Image.open(file) as photo:
                photo.draft("RGB", (side, side))
                pixels = pil_to_tensor(photo.convert("RGB").resize((side, side)))
            self.items.append((pixels.float() / 127.5 - 1, torch.tensor(names.index(file.parent.name))))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        image, label = self.items[index]
        return (image.flip(2) if self.mirror and torch.rand(()) < 0.5 else image), label


class Laps(Callback):
    """compute: from the batch to the step; wait: from the end of one batch to the next one."""

    order, open = -20, ExitStack()

    def turn(self, name=None):
        self.open.close()
        if name and self.training:
            self.open.enter_context(lap(name))

    def before_batch(self):
        self.turn("compute")

    def after_step(self):
        self.turn()

    def after_batch(self):
        self.turn("wait")

    def after_train(self):
        self.turn()


class WeightAverage(Callback):
    """An exponential moving average of all weights and buffers, kept beside the model."""

    order = 10

    def __init__(self, decay=0.995):
        self.decay, self.shadow = decay, None

    def before_fit(self):
        if self.shadow is None:
            self.shadow = copy.deepcopy(self.learn.model).requires_grad_(False)

    def after_step(self):
        with lap("own"), torch.no_grad():
            slow, fast = self.shadow.state_dict(), self.learn.model.state_dict()
            for name, value in slow.items():
                if value.is_floating_point():
                    value.lerp_(fast[name], 1 - self.decay)
                else:
                    value.copy_(fast[name])


class EpochLine(Callback):
    def __init__(self, out):
        self.out = out

    def after_epoch(self):
        values = " ".join(f"{float(value):.4f}" for value in self.learn.recorder.log[1:])
        print(f"epoch {self.epoch}: {values}", flush=True)


def conv(before, after, stride=1):
    return nn.Sequential(nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU(True))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/fastai_mixup_average"))
    parser.add_argument("--epochs", type=int, default=24)
    parser.add_argument("--bs", type=int, default=32)
    args = parser.parse_args()
    torch.manual_seed(49)
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)

    files = sorted((args.data / "photos").glob("*/*.JPEG"))
    names = sorted({file.parent.name for file in files})
    valid = files[::25]
    train = [file for number, file in enumerate(files) if number % 25]
    loaders = DataLoaders.from_dsets(
        InMemory(train, names, mirror=True), InMemory(valid, names), bs=args.bs, num_workers=0, device="cpu"
    )
    model = nn.Sequential(
        conv(3, 24, 2),
        conv(24, 48),
        conv(48, 64, 2),
        conv(64, 64),
        conv(64, 96, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(96, len(names)),
    )
    average = WeightAverage()
    learner = Learner(
        loaders,
        model,
        loss_func=CrossEntropyLossFlat(),
        metrics=accuracy,
        cbs=[MixUp(0.4), average, Laps(), EpochLine(args.out)],
        path=args.out,
    )
    learner.remove_cb(ProgressCallback)
    with learner.no_logging():
        learner.fit_one_cycle(args.epochs, 4e-3)
    torch.save(average.shadow.state_dict(), args.out / "average.pth")


if __name__ == "__main__":
    main()
