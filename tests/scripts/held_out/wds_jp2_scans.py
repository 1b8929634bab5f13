"""WebDataset: scanned plates in shards. The archive gives them as JPEG 2000, and so they stayed."""

import argparse
from pathlib import Path

import cv2
import numpy as np
import torch
import webdataset as wds
from PIL import Image
from torch import nn

from stopwatch import lap, timed


def pack(photos: Path, folder: Path, shards=4, each=36, side=160):
    """Middle squares of the photographs, `shards` files of `each` samples."""
    files = sorted(photos.glob("*/*.JPEG"))
    names = sorted({file.parent.name for file in files})
    chosen = np.random.default_rng(11).permutation(len(files))[: shards * each]
    urls = []
    for number in range(shards):
        urls.append(str(folder / f"plates-{number:02d}.tar"))
        with wds.TarWriter(urls[-1]) as sink:
            for at in chosen[number * each : (number + 1) * each]:
                image = Image.open(files[at])
                image.draft("RGB", (250, 188))
                image = image.convert("RGB").resize((side, side), Image.Resampling.BOX)
                plate = cv2.imencode(".jp2", np.asarray(image)[:, :, ::-1])[1]
                label = names.index(files[at].parent.name)
                sink.write({"__key__": f"{at:05d}", "jp2": plate.tobytes(), "cls": str(label)})
    return urls, names


def open_plate(data):
    with lap("decode"):
        return cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_GRAYSCALE)


class Prepare:
    """Grey plates, a random square, perhaps turned upside down, ink made positive."""

    def __init__(self, side):
        self.side = side

    def __call__(self, sample):
        pixels = open_plate(sample["jp2"])
        with lap("transform"):
            top, left = np.random.randint(0, pixels.shape[0] - self.side, 2)
            pixels = pixels[top : top + self.side, left : left + self.side]
            if np.random.random() < 0.5:
                pixels = pixels[::-1, ::-1]
            return 1 - torch.from_numpy(pixels.astype(np.float32) / 255)[None], int(sample["cls"])


class Reader(nn.Module):
    """Convolutions whose features are weighed by a small attention before they are summed."""

    def __init__(self, classes, width=12):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(1, width, 7, stride=4, padding=3), nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, stride=2, padding=1), nn.ReLU(),
            nn.Conv2d(2 * width, 2 * width, 3, padding=1), nn.ReLU(),
        )  # fmt: skip
        self.weigh = nn.Conv2d(2 * width, 1, 1)
        self.head = nn.Linear(2 * width, classes)

    def forward(self, plates):
        features = self.stem(plates)
        weights = self.weigh(features).flatten(2).softmax(-1)
        return self.head((features.flatten(2) * weights).sum(-1))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/wds_jp2_scans"))
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batches", type=int, default=200, help="of an epoch")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--side", type=int, default=128)
    args = parser.parse_args()
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    urls, names = pack(args.data / "photos", args.out)
    print(f"{len(urls)} shards of {len(names)} kinds", flush=True)

    plates = (
        wds.WebDataset(urls, resampled=True, shardshuffle=False)
        .shuffle(40)
        .map(Prepare(args.side))
        .batched(args.batch_size, partial=False)
    )
    loader = wds.WebLoader(plates, batch_size=None, num_workers=1, persistent_workers=True)
    loader = loader.with_epoch(args.batches)
    reader = Reader(len(names))
    optimizer = torch.optim.RMSprop(reader.parameters(), lr=5e-4)
    for epoch in range(args.epochs):
        right = 0
        for images, labels in timed(loader, "wait"):
            with lap("compute"):
                logits = reader(images)
                loss = nn.functional.cross_entropy(logits, torch.as_tensor(labels))
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
            right += int((logits.argmax(1) == torch.as_tensor(labels)).sum())
        print(f"epoch {epoch}: {right / args.batches / args.batch_size:.3f} right", flush=True)
        torch.save(reader.state_dict(), args.out / "reader.pt")


if __name__ == "__main__":
    main()
