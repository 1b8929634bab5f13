"""WebDataset: shards of large photographs written at the start, then WebDataset and WebLoader with epochs by count."""

import argparse
import io
import tempfile
from pathlib import Path

import torch
import webdataset as wds
from PIL import Image
from torch import nn
from torchvision import transforms

from stopwatch import lap, timed

pipeline = transforms.Compose(
    [
        transforms.Resize((112, 112)),
        transforms.RandomCrop(96),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize([0.5] * 3, [0.25] * 3),
    ]
)


def augment(image):
    with lap("transform"):
        return pipeline(image)


def identity(x):
    return x


def write_shards(photos, folder, count, per_shard=100):
    files = sorted(photos.glob("*/*.[jJ]*"))
    classes = sorted({file.parent.name for file in files})
    chosen = files[:: max(1, len(files) // count)][:count]
    with wds.ShardWriter(f"{folder}/photos-%04d.tar", maxcount=per_shard, verbose=0) as sink:
        for number, file in enumerate(chosen):
            buffer = io.BytesIO()
            Image.open(file).convert("RGB").resize((1600, 1200)).save(buffer, "JPEG", quality=92)
            sink.write({"__key__": f"{number:06d}", "jpg": buffer.getvalue(), "cls": classes.index(file.parent.name)})
    return f"{folder}/photos-{{0000..{(len(chosen) - 1) // per_shard:04d}}}.tar", classes


def make_loader(urls, batch_size, workers, steps):
    dataset = wds.WebDataset(urls, resampled=True, shardshuffle=False).shuffle(100).decode("pil")
    dataset = dataset.to_tuple("jpg", "cls").map_tuple(augment, identity).batched(batch_size, partial=False)
    return wds.WebLoader(dataset, batch_size=None, shuffle=False, num_workers=workers).with_epoch(steps)


def block(before, after):
    return nn.Sequential(
        nn.Conv2d(before, after, 3, stride=2, padding=1), nn.BatchNorm2d(after), nn.ReLU(inplace=True)
    )


def train(args, folder):
    urls, classes = write_shards(args.data / "photos", folder, count=400)
    loader = make_loader(urls, 32, args.workers, args.steps_per_epoch)
    blocks = [block(3, 8), block(8, 16), block(16, 32)]
    model = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, len(classes)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for epoch in range(args.epochs):
        for step, (images, labels) in enumerate(timed(loader, "wait")):
            with lap("compute"):
                loss = nn.functional.cross_entropy(model(images), torch.as_tensor(labels))
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
        print(f"epoch {epoch}: {step + 1} steps, loss {loss.item():.4f}", flush=True)
    args.out.mkdir(parents=True, exist_ok=True)
    torch.save(model.state_dict(), args.out / "model.pt")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--steps-per-epoch", type=int, default=80)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, default="runs/webdataset_decode")
    with tempfile.TemporaryDirectory() as shards:
        train(parser.parse_args(), shards)
