"""Do not decay the learning rate, increase the batch size (Smith et al., 2018): batches of 4, later 8, 16 and 24.

The training is one call in a thread of an executor; the main thread prints what comes out of a queue.
"""

import argparse
import queue
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Sampler
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from stopwatch import lap


class GrowingBatches(Sampler):
    """Lists of numbers, as many in each as the stage wants; the last list of an epoch is shorter."""

    def __init__(self, count, sizes):
        self.count, self.sizes, self.stage = count, sizes, 0

    @property
    def size(self):
        return self.sizes[min(self.stage, len(self.sizes) - 1)]

    def __len__(self):
        return -(-self.count // self.size)

    def __iter__(self):
        order = torch.randperm(self.count).tolist()
        for start in range(0, self.count, self.size):
            yield order[start : start + self.size]


class Lookahead:
    """An iterator that knows whether the item it gives is the last one: it holds one in hand."""

    nothing = object()

    def __init__(self, items):
        self.items = iter(items)
        self.hand = self.draw()

    def draw(self):
        with lap("wait"):
            return next(self.items, self.nothing)

    def __iter__(self):
        return self

    def __next__(self):
        if self.hand is self.nothing:
            raise StopIteration
        item, self.hand = self.hand, self.draw()
        return item, self.hand is self.nothing


def small_photo(path):
    image = Image.open(path)
    image.draft("RGB", (80, 80))
    return image.convert("RGB")


def make_data(root, sizes):
    transform = v2.Compose(
        [
            v2.RandomResizedCrop(64, scale=(0.5, 1.0)),
            v2.RandomHorizontalFlip(),
            v2.PILToTensor(),
        ]
    )
    photos = ImageFolder(root, transform, loader=small_photo)
    batches = GrowingBatches(len(photos), sizes)
    return batches, DataLoader(photos, batch_sampler=batches, num_workers=2, persistent_workers=True), photos.classes


def make_model(classes):
    layers, channels = [], 3
    for width, stride in ((24, 2), (48, 1), (64, 2), (64, 1), (96, 2)):
        layers += [nn.Conv2d(channels, width, 3, stride, 1), nn.GroupNorm(8, width), nn.SiLU()]
        channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


def train(args, news):
    """All of the training. Gives the mean loss of the last epoch."""
    torch.set_num_threads(1)
    batches, loader, names = make_data(args.data / "photos", args.sizes)
    model = make_model(len(names))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    mean = float("nan")
    for epoch in range(args.epochs):
        batches.stage = epoch // args.epochs_per_stage
        total = seen = 0
        for (images, labels), last in Lookahead(loader):
            with lap("compute"):
                loss = nn.functional.cross_entropy(model(images.float() / 127.5 - 1), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            total, seen = total + loss.item() * len(labels), seen + len(labels)
            if last:
                mean = total / seen
                news.put(f"epoch {epoch}: batches of {batches.size}, the last of {len(labels)}, loss {mean:.4f}")
        torch.save(model.state_dict(), args.out / "model.pt")
    return mean


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/batch_curriculum_future"))
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--epochs-per-stage", type=int, default=1)
    parser.add_argument("--sizes", type=int, nargs="+", default=[4, 8, 16, 24])
    args = parser.parse_args()
    torch.manual_seed(55)
    args.out.mkdir(parents=True, exist_ok=True)

    news = queue.Queue()
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="train") as executor:
        future = executor.submit(train, args, news)
        while not (future.done() and news.empty()):
            try:
                print(news.get(timeout=1.0), flush=True)
            except queue.Empty:
                continue
        print(f"done, mean loss {future.result():.4f}", flush=True)


if __name__ == "__main__":
    main()
