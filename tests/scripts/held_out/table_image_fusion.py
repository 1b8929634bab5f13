"""A table and a picture of each sample: one transformer over the columns (FT-Transformer) and the patches."""

import argparse
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset, random_split

from stopwatch import lap, timed


def describe(path: Path, pixels: np.ndarray):
    """What the table says of a photograph: 24 numbers."""
    with Image.open(path) as image:
        width, height = image.size
    size = path.stat().st_size
    channels = pixels.reshape(-1, 3).astype(np.float32)
    quantiles = np.quantile(channels, (0.05, 0.25, 0.5, 0.75, 0.95), axis=0).ravel()
    first = [width, height, width / height, size, size / (width * height)]
    return np.array([*first, *channels.mean(0), *quantiles, channels.std()], np.float32)


class Listings(Dataset):
    def __init__(self, root: Path, side=48, limit=1200):
        files = sorted(root.glob("*/*.*"))
        files = files[:: max(1, len(files) // limit)][:limit]
        names = sorted({path.parent.name for path in files})
        self.classes = len(names)
        self.images, rows, self.labels = [], [], []
        for path in files:
            image = Image.open(path)
            image.draft("RGB", (side, side))
            pixels = np.array(image.convert("RGB").resize((side, side)))
            self.images.append(torch.from_numpy(pixels).permute(2, 0, 1).contiguous())
            rows.append(describe(path, pixels))
            self.labels.append(names.index(path.parent.name))
        table = torch.from_numpy(np.stack(rows))
        self.table = (table - table.mean(0)) / (table.std(0) + 1e-6)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return {"image": self.images[index], "row": self.table[index], "label": self.labels[index]}


class Fusion(nn.Module):
    def __init__(self, columns, classes, side=48, patch=8, dim=128, depth=3):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(columns, dim) / dim**0.5)
        self.shift = nn.Parameter(torch.zeros(columns, dim))
        self.patches = nn.Conv2d(3, dim, patch, patch)
        self.places = nn.Parameter(torch.zeros((side // patch) ** 2, dim))
        self.cls = nn.Parameter(torch.zeros(1, dim))
        layer = nn.TransformerEncoderLayer(dim, 8, 4 * dim, 0.1, "gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.LayerNorm(dim), nn.ReLU(), nn.Linear(dim, classes))

    def forward(self, images, rows):
        cells = rows[:, :, None] * self.scale + self.shift
        patches = self.patches(images).flatten(2).transpose(1, 2) + self.places
        tokens = torch.cat([self.cls.expand(len(rows), 1, -1), cells, patches], dim=1)
        return self.head(self.blocks(tokens)[:, 0])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/table_image_fusion"))
    parser.add_argument("--epochs", type=int, default=14)
    parser.add_argument("--batch-size", type=int, default=32)
    args = parser.parse_args()
    torch.manual_seed(33)
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)

    listings = Listings(args.data / "photos")
    held = len(listings) // 10
    train, holdout = random_split(listings, [len(listings) - held, held])
    loader = DataLoader(train, batch_size=args.batch_size, shuffle=True, drop_last=True)
    model = Fusion(listings.table.shape[1], listings.classes)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.01)
    for epoch in range(args.epochs):
        model.train()
        losses = []
        for batch in timed(loader, "wait"):
            with lap("compute"):
                images = batch["image"].float().div_(255)
                loss = nn.functional.cross_entropy(model(images, batch["row"]), batch["label"])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            with lap("own"):
                losses.append(loss.item())
        model.eval()
        with lap("compute"), torch.no_grad():
            right = 0
            for batch in DataLoader(holdout, batch_size=64):
                scores = model(batch["image"].float().div_(255), batch["row"])
                right += (scores.argmax(1) == batch["label"]).sum().item()
        print(f"epoch {epoch}: loss {np.mean(losses):.4f}, holdout {right / held:.1%}", flush=True)
        torch.save(model.state_dict(), args.out / "fusion.pt")


if __name__ == "__main__":
    main()
