"""Two workers that burn CPU beside a model with two threads, on two cores."""

import argparse
import time

import torch
import torch.nn.functional as F
from stopwatch import lap, timed
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets, transforms


class DenoiseInPython:
    """A filter over the pixels in plain Python: a fixed cost of CPU a sample."""

    def __init__(self, seconds):
        self.seconds = seconds

    def __call__(self, x):
        with lap("transform"):
            until = time.thread_time() + self.seconds
            weight = 1.0
            while time.thread_time() < until:
                weight = (weight * 1.0001) % 2.0
            return x * (1 + 1e-3 * weight)


def open_small(path):
    with lap("decode"):
        image = datasets.folder.Image.open(path)
        image.draft("RGB", (96, 96))
        return image.convert("RGB")


class ConvNet(nn.Module):
    def __init__(self, n):
        super().__init__()
        widths = (3, 16, 32, 48)
        self.convs = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1) for a, b in zip(widths, widths[1:]))
        self.out = nn.Linear(widths[-1], n)

    def forward(self, x):
        for conv in self.convs:
            x = F.max_pool2d(F.relu(conv(x)), 2)
        return self.out(x.flatten(2).mean(2))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("data")
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--cost", type=float, default=0.036)
    p.add_argument("--workers", type=int, default=2)
    p.add_argument("--threads", type=int, default=2)
    a = p.parse_args()
    torch.set_num_threads(a.threads)
    t = transforms.Compose([transforms.Resize((96, 96)), transforms.ToTensor(), DenoiseInPython(a.cost)])
    ds = datasets.ImageFolder(f"{a.data}/photos", t, loader=open_small)
    dl = DataLoader(ds, 32, shuffle=True, num_workers=a.workers, persistent_workers=True, drop_last=True)
    net = ConvNet(len(ds.classes))
    opt = torch.optim.AdamW(net.parameters(), 1e-3)
    for e in range(a.epochs):
        t0, hits = time.time(), 0
        for x, y in timed(dl, "wait"):
            with lap("compute"):
                logits = net(x)
                loss = F.cross_entropy(logits, y)
                opt.zero_grad()
                loss.backward()
                opt.step()
            hits += int((logits.argmax(1) == y).sum())
        print(f"epoch {e + 1}/{a.epochs} - {time.time() - t0:.0f}s - acc {hits / (len(dl) * 32):.3f}", flush=True)


if __name__ == "__main__":
    main()
