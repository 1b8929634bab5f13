"""Accelerate: a frozen vision transformer learns a few photographs by low-rank adapters. Photos are opened when first
needed and kept after that; no workers, since each of them would keep photographs of its own."""

import argparse
import functools
import json
import math
import time
from pathlib import Path

import numpy as np
import timm
import torch
from accelerate import Accelerator
from PIL import Image, ImageOps
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stopwatch import lap, timed


class LowRank(nn.Module):
    """A linear layer that stays as it is, and a narrow way round it."""

    def __init__(self, layer, rank=6, scale=2.0):
        super().__init__()
        self.layer, self.scale = layer, scale
        self.down = nn.Parameter(torch.randn(rank, layer.in_features) / math.sqrt(layer.in_features))
        self.up = nn.Parameter(torch.zeros(layer.out_features, rank))

    def forward(self, x):
        return self.layer(x) + self.scale * (x @ self.down.T) @ self.up.T


def with_adapters(model):
    model.requires_grad_(False)
    for block in model.blocks:
        block.attn.qkv = LowRank(block.attn.qkv)
        block.attn.proj = LowRank(block.attn.proj)
    model.head.requires_grad_(True)
    return model


@functools.cache
def prepared(file, side):
    """The whole photograph, evened out, small: costly, but once only."""
    image = Image.open(file).convert("RGB")
    image = ImageOps.autocontrast(image, cutoff=1)
    return np.asarray(ImageOps.fit(image, (side + 16, side + 16), Image.Resampling.LANCZOS))


class FewPhotos(Dataset):
    def __init__(self, files, labels, side, repeats):
        self.files, self.labels, self.side, self.repeats = files, labels, side, repeats

    def __len__(self):
        return len(self.files) * self.repeats

    def __getitem__(self, index):
        index %= len(self.files)
        pixels = prepared(self.files[index], self.side)
        top, left = np.random.randint(0, 17, 2)
        pixels = pixels[top : top + self.side, left : left + self.side]
        if np.random.random() < 0.5:
            pixels = pixels[:, ::-1]
        return torch.from_numpy(pixels.transpose(2, 0, 1).copy()), self.labels[index]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/lora_few_photos_accelerate"))
    parser.add_argument("--epochs", type=int, default=25)
    parser.add_argument("--shots", type=int, default=6)
    args = parser.parse_args()
    torch.manual_seed(1)
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    files, labels = [], []
    for label, folder in enumerate(sorted((args.data / "photos").iterdir())):
        files += sorted(folder.glob("*.JPEG"))[: args.shots]
        labels += [label] * (len(files) - len(labels))
    loader = DataLoader(FewPhotos(files, labels, 96, 8), batch_size=12, shuffle=True)
    accelerator = Accelerator(cpu=True)
    model = with_adapters(timm.create_model("vit_tiny_patch16_224", img_size=96, depth=6, num_classes=10))
    learn = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(learn, lr=2e-3, weight_decay=0.0)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    journal = (args.out / "journal.jsonl").open("w", buffering=1)
    for epoch in range(args.epochs):
        for images, labels in timed(loader, "wait"):
            with lap("compute"):
                logits = model(images.float() / 127.5 - 1)
                loss = nn.functional.cross_entropy(logits, labels, label_smoothing=0.05)
                accelerator.backward(loss)
                norm = accelerator.clip_grad_norm_(learn, 1.0)
                optimizer.step()
                optimizer.zero_grad()
            with lap("own"):
                each = {int(label): round(row[label].item(), 4) for row, label in zip(logits.softmax(1), labels)}
                note = {"at": time.time(), "loss": loss.item(), "norm": float(norm), "chances": each}
                journal.write(json.dumps(note, sort_keys=True) + "\n")
        accelerator.print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
        adapters = {name: tensor for name, tensor in model.state_dict().items() if "down" in name or "up" in name}
        accelerator.save(adapters, args.out / "adapters.pt")


if __name__ == "__main__":
    main()
