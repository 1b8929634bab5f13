"""Accelerate: random-scale crops. Photographs are decoded once only: what one worker has read, all workers share."""

import argparse
from multiprocessing import Manager
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stopwatch import lap, timed

MEAN, STD = np.float32([0.485, 0.456, 0.406]), np.float32([0.229, 0.224, 0.225])


class SharedPhotos(Dataset):
    def __init__(self, root: Path, store, every: int, side: int, repeats: int):
        self.files = sorted(root.glob("*/*.JPEG"))[::every]
        self.names = sorted({file.parent.name for file in self.files})
        self.store, self.side, self.repeats = store, side, repeats

    def __len__(self):
        return len(self.files) * self.repeats

    def load(self, file: Path):
        with Image.open(file) as photo:
            pixels = np.asarray(photo.convert("RGB"), dtype=np.float32) / 255
        return (pixels - MEAN) / STD

    def photo(self, key: int):
        pixels = self.store.get(key)
        if pixels is None:
            with lap("decode"):
                pixels = self.load(self.files[key])
            self.store[key] = pixels
        return pixels

    def __getitem__(self, index: int):
        key = index % len(self.files)
        with lap("read"):
            pixels = self.photo(key)
        with lap("transform"):
            step = np.random.randint(1, 4)
            span = min(self.side * step, *pixels.shape[:2])
            top = np.random.randint(pixels.shape[0] - span + 1)
            left = np.random.randint(pixels.shape[1] - span + 1)
            crop = torch.from_numpy(pixels[top : top + span, left : left + span]).permute(2, 0, 1)[None]
            crop = nn.functional.interpolate(crop, size=(self.side, self.side), mode="area")[0]
            if np.random.random() < 0.5:
                crop = crop.flip(2)
        return {"image": crop, "label": self.names.index(self.files[key].parent.name)}


class DepthwiseNet(nn.Module):
    def __init__(self, classes: int, widths=(16, 32, 48)):
        super().__init__()
        layers = [nn.Conv2d(3, widths[0], 3, 2, 1), nn.ReLU6()]
        for before, after in zip(widths, widths[1:]):
            layers += [
                nn.Conv2d(before, before, 3, 2, 1, groups=before, bias=False),
                nn.BatchNorm2d(before),
                nn.Conv2d(before, after, 1),
                nn.ReLU6(),
            ]
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, images):
        return self.head(self.body(images).mean((2, 3)))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/accelerate_manager_store"))
    parser.add_argument("--epochs", type=int, default=400)
    parser.add_argument("--batch-size", type=int, default=24)
    parser.add_argument("--every", type=int, default=20, help="use every n-th photograph")
    args = parser.parse_args()
    set_seed(2024)
    torch.set_num_threads(1)

    accelerator = Accelerator(cpu=True)
    with Manager() as manager:
        photos = SharedPhotos(args.data / "photos", manager.dict(), args.every, side=48, repeats=8)
        loader = DataLoader(
            photos, args.batch_size, shuffle=True, num_workers=2, persistent_workers=True, drop_last=True
        )
        model = DepthwiseNet(len(photos.names))
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        for epoch in range(args.epochs):
            total = torch.zeros(())
            for batch in timed(loader, "wait"):
                with lap("compute"):
                    loss = nn.functional.cross_entropy(model(batch["image"]), batch["label"])
                    accelerator.backward(loss)
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                    optimizer.zero_grad()
                with lap("own"):
                    total += accelerator.gather(loss.detach()).mean()
            accelerator.print(f"epoch {epoch}: mean loss {total.item() / len(loader):.4f}", flush=True)
            accelerator.save_model(model, str(args.out))


if __name__ == "__main__":
    main()
