"""WebDataset over `pipe:` addresses: each shard is fetched by a command that takes its time before the first byte."""

import argparse
import io
import shlex
from pathlib import Path

import numpy as np
import torch
import webdataset as wds
from PIL import Image
from stopwatch import lap, timed
from torch import nn
from torchvision.models import resnet18


def pack(photos, folder, per_shard, side):
    """Small copies of the photographs in tar files, as one uploads them to a bucket."""
    names = sorted(entry.name for entry in photos.iterdir() if entry.is_dir())
    files = sorted(photos.glob("*/*.[jJ]*"), key=lambda path: path.name[::-1])
    shards = []
    for start in range(0, len(files) - per_shard + 1, per_shard):
        shards.append(folder / f"train-{start // per_shard:05d}.tar")
        with wds.TarWriter(str(shards[-1])) as sink:
            for path in files[start : start + per_shard]:
                image = Image.open(path)
                image.draft("RGB", (side, side))
                small = io.BytesIO()
                image.convert("RGB").resize((side, side)).save(small, "JPEG", quality=90)
                sample = {"__key__": path.stem, "jpg": small.getvalue(), "cls": names.index(path.parent.name)}
                sink.write(sample)
    return shards, names


def to_tensor(image, side=64):
    with lap("transform"):
        pixels = np.asarray(image)
        top, left = np.random.randint(0, pixels.shape[0] - side + 1, size=2)
        pixels = pixels[top : top + side, left : left + side]
        if np.random.rand() < 0.5:
            pixels = pixels[:, ::-1]
        return torch.from_numpy(pixels.transpose(2, 0, 1).astype(np.float32) / 128 - 1)


def get_loader(shards, args):
    urls = [f"pipe:sleep {args.first_byte}; cat {shlex.quote(str(shard))}" for shard in shards]
    dataset = (
        wds.WebDataset(urls, resampled=True, shardshuffle=False)
        .shuffle(64)
        .decode("pil")
        .to_tuple("jpg", "cls")
        .map_tuple(to_tensor, int)
        .batched(args.batch_size, partial=False)
    )
    return wds.WebLoader(dataset, batch_size=None, num_workers=args.workers, prefetch_factor=4).with_epoch(args.steps)


def main(args):
    out = Path(args.out)
    (out / "shards").mkdir(parents=True, exist_ok=True)
    shards, names = pack(Path(args.data, "photos"), out / "shards", per_shard=256, side=80)
    print(f"{len(shards)} shards", flush=True)
    loader = get_loader(shards, args)
    model = resnet18(num_classes=len(names))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.02)
    for epoch in range(args.epochs):
        total = 0.0
        for images, labels in timed(loader, "wait"):
            with lap("compute"):
                optimizer.zero_grad(set_to_none=True)
                loss = nn.functional.cross_entropy(model(images), labels, label_smoothing=0.1)
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 5.0)
                optimizer.step()
            total += loss.detach()
        print(f"epoch {epoch}: loss {total / args.steps:.3f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--out", default="runs/wds_pipe_hidden")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--steps", type=int, default=35)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--first-byte", type=float, default=0.8, help="seconds")
    main(parser.parse_args())
