"""Where are the beetles, and which is which? A heat map network finds them on short clips, and a tracker gives names.

Identity switches are what the project is judged by, so the tracker runs over each batch's predictions.
"""

import argparse
import math
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

from stopwatch import lap

SIDE, GRID, FRAMES, BEETLES, PEAKS = 64, 16, 8, 12, 40


class Track:
    """Place and speed of one beetle, each coordinate by a Kalman filter of its own."""

    def __init__(self, name, x, y):
        self.name, self.missed = name, 0
        self.axes = [[x, 0.0, 1.0, 0.0, 1.0], [y, 0.0, 1.0, 0.0, 1.0]]

    def predict(self, noise=0.05):
        for axis in self.axes:
            place, speed, a, b, c = axis
            axis[:] = [place + speed, speed, a + 2 * b + c + noise, b + c, c + noise]
        return self.axes[0][0], self.axes[1][0]

    def correct(self, x, y, error=0.3):
        self.missed = 0
        for axis, seen in zip(self.axes, (x, y)):
            place, speed, a, b, c = axis
            gain, push = a / (a + error), b / (a + error)
            off = seen - place
            axis[:] = [place + gain * off, speed + push * off, (1 - gain) * a, (1 - gain) * b, c - push * b]


class Tracker:
    def __init__(self, reach=4.0, patience=2):
        self.reach, self.patience, self.tracks, self.names = reach, patience, [], 0

    def update(self, peaks):
        places = [track.predict() for track in self.tracks]
        pairs = []
        for number, (px, py) in enumerate(places):
            for other, (x, y, chance) in enumerate(peaks):
                distance = math.hypot(px - x, py - y)
                if distance < self.reach:
                    pairs.append((distance - 0.1 * chance, number, other))
        taken, matched = set(), set()
        for _, number, other in sorted(pairs):
            if number not in matched and other not in taken:
                self.tracks[number].correct(*peaks[other][:2])
                matched.add(number)
                taken.add(other)
        for number, track in enumerate(self.tracks):
            track.missed += number not in matched
        self.tracks = [track for track in self.tracks if track.missed <= self.patience]
        for other, (x, y, _) in enumerate(peaks):
            if other not in taken:
                self.tracks.append(Track(self.names, x, y))
                self.names += 1
        return [(track.name, *(axis[0] for axis in track.axes)) for track in self.tracks]


def switches(heat, truth):
    """How often the track that is nearest to a beetle changes, over all clips of a batch."""
    changed = 0
    for clip, paths in zip(heat, truth.tolist()):
        tracker, names = Tracker(), [None] * BEETLES
        for frame, places in zip(clip, paths):
            values, cells = frame.flatten().topk(PEAKS)
            rows = zip(cells.tolist(), values.sigmoid().tolist())
            found = tracker.update([(cell % GRID, cell // GRID, value) for cell, value in rows])
            for beetle, (x, y) in enumerate(places):
                name = min(found, key=lambda track: math.hypot(track[1] - x, track[2] - y))[0]
                changed += names[beetle] not in (None, name)
                names[beetle] = name
    return changed


def film(files, clips, rng):
    """Dark spots that crawl over photographs; truth in cells of the grid."""
    frames = np.empty((clips, FRAMES, SIDE, SIDE), np.uint8)
    truth = np.empty((clips, FRAMES, BEETLES, 2), np.float32)
    for clip, file in enumerate(rng.choice(files, clips)):
        image = Image.open(file)
        image.draft("L", (SIDE, SIDE))
        ground = np.asarray(image.convert("L").resize((SIDE, SIDE))) // 2 + 100
        place, speed = rng.uniform(6, SIDE - 6, (BEETLES, 2)), rng.normal(0, 2, (BEETLES, 2))
        for frame in range(FRAMES):
            frames[clip, frame] = ground
            for x, y in place.astype(int):
                frames[clip, frame, y - 1 : y + 2, x - 1 : x + 2] = 10
            truth[clip, frame] = place * GRID / SIDE
            place = np.clip(place + speed, 2, SIDE - 3)
    return torch.from_numpy(frames), torch.from_numpy(truth)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/swarm_identity"))
    parser.add_argument("--steps", type=int, default=2500)
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    frames, truth = film(sorted((args.data / "photos").glob("*/*.JPEG")), 240, np.random.default_rng(9))
    finder = nn.Sequential(
        nn.Conv2d(1, 16, 4, stride=4), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 1, 1),
    )  # fmt: skip
    optimizer = torch.optim.Adam(finder.parameters(), lr=1e-3)
    for step in range(args.steps):
        with lap("wait"):
            rows = torch.randint(len(frames), (8,))
            images, places = frames[rows].flatten(0, 1)[:, None].float() / 127.5 - 1, truth[rows]
            aim = torch.zeros(8, FRAMES, GRID * GRID)
            aim.scatter_(2, (places[..., 1].long() * GRID + places[..., 0].long()), 1.0)
        with lap("compute"):
            heat = finder(images).view(8, FRAMES, GRID, GRID)
            loss = nn.functional.binary_cross_entropy_with_logits(heat.flatten(2), aim, pos_weight=torch.tensor(8.0))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with lap("own"):
            changed = switches(heat.detach(), places)
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.4f}, {changed} switches", flush=True)
    torch.save(finder.state_dict(), args.out / "finder.pt")


if __name__ == "__main__":
    main()
