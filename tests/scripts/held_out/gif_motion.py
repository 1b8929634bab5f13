"""Which way does the camera pan? A small network sees three frames of an animated GIF and says one of four ways."""

import argparse
import random
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stopwatch import lap, timed

WAYS = ((1, 0), (-1, 0), (0, 1), (0, -1))
WINDOW, FRAMES = (240, 180), 28


def make_clips(root: Path, folder: Path, count: int):
    """Once: a window pans over a photograph, `count` times. The names hold the way and a number."""
    folder.mkdir(parents=True, exist_ok=True)
    files = sorted(root.glob("*/*.JPEG"))
    for number, path in enumerate(files[:: max(1, len(files) // count)][:count]):
        way = number % len(WAYS)
        target = folder / f"{way}-{number:03d}.gif"
        if target.exists():
            continue
        photo = ImageOps.fit(Image.open(path).convert("RGB"), (500, 375))
        photo = photo.quantize(128, method=Image.Quantize.FASTOCTREE)
        dx, dy = WAYS[way][0] * 8, WAYS[way][1] * 6
        x = 14 if dx > 0 else 246 if dx < 0 else random.randrange(0, 261)
        y = 12 if dy > 0 else 183 if dy < 0 else random.randrange(0, 196)
        frames = []
        for step in range(FRAMES):
            left, top = x + dx * step, y + dy * step
            frames.append(photo.crop((left, top, left + WINDOW[0], top + WINDOW[1])))
        partial = target.with_suffix(".part")
        frames[0].save(
            partial, format="GIF", save_all=True, append_images=frames[1:], duration=60, loop=0, optimize=False
        )
        partial.rename(target)


class PannedClips(Dataset):
    def __init__(self, folder: Path, length: int, gap=4):
        self.gap, self.length = gap, length
        self.clips = []
        for path in sorted(folder.glob("*.gif")):
            with Image.open(path) as clip:
                if clip.n_frames > 3 * gap:
                    self.clips.append((path, clip.n_frames, int(path.name.split("-")[0])))

    def __len__(self):
        return self.length

    @staticmethod
    def frames(path, numbers):
        with Image.open(path) as clip:
            for number in numbers:
                clip.seek(number)
                yield np.asarray(clip.convert("L").resize((96, 72), Image.Resampling.BILINEAR))

    def __getitem__(self, index):
        path, count, way = self.clips[index % len(self.clips)]
        first = random.randrange(count - 2 * self.gap)
        with lap("decode"):
            stack = np.stack(list(self.frames(path, range(first, first + 2 * self.gap + 1, self.gap))))
        if random.random() < 0.5:  # backwards, so the other way
            stack, way = stack[::-1].copy(), way ^ 1
        return torch.from_numpy(stack), way


class MotionNet(nn.Module):
    def __init__(self, ways=len(WAYS)):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 24, 7, stride=3, padding=3),
            nn.BatchNorm2d(24),
            nn.ReLU(inplace=True),
            nn.Conv2d(24, 32, 3, stride=2, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(inplace=True),
            nn.Conv2d(32, 48, 3, stride=2, padding=1),
            nn.ReLU(inplace=True),
        )
        self.head = nn.Linear(48 * 6 * 8, ways)

    def forward(self, frames):
        return self.head(self.body(frames.float() / 127.5 - 1).flatten(1))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/gif_motion"))
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--clips", type=int, default=48)
    args = parser.parse_args()
    random.seed(21)
    torch.manual_seed(21)
    torch.set_num_threads(1)

    make_clips(args.data / "photos", args.out / "clips", args.clips)
    clips = PannedClips(args.out / "clips", length=40 * args.batch_size)
    loader = DataLoader(
        clips,
        batch_size=args.batch_size,
        shuffle=True,
        num_workers=args.workers,
        persistent_workers=args.workers > 0,
        drop_last=True,
    )
    model = MotionNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for epoch in range(args.epochs):
        right = seen = 0
        for frames, ways in timed(loader, "wait"):
            with lap("compute"):
                scores = model(frames)
                loss = nn.functional.cross_entropy(scores, ways)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            with lap("own"):
                right += int((scores.argmax(1) == ways).sum())
                seen += len(ways)
        print(f"epoch {epoch}: {right / seen:.1%} right, last loss {loss.item():.4f}", flush=True)
        torch.save(model.state_dict(), args.out / "motion.pt")


if __name__ == "__main__":
    main()
