"""WebDataset: capsules with routing by agreement (Sabour and others) on two letters laid over each other; both have to
be named and drawn again. Letters are bitmaps in the shards, the overlay is made as they are read."""

import argparse
import json
import random
from collections import Counter
from pathlib import Path

import numpy as np
import torch
import webdataset as wds
from PIL import Image, ImageDraw, ImageFilter
from torch import nn

from stopwatch import lap, timed

LETTERS, SIDE = "ABCDEFGHKLMR", 28


def bitmap(letter, rng):
    small, slant = Image.new("L", (8, 12)), rng.uniform(-0.3, 0.3)
    ImageDraw.Draw(small).text((1, 0), letter, fill=255)
    large = small.resize((SIDE, SIDE), Image.Resampling.BICUBIC)
    large = large.transform((SIDE, SIDE), Image.Transform.AFFINE, (1, slant, -14 * slant, 0, 1, 0))
    return large.rotate(rng.uniform(-15, 15)).filter(ImageFilter.GaussianBlur(0.5))


def write(folder, count, seed=3):
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(seed)
    with wds.ShardWriter(str(folder / "letters-%02d.tar"), maxcount=300, verbose=0) as sink:
        for number in range(count):
            letter = rng.choice(LETTERS)
            sink.write(
                {"__key__": f"{number:05d}", "png": bitmap(letter, rng), "json": {"letter": letter, "hand": 7}}
            )


def shifted(image, reach=4):
    out = Image.new("L", image.size)
    out.paste(image, (random.randint(-reach, reach), random.randint(-reach, reach)))
    return np.asarray(out, np.float32) / 255


def overlay(samples):
    earlier = []
    for image, note in samples:
        label = LETTERS.index(note["letter"])
        others = [item for item in earlier if item[1] != label]
        if others:
            other, second = random.choice(others)
            pair = np.stack([shifted(image), shifted(other)])
            yield torch.from_numpy(pair.max(0)[None]), torch.from_numpy(pair), torch.tensor([label, second])
        earlier.append((image, label))
        del earlier[:-50]


def squash(x):
    size = (x**2).sum(-1, keepdim=True)
    return x * size / (1 + size) / (size + 1e-8).sqrt()


class Capsules(nn.Module):
    def __init__(self, width=96, kinds=8, rounds=3):
        super().__init__()
        self.rounds = rounds
        self.conv = nn.Conv2d(1, width, 9)
        self.primary = nn.Conv2d(width, kinds * 8, 9, stride=2)
        self.weights = nn.Parameter(0.05 * torch.randn(kinds * 36, len(LETTERS), 12, 8))
        self.draw = nn.Sequential(
            nn.Linear(12 * len(LETTERS), 256), nn.ReLU(), nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, SIDE**2)
        )

    def forward(self, images):
        first = self.primary(self.conv(images).relu()).view(len(images), -1, 8, 36).transpose(2, 3)
        votes = torch.einsum("bid,ijcd->bijc", squash(first.reshape(len(images), -1, 8)), self.weights)
        logits = torch.zeros(votes.shape[:3])
        for turn in range(self.rounds):
            shares = logits.softmax(2)
            outputs = squash((shares[..., None] * votes).sum(1))
            if turn < self.rounds - 1:
                logits = logits + (votes * outputs[:, None]).sum(-1)
        return outputs

    def drawn(self, outputs, labels):
        mask = nn.functional.one_hot(labels, len(LETTERS))[..., None]
        return self.draw((outputs * mask).flatten(1)).view(-1, SIDE, SIDE)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", help="not used: the letters are drawn")
    parser.add_argument("--out", type=Path, default=Path("runs/wds_capsule_routing"))
    parser.add_argument("--steps", type=int, default=10_000)
    args = parser.parse_args()
    torch.set_num_threads(1)
    write(args.out / "shards", 2400)
    shards = sorted(str(path) for path in (args.out / "shards").glob("*.tar"))
    stream = wds.WebDataset(shards, shardshuffle=len(shards), nodesplitter=None, empty_check=False).repeat()
    stream = stream.decode("pil").to_tuple("png", "json").shuffle(300, initial=100).compose(overlay)
    loader = wds.WebLoader(stream, batch_size=24, num_workers=1)
    model = Capsules()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    confused = Counter()
    for step, (images, pairs, labels) in enumerate(timed(loader, "wait"), 1):
        with lap("compute"):
            outputs = model(images)
            lengths = outputs.norm(dim=2)
            present = torch.zeros_like(lengths).scatter_(1, labels, 1.0)
            margin = present * (0.9 - lengths).relu() ** 2 + 0.5 * (1 - present) * (lengths - 0.1).relu() ** 2
            again = sum(((model.drawn(outputs, labels[:, k]) - pairs[:, k]) ** 2).mean() for k in (0, 1))
            loss = margin.sum(1).mean() + 0.4 * again
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with lap("own"):
            for truth, guess in zip(labels.tolist(), lengths.topk(2).indices.tolist()):
                for missed in set(truth) - set(guess):
                    confused.update(LETTERS[missed] + LETTERS[other] for other in set(guess) - set(truth))
            with (args.out / "confused.json").open("w") as file:
                json.dump({"step": step, "loss": loss.item(), "pairs": confused.most_common(40)}, file)
            if step % 20 == 0:
                print(f"step {step}: margin {margin.sum(1).mean().item():.4f}, again {again.item():.4f}", flush=True)
            if step % 500 == 0:
                torch.save(model.state_dict(), args.out / "capsules.pt")
        if step == args.steps:
            break


if __name__ == "__main__":
    main()
