#!/usr/bin/env python
"""Fine-grained birds and friends with OpenCV in the workers.

OpenCV's thread pool and fork() do not like each other (our jobs hung now and then), so workers are spawned.
"""

import argparse
import random
from pathlib import Path

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stopwatch import lap, timed

cv2.setNumThreads(0)


class Thumbnails(Dataset):
    """An epoch is `length` random photographs."""

    def __init__(self, root, length, side, every=4):
        self.classes = sorted(p.name for p in root.iterdir() if p.is_dir())
        self.items = [
            (f.name, i) for i, c in enumerate(self.classes) for f in sorted((root / c).glob("*.JPEG"))[::every]
        ]
        self.root, self.length, self.side = str(root), length, side

    def __len__(self):
        return self.length

    def __getitem__(self, _):
        name, label = random.choice(self.items)
        with lap("decode"):
            image = cv2.imread(f"{self.root}/{self.classes[label]}/{name}", cv2.IMREAD_REDUCED_COLOR_4)
        with lap("transform"):
            h, w = image.shape[:2]
            s = min(h, w)
            y, x = random.randint(0, h - s), random.randint(0, w - s)
            image = cv2.resize(image[y : y + s, x : x + s], (self.side, self.side), interpolation=cv2.INTER_AREA)
            if random.random() < 0.5:
                image = cv2.flip(image, 1)
        return torch.from_numpy(np.ascontiguousarray(image[:, :, ::-1].transpose(2, 0, 1))), label


class Residual(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.a = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.b = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.na, self.nb = nn.BatchNorm2d(cout), nn.BatchNorm2d(cout)
        self.skip = nn.Conv2d(cin, cout, 1, stride)

    def forward(self, x):
        y = self.nb(self.b(F.relu(self.na(self.a(x)))))
        return F.relu(y + self.skip(x))


def train(args):
    dataset = Thumbnails(Path(args.data) / "photos", args.epoch_length, args.side)
    loader = DataLoader(
        dataset,
        batch_size=args.batch_size,
        shuffle=True,
        num_workers=args.workers,
        multiprocessing_context="spawn",
        prefetch_factor=4,
        drop_last=True,
    )
    net = nn.Sequential(
        nn.Conv2d(3, 16, 5, 2, 2),
        Residual(16, 24, 2),
        Residual(24, 48, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(48, len(dataset.classes)),
    )
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=5e-4)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, args.epochs)
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    for epoch in range(args.epochs):
        hits = seen = 0
        with lap("wait"):
            batches = iter(loader)
        for x, y in timed(batches, "wait"):
            with lap("compute"):
                logits = net(x.float().div_(127.5).sub_(1))
                loss = F.cross_entropy(logits, y, label_smoothing=0.1)
                opt.zero_grad(set_to_none=True)
                loss.backward()
                opt.step()
            hits += (logits.argmax(1) == y).sum().item()
            seen += len(y)
        sched.step()
        print(
            f"[{epoch:03d}] loss {loss.item():.3f} acc {hits / seen:.3f} lr {sched.get_last_lr()[0]:.4f}", flush=True
        )
        torch.save(net.state_dict(), out / "net.pt")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--out", default="runs/spawned_thumbnails")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--epoch-length", type=int, default=1280)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--side", type=int, default=48)
    parser.add_argument("--workers", type=int, default=2)
    train(parser.parse_args())
