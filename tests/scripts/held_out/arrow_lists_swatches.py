"""Pictures kept as nested lists in a Hugging Face dataset (as `map` leaves them when a function returns lists), read
with the torch format by a DataLoader."""

import argparse
from pathlib import Path

import datasets
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader

from stopwatch import lap, timed


def make_dataset(photos: Path, folder: Path, side: int, each=60):
    """One row a picture: pixels as lists of lists of lists, the picture's three mean colours and its class."""

    def rows():
        for label, kind in enumerate(sorted(path for path in photos.iterdir() if path.is_dir())):
            for file in sorted(kind.glob("*.JPEG"))[:each]:
                image = Image.open(file)
                image.draft("RGB", (side, side))
                pixels = torch.frombuffer(
                    bytearray(image.convert("RGB").resize((side, side)).tobytes()), dtype=torch.uint8
                )
                pixels = pixels.view(side, side, 3)
                yield {
                    "pixels": pixels.tolist(),
                    "swatch": pixels.float().mean((0, 1)).tolist(),
                    "label": label,
                }

    columns = list(rows())
    table = {name: [row[name] for row in columns] for name in columns[0]}
    datasets.Dataset.from_dict(table).save_to_disk(folder)
    return datasets.load_from_disk(folder)


class Swatches(nn.Module):
    """Class and mean colours from the picture."""

    def __init__(self, classes):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(3, 24, 3, stride=2), nn.BatchNorm2d(24), nn.ReLU(),
            nn.Conv2d(24, 48, 3, stride=2), nn.BatchNorm2d(48), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        )  # fmt: skip
        self.kind, self.colours = nn.Linear(48, classes), nn.Linear(48, 3)

    def forward(self, pixels):
        features = self.trunk(pixels.permute(0, 3, 1, 2).float() / 127.5 - 1)
        return self.kind(features), self.colours(features)


def train_epoch(model, loader, optimizer):
    total = 0.0
    for batch in timed(loader, "wait"):
        with lap("compute"):
            kinds, colours = model(batch["pixels"])
            loss = nn.functional.cross_entropy(kinds, batch["label"])
            loss = loss + 0.1 * nn.functional.mse_loss(colours, batch["swatch"] / 127.5 - 1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
    return total / len(loader)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/arrow_lists_swatches"))
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--side", type=int, default=48)
    args = parser.parse_args()
    torch.set_num_threads(1)
    datasets.disable_progress_bars()
    args.out.mkdir(parents=True, exist_ok=True)
    pictures = make_dataset(args.data / "photos", args.out / "swatches", args.side).with_format("torch")
    loader = DataLoader(pictures, batch_size=16, shuffle=True, drop_last=True, num_workers=2, persistent_workers=True)
    model = Swatches(10)
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    for epoch in range(args.epochs):
        print(f"epoch {epoch}: loss {train_epoch(model, loader, optimizer):.3f}", flush=True)
        torch.save(model.state_dict(), args.out / "swatches.pt")


if __name__ == "__main__":
    main()
