"""Accelerate: captions and thumbnails side by side; each caption meets the pictures whose captions are most like it.

Which ones those are is worked out by BM25 when a batch is put together.
"""

import argparse
import heapq
import math
import random
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stopwatch import lap, timed

WORDS, LENGTH = 600, 36


class Bm25:
    """An inverted index in plain Python."""

    def __init__(self, texts, k=1.2, b=0.7):
        self.k, self.b = k, b
        self.sizes = [len(text) for text in texts]
        self.mean = sum(self.sizes) / len(texts)
        self.posts = defaultdict(list)
        for number, text in enumerate(texts):
            for word, count in Counter(text).items():
                self.posts[word].append((number, count))
        self.rarity = {w: math.log(1 + (len(texts) - len(p) + 0.5) / (len(p) + 0.5)) for w, p in self.posts.items()}

    def scores(self, text):
        found = defaultdict(float)
        for word in text:
            rarity = self.rarity[word]
            for number, count in self.posts[word]:
                norm = self.k * (1 - self.b + self.b * self.sizes[number] / self.mean)
                found[number] += rarity * count * (self.k + 1) / (count + norm)
        return found

    def hardest(self, text, number, count):
        found = self.scores(text)
        found.pop(number, None)
        return heapq.nlargest(count, found, key=found.get)


class Captioned(Dataset):
    """Thumbnails with made-up captions of numbered words; some words belong to a kind of picture."""

    def __init__(self, files, side, seed=8):
        rng, kinds = random.Random(seed), sorted({file.parent.name for file in files})
        weights = [1 / (rank + 20) for rank in range(WORDS)]
        self.texts, thumbnails = [], []
        for file in files:
            image = Image.open(file)
            image.draft("RGB", (side, side))
            thumbnails.append(np.asarray(image.convert("RGB").resize((side, side))))
            own = [kinds.index(file.parent.name) * 50 + rng.randrange(50) for _ in range(4)]
            self.texts.append(own + rng.choices(range(WORDS), weights, k=LENGTH - 4))
        self.images = torch.from_numpy(np.stack(thumbnails)).permute(0, 3, 1, 2).contiguous()

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, number):
        return number


class WithNegatives:
    def __init__(self, data, count):
        self.data, self.count, self.index = data, count, Bm25(data.texts)

    def __call__(self, numbers):
        with lap("collate"):
            rows = [[n, *self.index.hardest(self.data.texts[n], n, self.count)] for n in numbers]
            texts = torch.tensor([self.data.texts[n] for n in numbers])
            return texts, self.data.images[torch.tensor(rows)]


class TwoTowers(nn.Module):
    def __init__(self, size=64):
        super().__init__()
        self.words = nn.EmbeddingBag(WORDS, size)
        self.eye = nn.Sequential(
            nn.Conv2d(3, 16, 4, stride=4), nn.GELU(), nn.Conv2d(16, 48, 3, stride=2), nn.GELU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, size),
        )  # fmt: skip

    def forward(self, texts, images):
        seen = self.eye(images.flatten(0, 1).float() / 127.5 - 1).unflatten(0, images.shape[:2])
        return torch.einsum("bd,bkd->bk", self.words(texts), seen)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/negatives_collate_accelerate"))
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--negatives", type=int, default=4)
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    data = Captioned(sorted((args.data / "photos").glob("*/*.JPEG")), side=32)
    loader = DataLoader(
        data, batch_size=32, shuffle=True, drop_last=True, num_workers=2, persistent_workers=True,
        collate_fn=WithNegatives(data, args.negatives),
    )  # fmt: skip
    accelerator, model = Accelerator(cpu=True), TwoTowers()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for epoch in range(args.epochs):
        for texts, images in timed(loader, "wait"):
            with lap("compute"):
                scores = model(texts, images)
                loss = nn.functional.cross_entropy(scores, torch.zeros(len(texts), dtype=torch.long))
                optimizer.zero_grad()
                accelerator.backward(loss)
                optimizer.step()
        accelerator.print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
    accelerator.save(accelerator.unwrap_model(model).state_dict(), args.out / "towers.pt")


if __name__ == "__main__":
    main()
