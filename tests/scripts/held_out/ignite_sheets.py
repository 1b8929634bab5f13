"""Ignite: a small classifier; a contact sheet of the batch with its predictions is drawn after every iteration."""

import argparse
from pathlib import Path

import numpy as np
import torch
from ignite.engine import Engine, Events
from ignite.metrics import RunningAverage
from PIL import Image, ImageDraw
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stopwatch import lap, timed


class FastPhotos(Dataset):
    """JPEGs decoded at an eighth of their size: cheap."""

    def __init__(self, root: Path, side=64):
        self.side = side
        self.classes = sorted(p.name for p in root.iterdir() if p.is_dir())
        self.items = [(path, self.classes.index(path.parent.name)) for path in sorted(root.glob("*/*.JPEG"))]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        path, label = self.items[index]
        image = Image.open(path)
        image.draft("RGB", (self.side, self.side))
        image = image.convert("RGB").resize((self.side, self.side), Image.BILINEAR)
        return torch.from_numpy(np.array(image)).permute(2, 0, 1), label


class TimedLoader(DataLoader):
    def __iter__(self):
        return timed(super().__iter__(), "wait")


def draw_sheet(images, labels, guesses, classes, path, columns=4, cell=192):
    """One PNG with every picture of the batch, its class and the guess (red where wrong)."""
    rows = (len(images) + columns - 1) // columns
    sheet = Image.new("RGB", (columns * cell, rows * (cell + 24)), "white")
    pen = ImageDraw.Draw(sheet)
    for number, image in enumerate(images):
        x, y = number % columns * cell, number // columns * (cell + 24)
        picture = Image.fromarray(image.permute(1, 2, 0).numpy()).resize((cell, cell), Image.LANCZOS)
        sheet.paste(picture, (x, y))
        colour = "darkgreen" if labels[number] == guesses[number] else "red"
        pen.rectangle((x, y, x + cell - 1, y + cell - 1), outline=colour, width=3)
        pen.text((x + 4, y + cell + 2), f"{classes[labels[number]]} / {classes[guesses[number]]}", fill=colour)
    sheet.save(path)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/ignite_sheets"))
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--keep", type=int, default=20, help="how many of the latest sheets to keep")
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)

    data = FastPhotos(args.data / "photos")
    loader = TimedLoader(data, batch_size=16, shuffle=True, num_workers=2, persistent_workers=True)
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, 2, 1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, 1, 1),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 3, 1, 1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, len(data.classes)),
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.02, momentum=0.9)

    def update(engine, batch):
        with lap("compute"):
            images, labels = batch
            model.train()
            logits = model(images.float() / 255)
            loss = nn.functional.cross_entropy(logits, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return {"loss": loss.item(), "guesses": logits.argmax(1).tolist()}

    trainer = Engine(update)
    RunningAverage(output_transform=lambda output: output["loss"]).attach(trainer, "loss")

    @trainer.on(Events.ITERATION_COMPLETED)
    def sheet(engine):
        with lap("own"):
            images, labels = engine.state.batch
            path = args.out / f"sheet-{engine.state.iteration % args.keep:02d}.png"
            draw_sheet(images, labels.tolist(), engine.state.output["guesses"], data.classes, path)

    @trainer.on(Events.EPOCH_COMPLETED)
    def report(engine):
        print(f"epoch {engine.state.epoch}: loss {engine.state.metrics['loss']:.4f}", flush=True)
        torch.save(model.state_dict(), args.out / "model.pt")

    trainer.run(loader, max_epochs=args.epochs)


if __name__ == "__main__":
    main()
