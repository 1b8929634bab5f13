"""Four threads read and augment the photos of a batch, pixel by pixel in Python lists, and log what they did."""

import argparse
import colorsys
import logging
import os
import random
from concurrent.futures import ThreadPoolExecutor

import torch
from PIL import Image
from stopwatch import lap, timed
from torch import nn

logger = logging.getLogger("photos")


def find_photos(root):
    found = []
    for label, name in enumerate(sorted(os.listdir(root))):
        for file in sorted(os.listdir(os.path.join(root, name))):
            found.append((os.path.join(root, name, file), label))
    return found


def augment(pixels, side):
    """Shifts the hue, then turns the image by a multiple of 90 degrees; `pixels` is a list of (r, g, b)."""
    shift, gain = random.uniform(-0.05, 0.05), random.uniform(0.8, 1.2)
    changed = []
    for r, g, b in pixels:
        h, s, v = colorsys.rgb_to_hsv(r / 255.0, g / 255.0, b / 255.0)
        changed.append(colorsys.hsv_to_rgb((h + shift) % 1.0, s, min(1.0, v * gain)))
    rows = [changed[y * side : (y + 1) * side] for y in range(side)]
    for _ in range(random.randrange(4)):
        rows = [list(row) for row in zip(*rows[::-1])]
    return [[[pixel[channel] for pixel in row] for row in rows] for channel in range(3)]


class ThreadedBatches:
    def __init__(self, items, batch_size, side, threads):
        self.items, self.batch_size, self.side = items, batch_size, side
        self.pool = ThreadPoolExecutor(threads, thread_name_prefix="reader")

    def load(self, item):
        path, label = item
        with lap("decode"):
            image = Image.open(path)
            image.draft("RGB", (self.side, self.side))
            image = image.convert("RGB").resize((self.side, self.side))
        with lap("transform"):
            planes = augment(list(image.getdata()), self.side)
        logger.info("%s label=%d mean=%.3f", path, label, planes[0][0][0])
        return torch.tensor(planes), label

    def __len__(self):
        return len(self.items) // self.batch_size

    def __iter__(self):
        random.shuffle(self.items)
        for number in range(len(self)):
            chunk = self.items[number * self.batch_size : (number + 1) * self.batch_size]
            images, labels = zip(*self.pool.map(self.load, chunk))
            yield torch.stack(images), torch.tensor(labels)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--out", default="runs/threads_list_augment")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--side", type=int, default=72)
    args = parser.parse_args()
    torch.set_num_threads(1)
    os.makedirs(args.out, exist_ok=True)
    logging.basicConfig(
        filename=os.path.join(args.out, "samples.log"),
        level=logging.INFO,
        format="%(asctime)s %(threadName)s %(message)s",
    )
    batches = ThreadedBatches(find_photos(os.path.join(args.data, "photos")), 32, args.side, args.threads)
    net = nn.Sequential(
        nn.Conv2d(3, 16, 5, stride=4), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(10)
    )
    net(torch.zeros(1, 3, args.side, args.side))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    for epoch in range(args.epochs):
        for step, (images, labels) in enumerate(timed(batches, "wait")):
            with lap("compute"):
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(net(images), labels)
                loss.backward()
                optimizer.step()
            if step % 10 == 0:
                print(f"epoch {epoch} step {step}/{len(batches)} loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
