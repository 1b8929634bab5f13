"""fastai: segmentation with a boundary loss (Kervadec et al.), which weighs the probabilities by the signed distance to
the true outline of each class."""

import argparse
import warnings
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from scipy.ndimage import distance_transform_edt
from torch import nn

warnings.filterwarnings("ignore")
from fastai.callback.core import Callback  # noqa: E402
from fastai.data.core import DataLoaders  # noqa: E402
from fastai.data.load import DataLoader  # noqa: E402
from fastai.learner import Learner  # noqa: E402

from stopwatch import lap, timed  # noqa: E402


class Clock(ExitStack):
    """One lap after another."""

    def turn(self, name=None):
        self.close()
        if name:
            self.enter_context(lap(name))


CLOCK = Clock()


class Scenes:
    """Pictures in memory; three grades of brightness stand for water, land and cloud."""

    def __init__(self, files, side):
        self.images, self.masks = [], []
        for file in files:
            image = Image.open(file)
            image.draft("RGB", (side, side))
            pixels = np.asarray(image.convert("RGB").resize((side, side)))
            grey = pixels.mean(2)
            self.images.append(torch.from_numpy(pixels.transpose(2, 0, 1).copy()))
            self.masks.append(torch.from_numpy(np.digitize(grey, np.quantile(grey, [0.4, 0.75]))))

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.images[index].float() / 127.5 - 1, self.masks[index].long()


class BoundaryLoss(nn.Module):
    def __init__(self, classes=3, weight=0.01):
        super().__init__()
        self.classes, self.weight = classes, weight

    def signed_distances(self, masks):
        """Below zero within the class, above zero outside of it."""
        distances = np.zeros((len(masks), self.classes, *masks.shape[1:]), np.float32)
        for k, mask in enumerate(masks.numpy()):
            for c in range(self.classes):
                inside = mask == c
                if inside.any():
                    outer = distance_transform_edt(~inside)
                    inner = distance_transform_edt(inside)
                    distances[k, c] = outer * ~inside - (inner - 1) * inside
        return torch.from_numpy(distances)

    def forward(self, logits, masks):
        CLOCK.turn("own")
        distances = self.signed_distances(masks)
        CLOCK.turn("compute")
        boundary = (logits.softmax(1) * distances).mean()
        return nn.functional.cross_entropy(logits, masks) + self.weight * boundary


class Segmenter(nn.Module):
    def __init__(self, classes, width=16):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, width, 4, stride=4), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1))
        self.deep = nn.Sequential(nn.ReLU(), nn.Conv2d(width, 2 * width, 3, padding=1, stride=2), nn.ReLU())
        self.up = nn.Conv2d(3 * width, classes, 3, padding=1)

    def forward(self, x):
        high = self.down(x)
        low = nn.functional.interpolate(self.deep(high), size=high.shape[2:])
        return nn.functional.interpolate(self.up(torch.cat([high, low], 1)), size=x.shape[2:], mode="bilinear")


class TimedLoader(DataLoader):
    def __iter__(self):
        yield from timed(super().__iter__(), "wait")


class Steps(Callback):
    def before_batch(self):
        if self.training:
            CLOCK.turn("compute")

    def after_batch(self):
        CLOCK.turn()

    def after_epoch(self):
        print(f"epoch {self.learn.epoch}: loss {float(self.learn.loss):.4f}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/fastai_boundary_rivers"))
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--side", type=int, default=96)
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    files = sorted((args.data / "photos").glob("*/*.JPEG"))[::2]
    train = TimedLoader(Scenes(files[:-16], args.side), bs=16, shuffle=True, drop_last=True, num_workers=0)
    valid = DataLoader(Scenes(files[-16:], args.side), bs=16, num_workers=0)
    loaders = DataLoaders(train, valid, device=torch.device("cpu"))
    learner = Learner(loaders, Segmenter(3), loss_func=BoundaryLoss(), cbs=[Steps()], path=args.out)
    with learner.no_logging():
        learner.fit(args.epochs, lr=1e-3)
    torch.save(learner.model.state_dict(), args.out / "rivers.pt")


if __name__ == "__main__":
    main()
