"""Photos of both orientations: the collate function resizes and pads each with its own most common colour."""

import argparse
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from stopwatch import lap, timed
from torch import nn
from torch.utils.data import DataLoader, Dataset


class RawPhotos(Dataset):
    def __init__(self, root):
        self.files = sorted(Path(root).glob("*/*.*"))
        self.classes = sorted({f.parent.name for f in self.files})

    def __len__(self):
        return len(self.files)

    def __getitem__(self, i):
        with lap("decode"):
            image = Image.open(self.files[i])
            image.draft("RGB", (160, 160))
            image = image.convert("RGB")
        return image, self.classes.index(self.files[i].parent.name)


def background_colour(image):
    counts = Counter((r >> 4, g >> 4, b >> 4) for r, g, b in zip(*(band.tobytes() for band in image.split())))
    return tuple(16 * channel + 8 for channel in counts.most_common(1)[0][0])


def pad_batch(samples, side=128):
    with lap("collate"):
        batch = np.empty((len(samples), side, side, 3), np.uint8)
        for k, (image, _) in enumerate(samples):
            scale = side / max(image.size)
            small = image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.LANCZOS)
            canvas = Image.new("RGB", (side, side), background_colour(small))
            canvas.paste(small, ((side - small.width) // 2, (side - small.height) // 2))
            batch[k] = np.asarray(canvas)
        images = torch.from_numpy(batch).permute(0, 3, 1, 2).float().div(255)
        return images, torch.tensor([label for _, label in samples])


def main(args):
    torch.set_num_threads(1)
    dataset = RawPhotos(Path(args.data) / "photos")
    loader = DataLoader(
        dataset, batch_size=32, shuffle=True, collate_fn=pad_batch, num_workers=args.workers, persistent_workers=True
    )
    model = nn.Sequential(
        nn.Conv2d(3, 16, 5, stride=4, padding=2),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, len(dataset.classes)),
    )
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(args.epochs):
        correct = 0
        for images, labels in timed(loader, "wait"):
            with lap("compute"):
                logits = model(images)
                loss = nn.functional.cross_entropy(logits, labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            correct += (logits.argmax(1) == labels).sum().item()
        print(f"epoch {epoch}: accuracy {100 * correct / len(dataset):.1f} %", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--workers", type=int, default=1)
    main(parser.parse_args())
