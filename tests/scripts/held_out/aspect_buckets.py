"""Batches of like shape: a batch sampler puts landscapes, squares and portraits apart, so nothing is distorted."""

import argparse
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler
from torchvision.models.resnet import BasicBlock, ResNet

from stopwatch import lap, timed

SHAPES = ((96, 144), (120, 120), (144, 96))  # height, width


class ShapedPhotos(Dataset):
    def __init__(self, root: Path):
        self.files = sorted(root.glob("*/*.*"))
        self.classes = sorted({path.parent.name for path in self.files})
        self.buckets = [self.bucket(path) for path in self.files]

    @staticmethod
    def bucket(path):
        with Image.open(path) as image:  # reads the header only
            ratio = image.width / image.height
        return 0 if ratio > 1.2 else 1 if ratio > 1 / 1.2 else 2

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        path = self.files[index]
        height, width = SHAPES[self.buckets[index]]
        with lap("decode"):
            image = Image.open(path)
            image.draft("RGB", (width, height))
            image = image.convert("RGB")
        with lap("transform"):
            image = np.array(ImageOps.fit(image, (width, height)))
            if np.random.rand() < 0.5:
                image = np.ascontiguousarray(image[:, ::-1])
            image = torch.from_numpy(image).permute(2, 0, 1).float().div_(127.5).sub_(1)
        return image, self.classes.index(path.parent.name)


class BucketBatches(Sampler):
    def __init__(self, buckets, batch_size, seed=0):
        self.buckets, self.batch_size = np.array(buckets), batch_size
        self.rng = np.random.default_rng(seed)

    def __len__(self):
        return sum(int((self.buckets == kind).sum()) // self.batch_size for kind in range(len(SHAPES)))

    def __iter__(self):
        batches = []
        for kind in range(len(SHAPES)):
            members = self.rng.permutation(np.flatnonzero(self.buckets == kind))
            whole = len(members) // self.batch_size * self.batch_size
            batches += members[:whole].reshape(-1, self.batch_size).tolist()
        self.rng.shuffle(batches)
        yield from batches


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/aspect_buckets"))
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    torch.manual_seed(12)
    args.out.mkdir(parents=True, exist_ok=True)

    photos = ShapedPhotos(args.data / "photos")
    loader = DataLoader(
        photos,
        batch_sampler=BucketBatches(photos.buckets, args.batch_size),
        num_workers=args.workers,
        persistent_workers=args.workers > 0,
    )
    model = ResNet(BasicBlock, [1, 1, 1, 1], num_classes=len(photos.classes))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    for epoch in range(args.epochs):
        correct = seen = 0
        for images, labels in timed(loader, "wait"):
            with lap("compute"):
                logits = model(images)
                loss = nn.functional.cross_entropy(logits, labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            with lap("own"):
                correct += (logits.argmax(1) == labels).sum().item()
                seen += len(labels)
            if seen % (20 * args.batch_size) == 0:
                shape = "x".join(map(str, images.shape[2:]))
                print(f"epoch {epoch} {seen} seen ({shape}): {correct / seen:.1%}", flush=True)
        torch.save(model.state_dict(), args.out / "resnet10.pt")


if __name__ == "__main__":
    main()
