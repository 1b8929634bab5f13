"""Segment photos into bands of brightness, with the scores worked out at every step."""

import argparse
import csv
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from PIL import Image
from stopwatch import lap, timed
from torch.utils.data import DataLoader, TensorDataset

BANDS, SIZE = 6, 96  # classes, pixels a side


def load(root, limit=800):
    photos = []
    for path in sorted(root.glob("*/*.*"))[:limit]:
        image = Image.open(path)
        image.draft("RGB", (SIZE, SIZE))
        photos.append(np.asarray(image.convert("RGB").resize((SIZE, SIZE))))
    images = torch.from_numpy(np.stack(photos)).permute(0, 3, 1, 2).float() / 255
    masks = (images.mean(1) * BANDS).long().clamp(max=BANDS - 1)
    return TensorDataset(images, masks)


def segmentation_scores(predicted, target):
    """The confusion matrix and the mean intersection over union of a batch."""
    truth = target.flatten().tolist()
    guess = predicted.flatten().tolist()
    matrix = [[0] * BANDS for _ in range(BANDS)]
    for t, g in zip(truth, guess):
        matrix[t][g] += 1
    ious = []
    for band in range(BANDS):
        both = either = 0
        for t, g in zip(truth, guess):
            if t == band and g == band:
                both += 1
            if t == band or g == band:
                either += 1
        if either:
            ious.append(both / either)
    return matrix, sum(ious) / len(ious)


class Segmenter(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Conv2d(3, 8, 4, stride=4)
        self.mid = nn.Conv2d(8, 16, 3, padding=1)
        self.head = nn.Conv2d(16, BANDS, 1)

    def forward(self, x):
        y = self.head(F.relu(self.mid(F.relu(self.down(x)))))
        return F.interpolate(y, scale_factor=4)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--out", default="runs/torch_python_metrics")
    args = parser.parse_args()
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)

    loader = DataLoader(load(Path(args.data, "photos")), batch_size=32, shuffle=True)
    model = Segmenter()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    with open(out / "scores.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["epoch", "step", "loss", "accuracy", "miou"])
        for epoch in range(args.epochs):
            for step, (images, masks) in enumerate(timed(loader, "wait")):
                with lap("compute"):
                    logits = model(images)
                    loss = F.cross_entropy(logits, masks)
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    guess = logits.argmax(1)
                with lap("own"):
                    matrix, miou = segmentation_scores(guess, masks)
                    accuracy = sum(matrix[i][i] for i in range(BANDS)) / masks.numel()
                    writer.writerow([epoch, step, f"{loss.item():.4f}", f"{accuracy:.4f}", f"{miou:.4f}"])
            print(f"epoch {epoch}: loss {loss.item():.3f} accuracy {accuracy:.3f} mIoU {miou:.3f}", flush=True)


if __name__ == "__main__":
    main()
