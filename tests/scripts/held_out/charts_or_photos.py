"""Sorts what lies in a folder of slides: is it a photograph, or which kind of chart? Charts are drawn by Matplotlib
as they are needed, so that there is no end of them; both datasets are put together by ConcatDataset."""

import argparse
import random
from pathlib import Path

import matplotlib
import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset, WeightedRandomSampler

from stopwatch import lap, timed

KINDS = ["photo", "bars", "lines", "points", "pie"]
SIDE = 96


def as_tensor(pixels):
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))


class Photos(Dataset):
    def __init__(self, root: Path):
        self.files = sorted(root.glob("*/*.JPEG"))

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        with lap("photo"), Image.open(self.files[index]) as image:
            image.draft("RGB", (SIDE, SIDE))
            return as_tensor(np.asarray(image.convert("RGB").resize((SIDE, SIDE)))), 0


class Charts(Dataset):
    """Each number is a chart of its own, the same one whenever it is asked for."""

    def __init__(self, count: int):
        self.count = count
        self.styles = matplotlib.colormaps["tab20"].colors

    def __len__(self):
        return self.count

    def draw(self, axes, kind, rng):
        values = [rng.uniform(0.1, 1) for _ in range(rng.randint(4, 9))]
        colours = rng.sample(self.styles, len(values))
        if kind == "bars":
            axes.bar([chr(65 + k) for k in range(len(values))], values, color=colours)
        elif kind == "lines":
            for colour in colours[:3]:
                axes.plot([rng.random() for _ in range(12)], color=colour, marker=rng.choice("os^"), label="run")
            axes.legend(fontsize=5)
        elif kind == "points":
            x, y = ([rng.random() for _ in range(40)] for _ in "xy")
            axes.scatter(x, y, c=[colours[k % 4] for k in range(40)], s=9)
        else:
            axes.pie(values, colors=colours)
        axes.set_title(rng.choice(["Yield", "Load by hour", "Share of votes", "Rain"]), fontsize=7)

    def render(self, number):
        rng = random.Random(number)
        kind = rng.randrange(1, len(KINDS))
        figure = Figure(figsize=(2, 2), dpi=SIDE / 2)
        canvas = FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        axes.tick_params(labelsize=5)
        self.draw(axes, KINDS[kind], rng)
        canvas.draw()
        return np.asarray(canvas.buffer_rgba())[..., :3], kind

    def __getitem__(self, index):
        with lap("chart"):
            pixels, kind = self.render(index)
        return as_tensor(pixels), kind


def block(before, after):
    return [nn.Conv2d(before, after, 3, 2, 1), nn.BatchNorm2d(after), nn.SiLU()]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/charts_or_photos"))
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=10)
    args = parser.parse_args()
    torch.manual_seed(71)
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)

    photos, charts = Photos(args.data / "photos"), Charts(5000)
    slides = ConcatDataset([photos, charts])
    weights = [1 / len(photos)] * len(photos) + [2 / len(charts)] * len(charts)
    loader = DataLoader(
        slides,
        batch_size=args.batch_size,
        sampler=WeightedRandomSampler(weights, 2400),
        num_workers=2,
        persistent_workers=True,
    )
    model = nn.Sequential(
        *block(3, 24),
        *block(24, 32),
        *block(32, 48),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(48, len(KINDS)),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for epoch in range(args.epochs):
        right = seen = 0
        for images, kinds in timed(loader, "wait"):
            with lap("compute"):
                logits = model(images.float().div_(255))
                loss = nn.functional.cross_entropy(logits, kinds)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            right, seen = right + int((logits.argmax(1) == kinds).sum()), seen + len(kinds)
        print(f"epoch {epoch}: loss {loss.item():.4f}, accuracy {right / seen:.3f}", flush=True)
        torch.save(model.state_dict(), args.out / "slides.pt")


if __name__ == "__main__":
    main()
