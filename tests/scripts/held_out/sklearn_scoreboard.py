"""Accumulated gradients; scikit-learn scores, with intervals, over the last samples after each small batch."""

import argparse
import csv
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from sklearn.metrics import average_precision_score, cohen_kappa_score, f1_score, roc_auc_score
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from stopwatch import lap, timed


def load(root: Path, side=64, limit=1200):
    files = sorted(root.glob("*/*.*"))
    names = sorted({path.parent.name for path in files})
    images, labels = [], []
    for path in files[:: max(1, len(files) // limit)]:
        image = Image.open(path)
        image.draft("RGB", (side, side))
        images.append(np.array(image.convert("RGB").resize((side, side))))
        labels.append(names.index(path.parent.name))
    pixels = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).contiguous()
    return TensorDataset(pixels, torch.tensor(labels)), len(names)


class Scoreboard:
    def __init__(self, classes, window=2048, resamples=40):
        self.classes, self.window, self.resamples = classes, window, resamples
        self.chances = np.zeros((0, classes), np.float32)
        self.labels = np.zeros(0, np.int64)
        self.rng = np.random.default_rng(0)

    def add(self, logits, labels):
        self.chances = np.concatenate([self.chances, logits.softmax(1).numpy()])[-self.window :]
        self.labels = np.concatenate([self.labels, labels.numpy()])[-self.window :]

    def curves(self):
        areas, precisions = [], []
        for kind in range(self.classes):
            truth = self.labels == kind
            if truth.any() and not truth.all():
                areas.append(roc_auc_score(truth, self.chances[:, kind]))
                precisions.append(average_precision_score(truth, self.chances[:, kind]))
        return {"auc": np.mean(areas), "precision": np.mean(precisions)}

    def interval(self, guesses):
        scores = []
        for _ in range(self.resamples):
            rows = self.rng.integers(len(guesses), size=len(guesses))
            scores.append(f1_score(self.labels[rows], guesses[rows], average="macro", zero_division=0))
        low, high = np.quantile(scores, (0.05, 0.95))
        return {"f1_low": low, "f1_high": high}

    def scores(self):
        guesses = self.chances.argmax(1)
        kappa = cohen_kappa_score(self.labels, guesses)
        return {"kappa": kappa, **self.curves(), **self.interval(guesses)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/sklearn_scoreboard"))
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--accumulate", type=int, default=2)
    args = parser.parse_args()
    torch.manual_seed(7)
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)

    dataset, classes = load(args.data / "photos")
    loader = DataLoader(dataset, batch_size=args.batch, shuffle=True, drop_last=True)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, 2, 1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, 2, 1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, classes),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    board = Scoreboard(classes)
    step = 0
    with (args.out / "scores.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, ["step", "loss", "kappa", "auc", "precision", "f1_low", "f1_high"])
        table.writeheader()
        for epoch in range(args.epochs):
            for images, labels in timed(loader, "wait"):
                with lap("compute"):
                    logits = model(images.float().div_(255))
                    loss = nn.functional.cross_entropy(logits, labels)
                    (loss / args.accumulate).backward()
                    step += 1
                    if step % args.accumulate == 0:
                        optimizer.step()
                        optimizer.zero_grad()
                with lap("own"):
                    board.add(logits.detach(), labels)
                    scores = board.scores()
                    table.writerow({"step": step, "loss": loss.item(), **scores})
            print(f"epoch {epoch}: loss {loss.item():.4f}, auc {scores['auc']:.3f}", flush=True)
            torch.save(model.state_dict(), args.out / "model.pt")


if __name__ == "__main__":
    main()
