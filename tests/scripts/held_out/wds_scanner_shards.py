"""WebDataset over two sources, one kind of shard each: prints from a flatbed scanner and pictures from phones."""

import argparse
import io
import itertools
from pathlib import Path

import numpy as np
import torch
import webdataset as wds
from PIL import Image
from stopwatch import lap, timed
from torch import nn

SOURCES = {"phone": (400, 300), "scan": (2200, 1650)}


def pack(photos, folder, each=36):
    """Shards 00-phone, 01-scan, 02-phone, 03-scan, as the two archives came in."""
    folder.mkdir(parents=True, exist_ok=True)
    labels = {name: n for n, name in enumerate(sorted({file.parent.name for file in photos}))}
    names = []
    for number, source in enumerate(["phone", "scan", "phone", "scan"]):
        names.append(str(folder / f"{number:02d}-{source}.tar"))
        with wds.TarWriter(names[-1]) as tar:
            for k in range(each):
                file = photos[(number // 2 * each + k * 7) % len(photos)]
                buffer = io.BytesIO()
                with Image.open(file) as image:
                    image.convert("RGB").resize(SOURCES[source]).save(buffer, "JPEG", quality=92)
                key = f"{number:02d}{k:05d}"
                tar.write({"__key__": key, "jpg": buffer.getvalue(), "cls": labels[file.parent.name]})
    return names, len(labels)


def prepare(sample):
    blob, label = sample
    with lap("decode"):
        image = Image.open(io.BytesIO(blob)).convert("RGB")
    with lap("transform"):
        left = np.random.randint(0, image.width // 4)
        top = np.random.randint(0, image.height // 4)
        box = (left, top, left + image.width * 3 // 4, top + image.height * 3 // 4)
        image = image.resize((72, 72), Image.Resampling.NEAREST, box=box)
        pixels = np.asarray(image).transpose(2, 0, 1).astype(np.float32)
        return torch.from_numpy(pixels / 255 - 0.5), int(label)


def stack(samples):
    images, labels = zip(*samples)
    return torch.stack(images), torch.tensor(labels)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch", type=int, default=12)
    parser.add_argument("--out", type=Path, default=Path("runs/wds_scanner_shards"))
    args = parser.parse_args()

    torch.set_num_threads(1)
    photos = sorted((args.data / "photos").glob("*/*.[jJ]*"))
    shards, classes = pack(photos, args.out / "shards")
    dataset = (
        wds.WebDataset(shards, shardshuffle=False, workersplitter=wds.split_by_worker)
        .repeat()
        .shuffle(20)
        .to_tuple("jpg", "cls")
        .map(prepare)
        .batched(args.batch, collation_fn=stack, partial=False)
    )
    loader = wds.WebLoader(dataset, batch_size=None, num_workers=2, prefetch_factor=2)

    model = nn.Sequential(
        nn.Conv2d(3, 24, 3, stride=2),
        nn.SiLU(),
        nn.Conv2d(24, 24, 3, stride=2),
        nn.SiLU(),
        nn.AdaptiveAvgPool2d(3),
        nn.Flatten(),
        nn.Linear(24 * 9, classes),
    )
    optimizer = torch.optim.RMSprop(model.parameters(), lr=5e-4)
    smooth = 0.0
    for step, (images, labels) in enumerate(timed(itertools.islice(loader, args.steps), "wait"), 1):
        with lap("compute"):
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        smooth += (loss.item() - smooth) / min(step, 50)
        if step % 20 == 0:
            print(f"step {step} loss {smooth:.3f}", flush=True)
    torch.save(model.state_dict(), args.out / "model.pt")


if __name__ == "__main__":
    main()
