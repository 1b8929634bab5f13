"""Segmentation from outlines as LabelMe writes them: lists of points, which each sample moves and fills anew."""

import argparse
import copy
import math
import random
from pathlib import Path

import cv2
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stopwatch import lap, timed


def trace(centre, radius, corners, rng):
    """A wobbly outline of many points, as an annotation tool with a freehand pen makes it."""
    waves = [(rng.uniform(0, 0.15), rng.randint(2, 9), rng.uniform(0, 6.3)) for _ in range(3)]
    outline = []
    for corner in range(corners):
        angle = 2 * math.pi * corner / corners
        reach = radius * (1 + sum(size * math.sin(count * angle + shift) for size, count, shift in waves))
        outline.append([centre[0] + reach * math.cos(angle), centre[1] + reach * math.sin(angle)])
    return outline


def annotate(files, objects=30, corners=260, seed=4):
    rng, records = random.Random(seed), []
    for file in files:
        shapes = [
            {
                "label": rng.choice(("leaf", "stem", "flower")),
                "points": trace((rng.uniform(50, 450), rng.uniform(50, 325)), rng.uniform(15, 60), corners, rng),
                "flags": {"occluded": rng.random() < 0.2, "truncated": False},
                "group_id": None,
            }
            for _ in range(objects)
        ]
        records.append({"version": "5.4.1", "imagePath": str(file), "imageHeight": 375, "shapes": shapes})
    return records


class OutlinedPhotos(Dataset):
    kinds = {"leaf": 1, "stem": 2, "flower": 3}

    def __init__(self, records, side):
        self.records, self.side = records, side

    def __len__(self):
        return 12 * len(self.records)

    def entry(self, index):
        # what follows moves the points in place, so everyone needs their own
        return copy.deepcopy(self.records[index % len(self.records)])

    def fill(self, shapes, scale, shift):
        mask = np.zeros((self.side, self.side), np.uint8)
        for shape in shapes:
            if shape["flags"]["occluded"]:
                continue
            points = (np.array(shape["points"]) * scale + shift).round().astype(np.int32)
            cv2.fillPoly(mask, [points], self.kinds[shape["label"]])
        return mask

    def __getitem__(self, index):
        record = self.entry(index)
        with lap("decode"):
            image = cv2.imread(record["imagePath"], cv2.IMREAD_REDUCED_COLOR_4)
        with lap("transform"):
            factor = random.uniform(1.0, 1.4) * self.side / min(image.shape[:2])
            image = cv2.resize(image, None, fx=factor, fy=factor)
            top = random.randint(0, image.shape[0] - self.side)
            left = random.randint(0, image.shape[1] - self.side)
            image = image[top : top + self.side, left : left + self.side]
            mask = self.fill(record["shapes"], factor / 4, (-left, -top))
            if random.random() < 0.5:
                image, mask = image[:, ::-1], mask[:, ::-1]
        return torch.from_numpy(image.transpose(2, 0, 1).copy()), torch.from_numpy(mask.copy()).long()


def iou(guess, truth, classes=4):
    table = torch.bincount((classes * truth + guess).flatten(), minlength=classes**2).view(classes, classes)
    return (table.diag() / (table.sum(0) + table.sum(1) - table.diag()).clamp(min=1)).tolist()


def seed_worker(worker):
    random.seed(torch.initial_seed() % 2**32)
    cv2.setNumThreads(0)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/outline_masks"))
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=12)
    args = parser.parse_args()
    torch.manual_seed(2)
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    files = sorted((args.data / "photos").glob("*/*.JPEG"))[::28]
    data = OutlinedPhotos(annotate(files), side=80)
    loader = DataLoader(
        data, args.batch_size, shuffle=True, num_workers=1, worker_init_fn=seed_worker, persistent_workers=True
    )
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 24, 3, 1, 1), nn.ReLU(),
        nn.Conv2d(24, 24, 3, 1, 2, dilation=2), nn.ReLU(), nn.Conv2d(24, 16, 1), nn.PixelShuffle(2),
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    for epoch in range(args.epochs):
        scores = []
        for images, masks in timed(loader, "wait"):
            with lap("compute"):
                logits = model(images.float() / 127.5 - 1)
                loss = nn.functional.cross_entropy(logits, masks)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            with lap("own"):
                scores.append(iou(logits.argmax(1), masks))
        means = " ".join(f"{value:.3f}" for value in np.mean(scores, 0))
        print(f"epoch {epoch}: loss {loss.item():.4f}, IoU {means}", flush=True)
        torch.save(model.state_dict(), args.out / "outlines.pt")


if __name__ == "__main__":
    main()
