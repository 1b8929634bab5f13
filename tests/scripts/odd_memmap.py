"""ResNet-18 on random crops out of one big .npy file, mapped into memory; the file is packed on the first run."""

import argparse
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from stopwatch import lap, timed
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision.models import resnet18


def pack(photos, target, side=112):
    paths = sorted(photos.glob("*/*.*"))
    names = sorted({p.parent.name for p in paths})
    array = np.lib.format.open_memmap(target, mode="w+", dtype=np.uint8, shape=(len(paths), side, side, 3))
    for row, path in enumerate(paths):
        image = Image.open(path)
        image.draft("RGB", (side, side))
        array[row] = np.asarray(image.convert("RGB").resize((side, side)))
    array.flush()
    np.save(target.with_name("labels.npy"), np.array([names.index(p.parent.name) for p in paths]))


class Crops(Dataset):
    def __init__(self, file, size=64):
        self.pixels = np.load(file, mmap_mode="r")
        self.labels = np.load(file.with_name("labels.npy"))
        self.size = size

    def __len__(self):
        return len(self.pixels)

    def __getitem__(self, i):
        with lap("read"):
            top, left = np.random.randint(0, self.pixels.shape[1] - self.size + 1, 2)
            crop = np.array(self.pixels[i, top : top + self.size, left : left + self.size])
        with lap("transform"):
            if np.random.rand() < 0.5:
                crop = crop[:, ::-1].copy()
            return torch.from_numpy(crop).permute(2, 0, 1).float().sub_(127).div_(64), int(self.labels[i])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/odd_memmap"))
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--workers", type=int, default=1)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    packed = args.out / "photos.npy"
    if not packed.with_name("labels.npy").exists():
        print("packing the photos ...", flush=True)
        pack(args.data / "photos", packed)
    dataset = Crops(packed)
    loader = DataLoader(dataset, batch_size=32, shuffle=True, num_workers=args.workers, drop_last=True)
    model = resnet18(num_classes=int(dataset.labels.max()) + 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs * len(loader))
    for epoch in range(args.epochs):
        for step, (images, labels) in enumerate(timed(loader, "wait")):
            with lap("compute"):
                loss = nn.functional.cross_entropy(model(images), labels, label_smoothing=0.1)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                scheduler.step()
            if step % 10 == 0:
                print(f"epoch {epoch} step {step}/{len(loader)} loss {loss.item():.3f}", flush=True)
        torch.save({"model": model.state_dict(), "epoch": epoch}, args.out / "checkpoint.pt")


if __name__ == "__main__":
    main()
