"""Road markings by webdataset: each sample is a photograph and a JSON of outlines, as the labelling tool has them."""

import argparse
import io
import json
import random
from pathlib import Path

import numpy as np
import torch
import webdataset as wds
from PIL import Image
from stopwatch import lap, timed
from torch import nn

SIDE, LINES, POINTS, KEPT = 64, 6, 1600, 16


def outlines(seed):
    """Six lines of 1,600 points: a stroke of the pen is sampled at every move of the mouse."""
    rng = np.random.default_rng(seed)
    kinds = ["solid", "dashed", "double", "kerb", "arrow", "stop"]
    found = []
    for kind in kinds[:LINES]:
        heading = rng.normal(0, 0.002, POINTS).cumsum() + rng.uniform(0, 6)
        steps = np.stack([np.cos(heading), np.sin(heading)], 1) * 0.06
        points = rng.uniform(100, 275, 2) + steps.cumsum(0)
        found.append({"kind": kind, "width": round(rng.uniform(2, 9), 1), "points": points.round(2).tolist()})
    return json.dumps(found)


def make_shards(photos: Path, folder: Path, shards=4, each=50):
    folder.mkdir(parents=True, exist_ok=True)
    files = sorted(photos.glob("*/*.JPEG"))
    random.Random(1).shuffle(files)
    exported = [outlines(seed) for seed in range(20)]
    for shard in range(shards):
        with wds.TarWriter(str(folder / f"roads-{shard:02d}.tar")) as tar:
            for i, file in enumerate(files[shard * each : (shard + 1) * each]):
                notes = f'{{"photo": "{file.name}", "tool": "markup 3.1", "outlines": {exported[i % len(exported)]}}}'
                tar.write({"__key__": f"{shard:02d}{i:04d}", "jpg": file.read_bytes(), "json": notes.encode()})
    return sorted(str(path) for path in folder.glob("roads-*.tar"))


def thumbnail(key, data):
    """A decoder for webdataset: photographs at a quarter of their size."""
    if not key.endswith("jpg"):
        return None
    image = Image.open(io.BytesIO(data))
    image.draft("RGB", (2 * SIDE, 2 * SIDE))
    pixels = np.array(image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR))
    return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()


def target(pair):
    """Sixteen points of each line."""
    picture, notes = pair
    every = POINTS // KEPT
    lines = [outline["points"][::every][:KEPT] for outline in notes["outlines"]]
    return picture, torch.tensor(lines, dtype=torch.float32).flatten() / 375


class Marker(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, width, 3, stride=2), nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, stride=2), nn.ReLU(),
            nn.Conv2d(2 * width, 3 * width, 3, stride=2), nn.ReLU(),
            nn.AdaptiveAvgPool2d(3), nn.Flatten(),
        )  # fmt: skip
        self.head = nn.Linear(27 * width, 2 * LINES * KEPT)

    def forward(self, pictures):
        return self.head(self.body(pictures.float() / 255))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/wds_lane_outlines"))
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--steps", type=int, default=100)
    args = parser.parse_args()
    torch.manual_seed(3)
    torch.set_num_threads(1)
    urls = make_shards(args.data / "photos", args.out / "shards")
    dataset = (
        wds.WebDataset(urls, resampled=True, shardshuffle=False)
        .shuffle(60)
        .decode(thumbnail)
        .to_tuple("jpg", "json")
        .map(target)
        .batched(16)
    )
    loader = wds.WebLoader(dataset, batch_size=None, num_workers=2).with_epoch(args.steps)
    model = Marker()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        total = 0.0
        for pictures, points in timed(loader, "wait"):
            with lap("compute"):
                loss = nn.functional.smooth_l1_loss(model(pictures), points, beta=0.1)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += loss.item()
        print(f"epoch {epoch}: {total / args.steps:.4f}", flush=True)
        torch.save(model.state_dict(), args.out / "marker.pt")


if __name__ == "__main__":
    main()
