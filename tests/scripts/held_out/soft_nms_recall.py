"""A detector without anchors on pasted photographs; how many boxes it finds after Soft-NMS is watched at each step."""

import argparse
import math
import random
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from stopwatch import lap, timed

SIDE, STRIDE, MOST = 96, 8, 4
CELLS = SIDE // STRIDE


def paste(root: Path, count: int, seed=53):
    """Pictures with one to MOST small photographs on a dark, blurred one; boxes are x0, y0, x1, y1 in pixels."""
    rng = random.Random(seed)
    files = sorted(root.glob("*/*.JPEG"))
    photos = []
    for file in rng.sample(files, min(120, len(files))):
        image = Image.open(file)
        image.draft("RGB", (SIDE, SIDE))
        photos.append(image.convert("RGB").resize((SIDE, SIDE)))
    images, boxes, counts = [], torch.zeros(count, MOST, 4), torch.zeros(count, dtype=torch.long)
    for number in range(count):
        ground = rng.choice(photos).resize((8, 8)).resize((SIDE, SIDE)).point(lambda value: value // 3)
        counts[number] = rng.randint(1, MOST)
        for place in range(int(counts[number])):
            width, height = rng.randint(16, 40), rng.randint(16, 40)
            x, y = rng.randint(0, SIDE - width), rng.randint(0, SIDE - height)
            ground.paste(rng.choice(photos).resize((width, height)), (x, y))
            boxes[number, place] = torch.tensor([x, y, x + width, y + height])
        images.append(np.array(ground))
    images = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).contiguous()
    return TensorDataset(images, boxes, counts)


class Detector(nn.Module):
    """For each cell: is the centre of a box here, and how far it is to the four edges."""

    def __init__(self):
        super().__init__()
        layers, channels = [], 3
        for width, stride in ((16, 2), (32, 2), (48, 2), (48, 1)):
            layers += [nn.Conv2d(channels, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(True)]
            channels = width
        self.body = nn.Sequential(*layers)
        self.heat, self.edges = nn.Conv2d(channels, 1, 1), nn.Conv2d(channels, 4, 1)
        nn.init.constant_(self.heat.bias, -3.0)
        centres = (torch.arange(CELLS) + 0.5) * STRIDE
        y, x = torch.meshgrid(centres, centres, indexing="ij")
        self.register_buffer("centres", torch.stack([x, y, x, y]))

    def forward(self, images):
        features = self.body(images.float() / 127.5 - 1)
        distances = nn.functional.softplus(self.edges(features)) * STRIDE
        signs = torch.tensor([-1.0, -1.0, 1.0, 1.0]).view(4, 1, 1)
        return self.heat(features)[:, 0], self.centres + signs * distances


def detection_loss(heat, guesses, boxes, counts):
    target, places, wanted = torch.zeros_like(heat), [], []
    for number, count in enumerate(counts.tolist()):
        for box in boxes[number, :count]:
            column = int((box[0] + box[2]) / 2 / STRIDE)
            row = int((box[1] + box[3]) / 2 / STRIDE)
            target[number, row, column] = 1.0
            places.append((number, row, column))
            wanted.append(box)
    numbers, rows, columns = torch.tensor(places).T
    found = guesses[numbers, :, rows, columns]
    heat_loss = nn.functional.binary_cross_entropy_with_logits(heat, target, pos_weight=torch.tensor(10.0))
    return heat_loss + nn.functional.smooth_l1_loss(found / STRIDE, torch.stack(wanted) / STRIDE)


def overlap(a, b):
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    if width <= 0 or height <= 0:
        return 0.0
    both = width * height
    return both / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - both)


def soft_nms(boxes, scores, sigma=0.5):
    """Bodla et al. (2017): the best box is taken, the scores of all others are lowered by their overlap with it."""
    left = [[score, box] for box, score in zip(boxes, scores, strict=True)]
    taken = []
    while left:
        best = max(range(len(left)), key=lambda place: left[place][0])
        score, box = left.pop(best)
        taken.append((score, box))
        for candidate in left:
            candidate[0] *= math.exp(-(overlap(box, candidate[1]) ** 2) / sigma)
    return taken


def recall(heat, guesses, boxes, counts, top=10, least=0.5):
    """The share of true boxes that one of the first `top` detections meets."""
    met = total = 0
    scores = heat.sigmoid().flatten(1).tolist()
    guesses = guesses.flatten(2).transpose(1, 2).tolist()
    for number, count in enumerate(counts.tolist()):
        taken = sorted(soft_nms(guesses[number], scores[number]), reverse=True)[:top]
        for box in boxes[number, :count].tolist():
            met += any(overlap(box, guess) >= least for _, guess in taken)
        total += count
    return met / total


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/soft_nms_recall"))
    parser.add_argument("--epochs", type=int, default=25)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--pictures", type=int, default=800)
    args = parser.parse_args()
    torch.manual_seed(53)
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)

    loader = DataLoader(paste(args.data / "photos", args.pictures), args.batch_size, shuffle=True, drop_last=True)
    model = Detector()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        found = []
        for step, (images, boxes, counts) in enumerate(timed(loader, "wait")):
            with lap("compute"):
                heat, guesses = model(images)
                loss = detection_loss(heat, guesses, boxes, counts)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            with lap("own"):
                found.append(recall(heat.detach(), guesses.detach(), boxes, counts))
            if step % 20 == 0:
                print(f"epoch {epoch} step {step}: loss {loss.item():.4f}, recall {found[-1]:.1%}", flush=True)
        print(f"epoch {epoch}: mean recall {np.mean(found):.1%}", flush=True)
        torch.save(model.state_dict(), args.out / "detector.pt")


if __name__ == "__main__":
    main()
