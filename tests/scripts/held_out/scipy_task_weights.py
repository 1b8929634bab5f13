"""Five tasks on one trunk, their weights bargained at each step (Nash): the gradients at the shared features give a matrix
of agreements, and the weights w solve  A w = 1 / w."""

import argparse
import random
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageFilter, ImageStat
from scipy.optimize import LinearConstraint, minimize
from torch import nn
from torch.nn import functional as F

from stopwatch import lap, timed

TASKS = {"kind": 10, "colour": 3, "contrast": 1, "sharpness": 1, "upside": 2}


def measure(photo):
    grey = photo.convert("L")
    edges = ImageStat.Stat(grey.filter(ImageFilter.FIND_EDGES)).mean[0]
    return ImageStat.Stat(photo).mean, ImageStat.Stat(grey).stddev, [edges]


def load(root, count, side):
    files = sorted(root.glob("*/*.JPEG"))
    names = sorted({file.parent.name for file in files})
    images, targets = [], []
    for file in random.sample(files, count):
        with Image.open(file) as photo:
            photo.draft("RGB", (side, side))
            photo = photo.convert("RGB").resize((side, side))
        images.append(torch.from_numpy(np.array(photo)).permute(2, 0, 1))
        targets.append([names.index(file.parent.name)] + [value / 64 for part in measure(photo) for value in part])
    return torch.stack(images), torch.tensor(targets)


def batches(images, targets, size):
    while True:
        rows = torch.randint(len(images), (size,))
        turned = torch.rand(size) < 0.5
        pixels = images[rows].float().div_(255)
        pixels[turned] = pixels[turned].flip(2)
        yield pixels, targets[rows], turned.long()


class FiveHeads(nn.Module):
    def __init__(self, width=24, features=96):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(3, width, 3, stride=2, padding=1), nn.ReLU(),
            nn.Conv2d(width, width * 2, 3, stride=2, padding=1), nn.ReLU(),
            nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Linear(width * 18, features), nn.Tanh(),
        )  # fmt: skip
        self.heads = nn.ModuleDict({task: nn.Linear(features, size) for task, size in TASKS.items()})

    def losses(self, features, targets, turned):
        out = {task: head(features) for task, head in self.heads.items()}
        return [
            F.cross_entropy(out["kind"], targets[:, 0].long()),
            F.mse_loss(out["colour"], targets[:, 1:4]),
            F.mse_loss(out["contrast"], targets[:, 4:5]),
            F.mse_loss(out["sharpness"], targets[:, 5:6]),
            F.cross_entropy(out["upside"], turned),
        ]


class Bargain:
    """Weights by trust region, from the last ones and from a few other places, as the problem is not convex."""

    def __init__(self, tasks, starts=2):
        self.weights, self.starts = np.ones(tasks), starts
        self.positive = LinearConstraint(np.eye(tasks), 1e-3, 20.0)

    @staticmethod
    def disagreement(weights, matrix):
        weights = np.maximum(weights, 1e-6)
        return float(np.square(np.log(weights) + np.log(np.maximum(matrix @ weights, 1e-6))).sum())

    def solve(self, matrix):
        tries = [self.weights, *(np.random.uniform(0.5, 2, len(matrix)) for _ in range(self.starts))]
        results = [
            minimize(
                self.disagreement,
                start,
                (matrix,),
                "trust-constr",
                constraints=self.positive,
                options={"maxiter": 12},
            )
            for start in tries
        ]
        self.weights = min(results, key=lambda result: result.fun).x
        return self.weights / self.weights.mean()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/scipy_task_weights"))
    parser.add_argument("--steps", type=int, default=20_000)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    random.seed(31)
    torch.manual_seed(31)
    model = FiveHeads()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    bargain = Bargain(len(TASKS))
    source = batches(*load(args.data / "photos", count=700, side=48), size=48)
    for step, (pixels, targets, turned) in zip(range(1, args.steps + 1), timed(source, "wait")):
        with lap("compute"):
            features = model.trunk(pixels)
            losses = model.losses(features, targets, turned)
            each = [torch.autograd.grad(loss, features, retain_graph=True)[0].flatten() for loss in losses]
            gradients = torch.stack(each)
            matrix = gradients @ gradients.T
            matrix = (matrix / matrix.trace() * len(each)).double().numpy()
        with lap("own"):
            weights = bargain.solve(matrix)
        with lap("compute"):
            optimizer.zero_grad()
            sum(float(weight) * loss for weight, loss in zip(weights, losses)).backward()
            optimizer.step()
        with lap("own"):
            if step % 25 == 0:
                parts = (f"{t} {x.item():.3f} x {w:.2f}" for t, x, w in zip(TASKS, losses, weights))
                print(step, ", ".join(parts), flush=True)
            if step % 500 == 0:
                torch.save(model.state_dict(), args.out / "five_heads.pt")


if __name__ == "__main__":
    main()
