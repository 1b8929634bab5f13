"""Herbarium sheets by webdataset, in short epochs so that the learning rate may follow the validation score."""

import argparse
import io
import random
from pathlib import Path

import numpy as np
import torch
import webdataset as wds
from PIL import Image
from stopwatch import lap, timed
from torch import nn

SIDE = 64


def make_shards(photos: Path, folder: Path, number=8):
    folder.mkdir(parents=True, exist_ok=True)
    classes = sorted(p.name for p in photos.iterdir() if p.is_dir())
    files = sorted(photos.glob("*/*.JPEG"))
    random.Random(8).shuffle(files)
    for shard in range(number):
        with wds.TarWriter(str(folder / f"sheets-{shard:02d}.tar")) as tar:
            for i, file in enumerate(files[shard::number]):
                record = {"jpg": file.read_bytes(), "cls": classes.index(file.parent.name)}
                tar.write({"__key__": f"{shard:02d}-{i:05d}", **record})
    return sorted(str(path) for path in folder.glob("sheets-*.tar"))


def sheet(key, data):
    if not key.endswith("jpg"):
        return None
    with lap("decode"):
        image = Image.open(io.BytesIO(data))
        image.draft("RGB", (200, 200))
        return image.convert("RGB").resize((SIDE + 8, SIDE + 8), Image.Resampling.BILINEAR)


def press(image):
    """A crop and a flip."""
    x, y = random.randrange(9), random.randrange(9)
    pixels = np.array(image)[y : y + SIDE, x : x + SIDE]
    if random.random() < 0.5:
        pixels = pixels[:, ::-1]
    return torch.from_numpy(pixels.copy()).permute(2, 0, 1).float() / 127.5 - 1


def unit(before, after):
    return nn.Sequential(nn.Conv2d(before, after, 3, 2, 1, bias=False), nn.BatchNorm2d(after), nn.SiLU())


class Flora(nn.Module):
    def __init__(self, classes, width=24):
        super().__init__()
        self.stem = unit(3, width)
        self.mix = nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.SiLU())
        self.body = nn.Sequential(unit(width, 2 * width), unit(2 * width, 4 * width))
        self.head = nn.Linear(4 * width, classes)

    def forward(self, x):
        x = self.stem(x)
        return self.head(self.body(x + self.mix(x)).mean((2, 3)))


def score(model, held_out):
    model.eval()
    with torch.no_grad():
        right = (model(held_out[0]).argmax(1) == held_out[1]).float().mean().item()
    model.train()
    return right


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/wds_herbarium_epochs"))
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--steps", type=int, default=28)
    parser.add_argument("--buffer", type=int, default=450)
    parser.add_argument("--persistent", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    urls = make_shards(args.data / "photos", args.out / "shards")
    dataset = (
        wds.WebDataset(urls, shardshuffle=len(urls))
        .decode(sheet)
        .shuffle(args.buffer, initial=args.buffer)
        .to_tuple("jpg", "cls")
        .map_tuple(press, int)
        .batched(16, partial=False)
    )
    loader = wds.WebLoader(dataset, batch_size=None, num_workers=2, persistent_workers=args.persistent)
    loader = loader.with_epoch(args.steps)
    some = [(press(sheet("jpg", f.read_bytes())), i) for i, d in enumerate(sorted((args.data / "photos").iterdir()))
            for f in sorted(d.iterdir())[:3]]  # fmt: skip
    held_out = torch.stack([picture for picture, _ in some]), torch.tensor([label for _, label in some])
    model = Flora(10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="max", patience=4)
    for epoch in range(args.epochs):
        for sheets, labels in timed(loader, "wait"):
            with lap("compute"):
                loss = nn.functional.cross_entropy(model(sheets), labels, label_smoothing=0.1)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        with lap("own"):
            right = score(model, held_out)
            plateau.step(right)
        print(f"epoch {epoch}: loss {loss.item():.3f}, right {right:.2f}", flush=True)
    torch.save(model.state_dict(), args.out / "flora.pt")


if __name__ == "__main__":
    main()
