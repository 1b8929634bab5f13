"""Accelerate: the camera wrote each picture twice (RAW and JPEG), and the network shall know both as the same scene."""

import argparse
import itertools
import random
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from PIL import Image
from scipy.ndimage import convolve
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from stopwatch import lap, timed

CROSS = np.array([[0, 1, 0], [1, 4, 1], [0, 1, 0]], np.float32) / 4
SQUARE = np.array([[1, 2, 1], [2, 4, 2], [1, 2, 1]], np.float32) / 4


def take_pictures(photos: Path, card: Path, count=160):
    """A memory card as it comes out of the camera: DSC_0001.JPG, DSC_0001.RAW, DSC_0002.JPG and so on."""
    card.mkdir(parents=True, exist_ok=True)
    files = sorted(photos.glob("*/*.JPEG"))
    names = sorted({file.parent.name for file in files})
    for number, file in enumerate(files[:: len(files) // count][:count]):
        stem = card / f"DSC_{number:04d}_{names.index(file.parent.name)}"
        if stem.with_suffix(".RAW").exists():
            continue
        stem.with_suffix(".JPG").write_bytes(file.read_bytes())
        pixels = np.asarray(Image.open(file).convert("RGB").resize((480, 360)), np.float32) / 255
        light = (pixels**2.2 * np.array([0.5, 1.0, 0.6]) * 4095).astype(np.uint16)
        mosaic = light[..., 1].copy()
        mosaic[::2, ::2], mosaic[1::2, 1::2] = light[::2, ::2, 0], light[1::2, 1::2, 2]
        stem.with_suffix(".RAW").write_bytes(mosaic.tobytes())


def develop(path):
    """RGGB to RGB: bilinear interpolation, grey-world white balance, gamma."""
    mosaic = np.fromfile(path, np.uint16).reshape(360, 480).astype(np.float32) / 4095
    masks = np.zeros((3, 360, 480), np.float32)
    masks[0, ::2, ::2] = masks[2, 1::2, 1::2] = masks[1, ::2, 1::2] = masks[1, 1::2, ::2] = 1
    planes = [convolve(mosaic * mask, kernel) for mask, kernel in zip(masks, (SQUARE, CROSS, SQUARE))]
    picture = np.stack(planes, -1)
    picture *= picture.mean() / (picture.mean((0, 1)) + 1e-6)
    return Image.fromarray((picture.clip(0, 1) ** (1 / 2.2) * 255).astype(np.uint8))


class MemoryCard(IterableDataset):
    """All pictures of the card, again and again; each worker takes every n-th of them."""

    def __init__(self, card: Path, side: int):
        self.paths, self.side = sorted(card.glob("DSC_*")), side

    def load(self, path):
        if path.suffix == ".RAW":
            with lap("develop"):
                return develop(path)
        with lap("decode"):
            photo = Image.open(path)
            photo.draft("RGB", (240, 180))
            return photo.convert("RGB")

    def __iter__(self):
        worker = get_worker_info()
        number, step = (worker.id, worker.num_workers) if worker else (0, 1)
        mine = list(itertools.islice(self.paths, number, None, step))
        while True:
            random.shuffle(mine)
            for path in mine:
                picture = self.load(path)
                with lap("transform"):
                    width, height = picture.size
                    side = random.randint(min(width, height) // 2, min(width, height))
                    left, top = random.randint(0, width - side), random.randint(0, height - side)
                    view = picture.resize((self.side, self.side), box=(left, top, left + side, top + side))
                    pixels = torch.from_numpy(np.array(view).transpose(2, 0, 1))
                yield pixels, int(path.stem.rsplit("_", 1)[1]), int(path.suffix == ".RAW")


class SceneNet(nn.Module):
    def __init__(self, classes=10):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 48, 3, 2, 1),
            nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        )  # fmt: skip
        self.scene, self.kind = nn.Linear(48, classes), nn.Linear(48, 2)

    def forward(self, pixels):
        features = self.body(pixels.float() / 127.5 - 1)
        return self.scene(features), self.kind(features)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/camera_pairs"))
    parser.add_argument("--steps", type=int, default=2000)
    args = parser.parse_args()
    set_seed(12)
    torch.set_num_threads(1)
    take_pictures(args.data / "photos", args.out / "card")
    accelerator = Accelerator(cpu=True)
    model = SceneNet()
    loader = DataLoader(MemoryCard(args.out / "card", side=72), batch_size=16, num_workers=2)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    model, loader, optimizer = accelerator.prepare(model, loader, optimizer)
    for step, (pixels, scenes, kinds) in enumerate(timed(loader, "wait")):
        with lap("compute"):
            scene, kind = model(pixels)
            loss = nn.functional.cross_entropy(scene, scenes) + 0.1 * nn.functional.cross_entropy(kind, kinds)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
        if step % 20 == 0:
            accelerator.print(f"step {step}: {loss.item():.4f}", flush=True)
            accelerator.save_model(model, args.out)
        if step == args.steps:
            break


if __name__ == "__main__":
    main()
