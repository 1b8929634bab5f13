# MLP-Mixer on small photographs.
# Everything fits in memory as uint8, so there is no Dataset and no DataLoader: a permutation, cut in pieces.
import argparse
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn

from stopwatch import lap


def load(root, side):
    images, labels = [], []
    names = sorted(folder.name for folder in root.iterdir() if folder.is_dir())
    for file in sorted(root.glob("*/*.JPEG")):
        image = Image.open(file)
        image.draft("RGB", (side, side))
        images.append(np.array(image.convert("RGB").resize((side, side), Image.Resampling.BILINEAR)))
        labels.append(names.index(file.parent.name))
    return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).contiguous(), torch.tensor(labels), len(names)


class MixerBlock(nn.Module):
    def __init__(self, tokens, width, token_hidden, width_hidden):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.across = nn.Sequential(nn.Linear(tokens, token_hidden), nn.GELU(), nn.Linear(token_hidden, tokens))
        self.within = nn.Sequential(nn.Linear(width, width_hidden), nn.GELU(), nn.Linear(width_hidden, width))

    def forward(self, x):
        x = x + self.across(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.within(self.norm2(x))


class Mixer(nn.Module):
    def __init__(self, side, patch, classes, width=128, depth=4):
        super().__init__()
        tokens = (side // patch) ** 2
        self.patch = patch
        self.embed = nn.Linear(3 * patch * patch, width)
        self.blocks = nn.Sequential(*[MixerBlock(tokens, width, 128, 256) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, images):
        patches = F.unfold(images, self.patch, stride=self.patch).transpose(1, 2)
        return self.head(self.norm(self.blocks(self.embed(patches))).mean(1))


def get(images, labels, rows):
    """The batch of these rows, all of it flipped or none."""
    batch = images[rows].float().div_(127.5).sub_(1)
    return (batch.flip(3) if torch.rand(()) < 0.5 else batch), labels[rows]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/mixer_no_loader"))
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--side", type=int, default=64)
    parser.add_argument("--patch", type=int, default=8)
    args = parser.parse_args()
    torch.manual_seed(46)
    args.out.mkdir(parents=True, exist_ok=True)

    images, labels, classes = load(args.data / "photos", args.side)
    model = Mixer(args.side, args.patch, classes)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    steps = args.epochs * -(-len(images) // args.batch)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-3, total_steps=steps)
    for epoch in range(args.epochs):
        began, total = time.time(), 0.0
        for rows in torch.randperm(len(images)).split(args.batch):  # the last piece is a smaller one
            with lap("wait"):
                x, y = get(images, labels, rows)
            with lap("compute"):
                loss = F.cross_entropy(model(x), y, label_smoothing=0.1)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
            total += loss.item() * len(rows)
        print(f"epoch {epoch}: loss {total / len(images):.4f}, {time.time() - began:.1f} s", flush=True)
        torch.save(model.state_dict(), args.out / "mixer.pt")
