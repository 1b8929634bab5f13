"""What grows on a field? Twelve bands of a satellite, tiles out of large scenes, cut by a process of their own."""

import argparse
import multiprocessing as mp
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

from stopwatch import lap

BANDS, SCENE, CROPS = 12, 640, 10


def make_scenes(photos: Path, path: Path, count=6):
    """Twelve mixtures of a photograph's channels as reflectance times 10,000, as Sentinel-2 products hold it."""
    if path.exists():
        return
    rng = np.random.default_rng(2)
    folders = sorted(folder for folder in photos.iterdir() if folder.is_dir())
    part = path.with_suffix(".part.npy")
    scenes = np.lib.format.open_memmap(part, "w+", np.uint16, (count, BANDS, SCENE, SCENE))
    for number in range(count):
        files = sorted(folders[number % len(folders)].glob("*.JPEG"))
        photo = np.asarray(Image.open(files[number]).convert("RGB").resize((SCENE, SCENE)), np.float32)
        for band in range(BANDS):
            scenes[number, band] = (photo @ rng.dirichlet(np.ones(3))).astype(np.float32) * 30 + 400
    scenes.flush()
    part.replace(path)


def cutter(path, queue, batch, side, seed):
    """Runs in its own process, for ever: tiles as reflectance, with the date's features, into the queue."""
    scenes, rng = np.load(path, mmap_mode="r"), np.random.default_rng(seed)
    while True:
        tiles, labels, dates = np.empty((batch, BANDS, side, side)), [], []
        for number in range(batch):
            scene = int(rng.integers(len(scenes)))
            top, left = rng.integers(SCENE - side, size=2)
            np.divide(scenes[scene, :, top : top + side, left : left + side], 10_000.0, out=tiles[number])
            labels.append((scene * 7 + int(top > SCENE // 3)) % CROPS)
            day = rng.integers(365)
            dates.append((np.sin(day * 0.0172), np.cos(day * 0.0172)))
        queue.put((tiles, np.array(labels), np.array(dates, np.float32)))


def season(queue, steps):
    for _ in range(steps):
        tiles, labels, dates = queue.get()
        yield torch.from_numpy(tiles), torch.from_numpy(labels), torch.from_numpy(dates)


class FieldNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.coarse = nn.AvgPool2d(4)
        self.body = nn.Sequential(
            nn.BatchNorm2d(BANDS), nn.Conv2d(BANDS, 24, 3, 2, 1), nn.ReLU(), nn.Conv2d(24, 48, 3, 2, 1), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        )  # fmt: skip
        self.head = nn.Linear(48 + 2, CROPS)

    def forward(self, tiles, dates):
        return self.head(torch.cat([self.body(self.coarse(tiles)), dates], 1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/crop_types"))
    parser.add_argument("--seasons", type=int, default=40)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--side", type=int, default=208)
    args = parser.parse_args()
    torch.manual_seed(5)
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    make_scenes(args.data / "photos", args.out / "scenes.npy")

    queue = mp.Queue(maxsize=3)
    process = mp.Process(target=cutter, args=(args.out / "scenes.npy", queue, args.batch, args.side, 11), daemon=True)
    process.start()
    model = FieldNet()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for number in range(args.seasons):
        batches, losses = season(queue, args.steps), []
        while True:
            with lap("wait"):
                batch = next(batches, None)
            if batch is None:
                break
            with lap("compute"):
                tiles, labels, dates = batch
                loss = nn.functional.cross_entropy(model(tiles.float(), dates), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            losses.append(loss.item())
        print(f"season {number}: loss {np.mean(losses):.4f}", flush=True)
        torch.save(model.state_dict(), args.out / "fields.pt")
    process.terminate()


if __name__ == "__main__":
    main()
