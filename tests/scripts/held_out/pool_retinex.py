"""No DataLoader: a multiprocessing.Pool corrects the light of each photograph (multi-scale retinex), a generator
makes batches of what it returns."""

import argparse
import multiprocessing
import random
from pathlib import Path

import cv2
import numpy as np
import torch
from scipy.ndimage import gaussian_filter
from stopwatch import lap, timed
from torch import nn

SIDE, CROP = 112, 96


def retinex(image, sigmas=(5, 15, 40)):
    """Jobson, Rahman and Woodell: the log of each pixel against the log of its surroundings, at several scales."""
    light = image.astype(np.float32) + 1.0
    detail = np.zeros_like(light)
    for sigma in sigmas:
        detail += np.log(light) - np.log(gaussian_filter(light, (sigma, sigma, 0)))
    low, high = np.percentile(detail, (1, 99))
    return ((detail - low) * (255.0 / max(high - low, 1e-6))).clip(0, 255).astype(np.uint8)


def prepare(item):
    path, label, seed = item
    rng = random.Random(seed)
    with lap("decode"):
        image = cv2.imread(path, cv2.IMREAD_REDUCED_COLOR_2)
        image = cv2.resize(image, (SIDE, SIDE), interpolation=cv2.INTER_AREA)
    with lap("transform"):
        image = retinex(image)
        top, left = rng.randrange(SIDE - CROP + 1), rng.randrange(SIDE - CROP + 1)
        image = image[top : top + CROP, left : left + CROP]
        if rng.random() < 0.5:
            image = image[:, ::-1]
    return np.ascontiguousarray(image.transpose(2, 0, 1)), label


def one_thread():
    cv2.setNumThreads(1)


def batches(pool, items, size):
    random.shuffle(items)
    jobs = [(path, label, random.getrandbits(32)) for path, label in items]
    images, labels = [], []
    for image, label in pool.imap_unordered(prepare, jobs, chunksize=4):
        images.append(image)
        labels.append(label)
        if len(images) == size:
            yield torch.from_numpy(np.stack(images)), torch.tensor(labels)
            images, labels = [], []


class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 20, 5, stride=3)
        self.conv2 = nn.Conv2d(20, 40, 3, stride=2)
        self.fc1 = nn.Linear(40 * 9, 64)
        self.fc2 = nn.Linear(64, classes)

    def forward(self, x):
        x = torch.relu(self.conv1(x))
        x = torch.relu(self.conv2(x))
        x = nn.functional.adaptive_avg_pool2d(x, 3).flatten(1)
        return self.fc2(torch.relu(self.fc1(x)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/pool_retinex"))
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--processes", type=int, default=2)
    args = parser.parse_args()
    random.seed(4)
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)

    folders = sorted(path for path in (args.data / "photos").iterdir() if path.is_dir())
    items = [(str(path), label) for label, folder in enumerate(folders) for path in sorted(folder.iterdir())]
    with multiprocessing.Pool(args.processes, initializer=one_thread) as pool:
        model = Net(len(folders))
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        for epoch in range(args.epochs):
            total = count = 0
            for images, labels in timed(batches(pool, items, args.batch_size), "wait"):
                with lap("compute"):
                    loss = nn.functional.cross_entropy(model(images.float().div_(255)), labels)
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                total += loss.item()
                count += 1
                if count % 25 == 0:
                    print(f"epoch {epoch}, batch {count}: loss {total / count:.4f}", flush=True)
            torch.save(model.state_dict(), args.out / "net.pt")


if __name__ == "__main__":
    main()
