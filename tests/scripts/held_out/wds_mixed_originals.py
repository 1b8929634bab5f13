"""Classify photos from two archives, each with a tar shard of its own: scans as large PNGs, web copies as JPEGs.

Two shards, two workers: each worker reads one shard.
"""

import argparse
import io
import tarfile
from pathlib import Path

import torch
import webdataset as wds
from PIL import Image
from torch import nn
from torchvision import transforms

from stopwatch import lap, timed

PER_SHARD, BATCH, BATCHES_PER_WORKER = 56, 8, 28


def add(tar: tarfile.TarFile, name: str, payload: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(payload)
    tar.addfile(entry, io.BytesIO(payload))


def pack(photos: Path, folder: Path) -> list[str]:
    """Two shards of equal length, from different photos."""
    folder.mkdir(exist_ok=True)
    kinds = sorted(entry.name for entry in photos.iterdir() if entry.is_dir())
    listed = sorted(photos.glob("*/*.JPEG"))
    step = len(listed) // (2 * PER_SHARD)
    chosen = listed[:: max(step, 1)]
    shards = []
    for number, archive in enumerate(("scans", "web")):
        shard = folder / f"{archive}.tar"
        shards.append(str(shard))
        if shard.exists():
            continue
        with tarfile.open(shard, "w") as tar:
            for index, path in enumerate(chosen[number::2][:PER_SHARD]):
                image = Image.open(path).convert("RGB")
                packed = io.BytesIO()
                if archive == "scans":
                    image.resize((1100, 825), Image.BILINEAR).save(packed, "PNG", compress_level=1)
                    ending = "png"
                else:
                    image.resize((256, 192)).save(packed, "JPEG", quality=85)
                    ending = "jpg"
                key = f"{archive}{index:05d}"
                add(tar, f"{key}.{ending}", packed.getvalue())
                add(tar, f"{key}.cls", str(kinds.index(path.parent.name)).encode())
    return shards


def make_loader(shards: list[str]) -> wds.WebLoader:
    to_input = transforms.Compose(
        [
            transforms.Resize((96, 128)),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize([0.48, 0.46, 0.41], [0.25, 0.24, 0.26]),
        ]
    )
    stream = (
        wds.WebDataset(shards, shardshuffle=False)
        .shuffle(30)
        .decode("pilrgb")
        .to_tuple("png;jpg", "cls")
        .map_tuple(to_input, int)
        .batched(BATCH, partial=False)
        .with_epoch(BATCHES_PER_WORKER)
    )
    return wds.WebLoader(stream, batch_size=None, num_workers=2, persistent_workers=True)


class SmallNet(nn.Module):
    def __init__(self, kinds: int) -> None:
        super().__init__()
        layers, inputs = [], 3
        for outputs in (8, 16, 24, 32):
            layers += [nn.Conv2d(inputs, outputs, 3, stride=2, padding=1), nn.BatchNorm2d(outputs), nn.SiLU()]
            inputs = outputs
        self.features = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(inputs, kinds)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(images))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--epochs", type=int, default=2000)
    options = parser.parse_args()
    torch.manual_seed(3)
    torch.set_num_threads(1)  # the network is small, and the workers need the other core
    shards = pack(options.data / "photos", Path("shards"))
    loader = make_loader(shards)
    model = SmallNet(10)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    loss_of = nn.CrossEntropyLoss(label_smoothing=0.05)
    for epoch in range(options.epochs):
        right = seen = 0
        total = 0.0
        for images, kinds in timed(loader, "wait"):
            with lap("compute"):
                scores = model(images)
                loss = loss_of(scores, kinds)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
            with lap("own"):
                right += int((scores.argmax(1) == kinds).sum())
                seen += len(kinds)
                total += loss.item() * len(kinds)
        print(f"epoch {epoch}: loss {total / seen:.3f}, right {right / seen:.1%} of {seen}", flush=True)


if __name__ == "__main__":
    main()
