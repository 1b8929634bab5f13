"""Which kinds of things are in a picture? Labels come from an annotation file in the manner of COCO.

Memory was short on the machine where this began, so the loop tidies up after itself and notes what it uses.
"""

import argparse
import gc
import random
from collections import defaultdict
from pathlib import Path

import numpy as np
import psutil
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stopwatch import lap, timed

CATEGORIES = 40


def imitate_annotations(images, each, seed=35):
    """What json.load gives for an annotation file: boxes, outlines and categories for each image."""
    rng = random.Random(seed)
    annotations = []
    for image in range(images):
        favourites = rng.sample(range(CATEGORIES), 6)
        for _ in range(each):
            x, y, w, h = (round(rng.random() * limit, 2) for limit in (400, 300, 100, 75))
            annotations.append(
                {
                    "id": len(annotations),
                    "image_id": image,
                    "category_id": favourites[int(6 * rng.random())],
                    "bbox": [x, y, w, h],
                    "segmentation": [[x, y, x + w, y, x + w, y + h, x, y + h]],
                    "area": w * h,
                    "iscrowd": 0,
                }
            )
    return annotations


class Annotations:
    def __init__(self, annotations):
        self.all = annotations
        self.of_image = defaultdict(list)
        for annotation in annotations:
            self.of_image[annotation["image_id"]].append(annotation)

    def targets(self, image, smallest=50.0):
        kinds = torch.zeros(CATEGORIES)
        for annotation in self.of_image[image]:
            if annotation["area"] > smallest:
                kinds[annotation["category_id"]] = 1.0
        return kinds


class Pictures(Dataset):
    def __init__(self, files, annotations, side=48):
        self.images, self.targets = [], []
        for number, path in enumerate(files):
            image = Image.open(path)
            image.draft("RGB", (side, side))
            self.images.append(torch.from_numpy(np.array(image.convert("RGB").resize((side, side)))).permute(2, 0, 1))
            self.targets.append(annotations.targets(number))

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.images[index], self.targets[index]


def tidy_up():
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/coco_boxes_tidy"))
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--pictures", type=int, default=1000)
    parser.add_argument("--boxes", type=int, default=250, help="for each picture")
    args = parser.parse_args()
    torch.manual_seed(35)
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)

    files = sorted((args.data / "photos").glob("*/*.JPEG"))
    files = files[:: max(1, len(files) // args.pictures)][: args.pictures]
    annotations = Annotations(imitate_annotations(len(files), args.boxes))
    print(f"{len(annotations.all)} annotations of {len(files)} pictures", flush=True)
    loader = DataLoader(Pictures(files, annotations), args.batch_size, shuffle=True, drop_last=True)

    model = nn.Sequential(
        nn.Conv2d(3, 24, 3, 2, 1),
        nn.BatchNorm2d(24),
        nn.ReLU(),
        nn.Conv2d(24, 32, 3, 2, 1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 48, 3, 2, 1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(192, CATEGORIES),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    process = psutil.Process()
    for epoch in range(args.epochs):
        used = 0
        for images, targets in timed(loader, "wait"):
            with lap("compute"):
                scores = model(images.float() / 255)
                loss = nn.functional.binary_cross_entropy_with_logits(scores, targets)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
            value = loss.item()
            with lap("own"):
                del images, targets, scores, loss
                tidy_up()
                used = max(used, process.memory_info().rss)
        print(f"epoch {epoch}: loss {value:.4f}, at most {used / 2**20:.0f} MiB", flush=True)
        torch.save(model.state_dict(), args.out / "kinds.pt")


if __name__ == "__main__":
    main()
