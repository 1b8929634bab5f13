"""A VQ-VAE on two Hugging Face datasets that are interleaved and shuffled: photographs and details of them, as JPEG
bytes in Arrow. They are opened and changed on the fly by with_transform; codes that nobody uses are begun anew."""

import argparse
import io
import os
import random
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np  # noqa: E402
import torch  # noqa: E402
from datasets import Dataset, Features, Image, Value, interleave_datasets  # noqa: E402
from PIL import Image as Pillow  # noqa: E402
from PIL import ImageEnhance, ImageFilter  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

from stopwatch import lap, timed  # noqa: E402

FEATURES = Features({"image": Image(), "source": Value("string")})


def small_jpegs(files, source, side=96):
    """Photographs made small, or details out of their middle."""
    rows = []
    for file in files:
        image = Pillow.open(file)
        if source == "whole":
            image.draft("RGB", (side, side))
        image = image.convert("RGB")
        if source == "detail":
            x, y = ((length - side) // 2 for length in image.size)
            image = image.crop((x, y, x + side, y + side))
        buffer = io.BytesIO()
        image.resize((side, side)).save(buffer, "JPEG", quality=92)
        rows.append({"bytes": buffer.getvalue(), "path": None})
    return Dataset.from_dict({"image": rows, "source": [source] * len(rows)}, features=FEATURES)


class Change:
    """For `with_transform`: a dict of lists comes, and a dict of lists goes."""

    def __init__(self, side):
        self.side = side

    def one(self, image):
        x, y = (random.randint(0, length - self.side) for length in image.size)
        image = image.rotate(random.uniform(-8, 8), Pillow.Resampling.BICUBIC)
        image = image.crop((x, y, x + self.side, y + self.side))
        for kind in (ImageEnhance.Color, ImageEnhance.Contrast, ImageEnhance.Sharpness):
            image = kind(image).enhance(random.uniform(0.7, 1.4))
        if random.random() < 0.3:
            image = image.filter(ImageFilter.GaussianBlur(random.uniform(0.2, 1.0)))
        return torch.from_numpy(np.array(image).transpose(2, 0, 1))

    def __call__(self, rows):
        with lap("change"):
            return {"pixels": [self.one(image) for image in rows["image"]]}


class VQVAE(nn.Module):
    def __init__(self, codes=256, width=64):
        super().__init__()
        self.book = nn.Embedding(codes, width)
        nn.init.uniform_(self.book.weight, -1 / codes, 1 / codes)
        self.encoder = nn.Sequential(
            nn.Conv2d(3, width, 4, 2, 1), nn.ReLU(), nn.Conv2d(width, width, 4, 2, 1), nn.ReLU(),
            nn.Conv2d(width, width, 3, 1, 1), nn.ReLU(), nn.Conv2d(width, width, 1),
        )  # fmt: skip
        self.decoder = nn.Sequential(
            nn.Conv2d(width, width, 3, 1, 1), nn.ReLU(), nn.ConvTranspose2d(width, width, 4, 2, 1), nn.ReLU(),
            nn.ConvTranspose2d(width, 3, 4, 2, 1),
        )  # fmt: skip

    def forward(self, images):
        found = self.encoder(images).permute(0, 2, 3, 1)
        flat = found.reshape(-1, found.shape[-1])
        codes = torch.cdist(flat, self.book.weight).argmin(1)
        nearest = self.book(codes).view_as(found)
        commit = nn.functional.mse_loss(found, nearest.detach()) + nn.functional.mse_loss(nearest, found.detach())
        passed = found + (nearest - found).detach()
        return self.decoder(passed.permute(0, 3, 1, 2)), commit, codes, flat.detach()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/arrow_interleaved_vqvae"))
    parser.add_argument("--epochs", type=int, default=20)
    args = parser.parse_args()
    torch.manual_seed(84)
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    files = sorted((args.data / "photos").glob("*/*.JPEG"))
    parts = [small_jpegs(files[::4], "whole"), small_jpegs(files[1::8], "detail")]
    mixed = interleave_datasets(parts, probabilities=[0.7, 0.3], seed=84, stopping_strategy="all_exhausted")
    mixed = mixed.shuffle(seed=84).with_transform(Change(64))
    loader = DataLoader(mixed, 16, shuffle=True, drop_last=True, num_workers=1, persistent_workers=True)
    model = VQVAE()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    used = torch.zeros(len(model.book.weight))
    for epoch in range(args.epochs):
        for batch in timed(loader, "wait"):
            with lap("compute"):
                images = batch["pixels"].float() / 127.5 - 1
                again, commit, codes, flat = model(images)
                loss = nn.functional.l1_loss(again, images) + 0.25 * commit
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            with lap("own"), torch.no_grad():
                used.mul_(0.98).add_(torch.bincount(codes, minlength=len(used)).float())
                for code in (used < 0.5).nonzero()[:8, 0].tolist():
                    model.book.weight[code] = flat[random.randrange(len(flat))]
                    used[code] = 1.0
        print(f"epoch {epoch}: loss {loss.item():.4f}, {int((used > 1).sum())} codes in use", flush=True)
        torch.save(model.state_dict(), args.out / "vqvae.pt")


if __name__ == "__main__":
    main()
