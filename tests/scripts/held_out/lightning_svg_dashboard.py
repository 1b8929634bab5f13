"""Lightning with a dashboard of our own: one HTML page with a curve for everything, written anew after every step."""

import argparse
import html
from collections import deque
from pathlib import Path

import lightning as L
import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from stopwatch import lap, timed

STYLE = "body{background:#222;color:#ccc;font:11px sans-serif}svg{background:#111;margin:4px}"


def smooth(values, reach=8):
    """Centred moving average."""
    means = []
    for place in range(len(values)):
        near = values[max(0, place - reach) : place + reach + 1]
        means.append(sum(near) / len(near))
    return means


def points(values, low, high, width, height):
    span, across = (high - low) or 1.0, width / max(1, len(values) - 1)
    return " ".join(
        f"{place * across:.1f},{height * (high - value) / span:.1f}" for place, value in enumerate(values)
    )


def chart(name, values, width=260, height=70):
    low, high = min(values), max(values)
    raw, mean = points(values, low, high, width, height), points(smooth(values), low, high, width, height)
    title = f"{html.escape(name)}: {values[-1]:.3g} ({low:.3g} to {high:.3g})"
    return (
        f'<div>{title}<br><svg width="{width}" height="{height}">'
        f'<polyline points="{raw}" fill="none" stroke="#456" stroke-width="1"/>'
        f'<polyline points="{mean}" fill="none" stroke="#8cf" stroke-width="1.5"/></svg></div>'
    )


class Dashboard(L.Callback):
    def __init__(self, path: Path, window=360):
        self.path, self.window, self.curves = path, window, {}

    def add(self, name, value):
        self.curves.setdefault(name, deque(maxlen=self.window)).append(float(value))

    @torch.no_grad()
    def gather(self, module, loss):
        self.add("loss", loss)
        for name, weight in module.named_parameters():
            self.add(f"{name} size", weight.square().mean().sqrt())
            self.add(f"{name} largest", weight.abs().max())
            if weight.grad is not None:
                self.add(f"{name} gradient", weight.grad.square().mean().sqrt())
                self.add(f"{name} largest gradient", weight.grad.abs().max())

    def render(self, step):
        charts = [chart(name, list(values)) for name, values in self.curves.items()]
        page = f"<html><head><style>{STYLE}</style></head><body><h1>step {step}</h1>{''.join(charts)}</body></html>"
        partial = self.path.with_suffix(".part")
        partial.write_text(page)
        partial.replace(self.path)

    def on_train_batch_end(self, trainer, module, outputs, batch, number):
        with lap("own"):
            self.gather(module, outputs["loss"])
            self.render(trainer.global_step)


class Laps(L.Callback):
    """Stands before the dashboard in the list, so that `compute` ends where that begins."""

    def on_train_batch_start(self, trainer, module, batch, number):
        self.open = lap("compute")
        self.open.__enter__()

    def on_train_batch_end(self, trainer, module, outputs, batch, number):
        self.open.__exit__(None, None, None)

    def on_train_epoch_end(self, trainer, module):
        print(f"epoch {trainer.current_epoch}: {float(trainer.callback_metrics['loss']):.4f}", flush=True)


class SmallNet(L.LightningModule):
    def __init__(self, classes):
        super().__init__()
        layers, channels = [], 3
        for width, stride in ((16, 2), (24, 2), (32, 2), (32, 1), (32, 1), (32, 1)):
            layers += [nn.Conv2d(channels, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
            channels = width
        self.net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))

    def training_step(self, batch, number):
        images, labels = batch
        loss = nn.functional.cross_entropy(self.net(images.float() / 127.5 - 1), labels)
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.03, momentum=0.9)


class TimedLoader(DataLoader):
    def __iter__(self):
        return timed(super().__iter__(), "wait")


def load(root: Path, side: int):
    names = sorted(folder.name for folder in root.iterdir() if folder.is_dir())
    images, labels = [], []
    for file in sorted(root.glob("*/*.JPEG")):
        image = Image.open(file)
        image.draft("RGB", (side, side))
        images.append(np.array(image.convert("RGB").resize((side, side), Image.Resampling.BILINEAR)))
        labels.append(names.index(file.parent.name))
    images = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).contiguous()
    return TensorDataset(images, torch.tensor(labels)), len(names)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/lightning_svg_dashboard"))
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--batch-size", type=int, default=32)
    args = parser.parse_args()
    L.seed_everything(52, verbose=False)
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)

    photos, classes = load(args.data / "photos", side=48)
    loader = TimedLoader(photos, batch_size=args.batch_size, shuffle=True, drop_last=True)
    trainer = L.Trainer(
        max_epochs=args.epochs,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[Laps(), Dashboard(args.out / "dashboard.html")],
        default_root_dir=args.out,
    )
    trainer.fit(SmallNet(classes), loader)


if __name__ == "__main__":
    main()
