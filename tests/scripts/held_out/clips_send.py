"""Action recognition on short clips; the clips are ready in memory, float32, and the batches are lists of arrays."""

import argparse
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stopwatch import lap, timed

MOVES = ("pan right", "pan down", "zoom in", "still")


def pan(picture, side, frames, move):
    """A clip of `frames` crops along a path over the picture."""
    height, width = picture.shape[:2]
    clip = np.empty((3, frames, side, side), np.float32)
    for t in range(frames):
        s = t / (frames - 1)
        x = int(s * (width - side)) if move == 0 else (width - side) // 2
        y = int(s * (height - side)) if move == 1 else (height - side) // 2
        crop = picture[y : y + side, x : x + side]
        if move == 2:
            cut = int(s * side * 0.3)
            crop = crop[cut : side - cut, cut : side - cut]
            crop = np.asarray(Image.fromarray(crop).resize((side, side), Image.NEAREST))
        clip[:, t] = crop.transpose(2, 0, 1)
    return clip / 127.5 - 1


class Clips(Dataset):
    def __init__(self, root: Path, count=48, side=144, frames=16):
        files = sorted(root.glob("*/*.JPEG"))
        rng = np.random.default_rng(5)
        self.clips, self.moves = [], []
        for number in rng.choice(len(files), count, replace=False):
            image = Image.open(files[number])
            image.draft("RGB", (256, 256))
            picture = np.asarray(image.convert("RGB").resize((224, 192)))
            move = len(self.clips) % len(MOVES)
            self.clips.append(pan(picture, side, frames, move))
            self.moves.append(move)

    def __len__(self):
        return 40 * len(self.clips)

    def __getitem__(self, index):
        index %= len(self.clips)
        return {"clip": self.clips[index], "move": self.moves[index]}


def keep(samples):
    """No padding, no stacking: clips may have different lengths later."""
    return samples


class SlowFastish(nn.Module):
    """Looks at every fourth frame, coarsely."""

    def __init__(self, moves):
        super().__init__()
        self.net = nn.Sequential(
            nn.AvgPool3d((1, 4, 4)),
            nn.Conv3d(3, 12, (2, 3, 3), stride=(1, 2, 2)),
            nn.ReLU(),
            nn.Conv3d(12, 24, (2, 3, 3), stride=(1, 2, 2)),
            nn.ReLU(),
            nn.AdaptiveAvgPool3d(1),
            nn.Flatten(),
            nn.Linear(24, moves),
        )

    def forward(self, clips):
        return self.net(torch.stack([clip[:, ::4] for clip in clips]))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/clips_send"))
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--batch", type=int, default=16)
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)

    loader = DataLoader(
        Clips(args.data / "photos"),
        batch_size=args.batch,
        shuffle=True,
        num_workers=2,
        collate_fn=keep,
        persistent_workers=True,
    )
    model = SlowFastish(len(MOVES))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    step, epoch = 0, 0
    while step < args.steps:
        total, count = 0.0, 0
        for samples in timed(loader, "wait"):
            with lap("compute"):
                clips = [torch.from_numpy(sample["clip"]) for sample in samples]
                target = torch.tensor([sample["move"] for sample in samples])
                loss = nn.functional.cross_entropy(model(clips), target)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            with lap("own"):
                total += loss.item()
                count += 1
                step += 1
            if step >= args.steps:
                break
        epoch += 1
        print(f"epoch {epoch}, step {step}: loss {total / count:.4f}", flush=True)
        torch.save({"model": model.state_dict(), "step": step}, args.out / "clips.pt")


if __name__ == "__main__":
    main()
