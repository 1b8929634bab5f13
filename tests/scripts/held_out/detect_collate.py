"""Single-shot detector on pasted patches: a variable number of boxes a picture, targets assigned in the collate."""

import argparse
import random
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stopwatch import lap, timed

SIDE, CELLS = 128, 16
SHAPES = ((16, 16), (24, 24), (32, 20), (20, 32), (48, 48))


class PastedObjects(Dataset):
    """Crops of other photographs pasted on a background; the boxes are where they were pasted."""

    def __init__(self, files, length):
        thumbs = []
        for path in files:
            image = Image.open(path)
            image.draft("RGB", (SIDE, SIDE))
            thumbs.append(np.asarray(image.convert("RGB").resize((SIDE, SIDE))))
        self.thumbs = np.stack(thumbs)
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        rng = random.Random(index)
        canvas = self.thumbs[index % len(self.thumbs)].copy()
        boxes = []
        for _ in range(rng.randint(2, 9)):
            w, h = rng.randint(14, 52), rng.randint(14, 52)
            x, y = rng.randint(0, SIDE - w), rng.randint(0, SIDE - h)
            canvas[y : y + h, x : x + w] = rng.choice(self.thumbs)[:h, :w]
            boxes.append((x, y, x + w, y + h))
        return canvas, boxes


def iou(a, b):
    left, top = max(a[0], b[0]), max(a[1], b[1])
    right, bottom = min(a[2], b[2]), min(a[3], b[3])
    inter = max(0, right - left) * max(0, bottom - top)
    area_a = (a[2] - a[0]) * (a[3] - a[1])
    area_b = (b[2] - b[0]) * (b[3] - b[1])
    return inter / (area_a + area_b - inter)


class AssignTargets:
    """Collate: stack the pictures; match every anchor with the best box, as the paper says, one by one."""

    def __init__(self):
        stride = SIDE / CELLS
        self.anchors = []
        for row in range(CELLS):
            for column in range(CELLS):
                cx, cy = (column + 0.5) * stride, (row + 0.5) * stride
                for w, h in SHAPES:
                    self.anchors.append((cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2))

    def __call__(self, samples):
        with lap("collate"):
            images = torch.stack([torch.from_numpy(canvas) for canvas, _ in samples])
            scores = torch.zeros(len(samples), len(self.anchors))
            offsets = torch.zeros(len(samples), len(self.anchors), 4)
            for number, (_, boxes) in enumerate(samples):
                for place, anchor in enumerate(self.anchors):
                    best, match = 0.0, None
                    for box in boxes:
                        overlap = iou(anchor, box)
                        if overlap > best:
                            best, match = overlap, box
                    if best > 0.5:
                        scores[number, place] = 1
                        offsets[number, place] = torch.tensor([(m - a) / 16 for m, a in zip(match, anchor)])
            return images.permute(0, 3, 1, 2), scores, offsets


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        layers, width = [], 3
        for out in (16, 32, 48):
            layers += [nn.Conv2d(width, out, 3, 2, 1), nn.BatchNorm2d(out), nn.ReLU()]
            width = out
        self.body = nn.Sequential(*layers)
        self.head = nn.Conv2d(width, 5 * len(SHAPES), 1)

    def forward(self, x):
        y = self.head(self.body(x)).permute(0, 2, 3, 1)
        y = y.reshape(len(x), -1, 5)
        return y[..., 0], y[..., 1:]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/detect_collate"))
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    files = sorted((args.data / "photos").glob("*/*.JPEG"))[::8]
    loader = DataLoader(
        PastedObjects(files, 1600),
        batch_size=8,
        shuffle=True,
        num_workers=args.workers,
        collate_fn=AssignTargets(),
        persistent_workers=True,
    )
    model = Detector()
    optimizer = torch.optim.SGD(model.parameters(), 0.02, momentum=0.9)
    for epoch in range(args.epochs):
        seen, total = 0, 0.0
        for images, scores, offsets in timed(loader, "wait"):
            with lap("compute"):
                logits, moves = model(images.float() / 255)
                positive = scores > 0
                loss = nn.functional.binary_cross_entropy_with_logits(logits, scores)
                loss = loss + 0.2 * nn.functional.smooth_l1_loss(
                    moves[positive], offsets[positive], reduction="sum"
                ) / positive.sum().clamp(min=1)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
            with lap("own"):
                seen += len(images)
                total += loss.item() * len(images)
        print(f"epoch {epoch + 1} loss {total / seen:.4f}", flush=True)
        torch.save(model, args.out / "detector.pt")


if __name__ == "__main__":
    main()
