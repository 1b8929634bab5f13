"""Pictures and captions from a Hugging Face dataset, two towers, and the pairwise sigmoid loss of SigLIP. Captions are made
from the class and from what the photograph looks like."""

import argparse
import zlib
from pathlib import Path

import torch
from datasets import Dataset, Image
from PIL import ImageStat
from torch import nn
from torch.utils.data import DataLoader
from torchvision.transforms import v2

from stopwatch import lap, timed

WORDS = 512


def caption(image, kind):
    red, green, blue = ImageStat.Stat(image.resize((16, 16))).mean
    light = "dark" if red + green + blue < 300 else "bright"
    tint = max(("red", red), ("green", green), ("blue", blue), key=lambda pair: pair[1])[0]
    shape = "wide" if image.width > image.height else "tall"
    return f"a {light} {shape} photo of {kind} , rather {tint}"


class Prepare:
    def __init__(self, side, length=12):
        self.length = length
        self.transform = v2.Compose([
            v2.RandomResizedCrop(side, scale=(0.5, 1.0), antialias=True), v2.RandomHorizontalFlip(),
            v2.ColorJitter(0.2, 0.2), v2.PILToTensor(),
        ])  # fmt: skip

    def tokens(self, text):
        words = [1 + zlib.crc32(word.encode()) % (WORDS - 1) for word in text.split()][: self.length]
        return torch.tensor(words + [0] * (self.length - len(words)))

    def __call__(self, rows):
        images = [image.convert("RGB") for image in rows["image"]]
        captions = [caption(image, kind) for image, kind in zip(images, rows["kind"])]
        return {
            "image": [self.transform(image) for image in images],
            "tokens": [self.tokens(text) for text in captions],
        }


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.mix = nn.Conv2d(width, width, 5, padding=2, groups=width)
        self.norm = nn.BatchNorm2d(width)
        self.grow, self.shrink = nn.Conv2d(width, 4 * width, 1), nn.Conv2d(4 * width, width, 1)

    def forward(self, x):
        return x + self.shrink(nn.functional.gelu(self.grow(self.norm(self.mix(x)))))


class Towers(nn.Module):
    def __init__(self, width=96, depth=6, out=64):
        super().__init__()
        self.picture = nn.Sequential(
            nn.Conv2d(3, width, 4, stride=4), *(Block(width) for _ in range(depth)),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, out),
        )  # fmt: skip
        self.words = nn.Embedding(WORDS, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
        self.text = nn.TransformerEncoder(layer, 2)
        self.out = nn.Linear(width, out)
        self.scale, self.bias = nn.Parameter(torch.tensor(2.3)), nn.Parameter(torch.tensor(-10.0))

    def forward(self, images, tokens):
        pictures = nn.functional.normalize(self.picture(images.float() / 127.5 - 1))
        texts = nn.functional.normalize(self.out(self.text(self.words(tokens)).mean(1)))
        return pictures @ texts.T * self.scale.exp() + self.bias


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/arrow_sigmoid_pairs"))
    parser.add_argument("--epochs", type=int, default=40)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    files = sorted((args.data / "photos").glob("*/*.JPEG"))
    kinds = [file.parent.name for file in files]
    pairs = Dataset.from_dict({"image": [str(file) for file in files], "kind": kinds}).cast_column("image", Image())
    pairs = pairs.with_transform(Prepare(side=64))
    loader = DataLoader(
        pairs, 12, shuffle=True, num_workers=1, prefetch_factor=4, persistent_workers=True, drop_last=True
    )
    model = Towers()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95))
    target = 2 * torch.eye(12) - 1
    for epoch in range(args.epochs):
        for step, batch in enumerate(timed(loader, "wait")):
            with lap("compute"):
                scores = model(batch["image"], batch["tokens"])
                loss = -nn.functional.logsigmoid(target * scores).sum(1).mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
            with lap("own"):
                hits = (scores.argmax(1) == torch.arange(12)).float().mean().item()
                with open(args.out / "steps.txt", "a") as file:
                    print(epoch, step, f"{loss.item():.4f} {hits:.3f} {model.scale.exp().item():.2f}", file=file)
        print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
        torch.save(model.state_dict(), args.out / "towers.pt")


if __name__ == "__main__":
    main()
