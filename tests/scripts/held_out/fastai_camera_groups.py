"""fastai: does the network do as well for every camera of the network of traps? A callback keeps the last guesses in
a DataFrame and works out a table by camera and species, so that a bad camera shows early."""

import argparse
import warnings
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from PIL import Image
from torch import nn

warnings.filterwarnings("ignore")
from fastai.callback.core import Callback  # noqa: E402
from fastai.data.core import DataLoaders  # noqa: E402
from fastai.learner import Learner  # noqa: E402

from stopwatch import lap  # noqa: E402

CAMERAS = 8


class Traps:
    """Small pictures in memory; which camera took one is known from its number."""

    def __init__(self, files, names, side=56):
        self.items = []
        for number, file in enumerate(files):
            image = Image.open(file)
            image.draft("RGB", (side, side))
            pixels = np.asarray(image.convert("RGB").resize((side, side)), np.float32) / 127.5 - 1
            label = names.index(file.parent.name)
            self.items.append((torch.from_numpy(pixels).permute(2, 0, 1), torch.tensor(number % CAMERAS), label))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]


class TrapNet(nn.Module):
    """Each camera has a shift of its own, as some see by night and some by day."""

    def __init__(self, classes, width=32):
        super().__init__()
        self.shift = nn.Embedding(CAMERAS, width)
        self.first = nn.Conv2d(3, width, 3, 2, 1)
        self.rest = nn.Sequential(
            nn.ReLU(), nn.Conv2d(width, 64, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
            nn.Linear(64, classes),
        )  # fmt: skip

    def forward(self, images, cameras):
        return self.rest(self.first(images) + self.shift(cameras)[:, :, None, None])


class CameraTable(Callback):
    order = 60

    def __init__(self, names, file, window=3000):
        self.names, self.file, self.window = np.array(names), file, window
        self.guesses = pd.DataFrame()

    def by_camera(self):
        groups = self.guesses.groupby(["camera", "species"])
        table = groups.agg(
            seen=("right", "size"),
            accuracy=("right", "mean"),
            doubt=("sure", lambda values: 1 - values.quantile(0.1)),
            spread=("loss", lambda values: values.quantile(0.9) - values.quantile(0.1)),
            worst=("loss", lambda values: values.nlargest(5).mean()),
        )
        columns = ["accuracy", "doubt", "worst"]
        return table.reset_index().pivot_table(index="species", columns="camera", values=columns)

    def after_batch(self):
        if not self.training:
            return
        with lap("own"):
            chances = self.pred.detach().softmax(1)
            labels = self.yb[0]
            rows = {
                "camera": self.xb[1].numpy(),
                "species": self.names[labels.numpy()],
                "right": (chances.argmax(1) == labels).numpy(),
                "sure": chances.max(1).values.numpy(),
                "loss": -chances.gather(1, labels[:, None])[:, 0].log().numpy(),
            }
            self.guesses = pd.concat([self.guesses, pd.DataFrame(rows)], ignore_index=True).tail(self.window)
            self.by_camera().to_csv(self.file)


class Laps(Callback):
    """compute: from the batch to the step; wait: from the end of one batch to the next one."""

    order, open = 80, ExitStack()

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
        print(f"epoch {self.epoch}: loss {float(self.smooth_loss):.4f}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/fastai_camera_groups"))
    parser.add_argument("--epochs", type=int, default=200)
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    files = sorted((args.data / "photos").glob("*/*.JPEG"))
    names = sorted({file.parent.name for file in files})
    loaders = DataLoaders.from_dsets(
        Traps(files[::4], names), Traps(files[1::40], names), bs=48, num_workers=0, device="cpu"
    )
    callbacks = [CameraTable(names, args.out / "cameras.csv"), Laps()]
    learner = Learner(loaders, TrapNet(len(names)), nn.CrossEntropyLoss(), path=args.out, cbs=callbacks)
    with learner.no_logging():
        learner.fit(args.epochs, lr=2e-3)
    learner.save("traps")


if __name__ == "__main__":
    main()
