"""WebDataset: shards of the photographs as they are, decoded at full size by the workers, cut to 64 x 64."""

import argparse
import json
from pathlib import Path

import torch
import webdataset as wds
from torch import nn
from torchvision import transforms

from stopwatch import lap, timed


def write_shards(root: Path, folder: Path, every=2, per_shard=120):
    """Once: tar files of JPEGs with a class number beside each."""
    folder.mkdir(parents=True, exist_ok=True)
    if list(folder.glob("*.tar")):
        return
    files = sorted(root.glob("*/*.JPEG"))[::every]
    classes = sorted({path.parent.name for path in files})
    order = torch.randperm(len(files), generator=torch.Generator().manual_seed(0)).tolist()
    with wds.ShardWriter(str(folder / "train-%03d.tar"), maxcount=per_shard, verbose=0) as sink:
        for number in order:
            path = files[number]
            sink.write(
                {
                    "__key__": f"{number:06d}",
                    "jpg": path.read_bytes(),
                    "cls": classes.index(path.parent.name),
                    "json": json.dumps({"file": path.name}).encode(),
                }
            )


def make_loader(folder: Path, batch: int, workers: int, batches: int):
    prepare = transforms.Compose(
        [
            transforms.Resize((64, 64)),
            transforms.ToTensor(),
        ]
    )
    shards = sorted(str(path) for path in folder.glob("*.tar"))
    dataset = (
        wds.WebDataset(shards, resampled=True, shardshuffle=False, nodesplitter=wds.split_by_node)
        .shuffle(100)
        .decode("pil")
        .to_tuple("jpg", "cls")
        .map_tuple(prepare, int)
        .batched(batch, partial=False)
    )
    loader = wds.WebLoader(dataset, batch_size=None, num_workers=workers, persistent_workers=True)
    return loader.with_epoch(batches)


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(width, width, 3, padding=1, groups=4), nn.BatchNorm2d(width), nn.ReLU())

    def forward(self, x):
        return x + self.body(x)


def make_model(classes=10):
    return nn.Sequential(
        nn.Conv2d(3, 16, 5, 4, 2),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 24, 3, 2, 1),
        Residual(24),
        nn.Conv2d(24, 32, 3, 2, 1),
        Residual(32),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, classes),
    )


def train_epoch(model, loader, optimizer, schedule):
    total, right, seen = 0.0, 0, 0
    for images, labels in timed(loader, "wait"):
        with lap("compute"):
            logits = model(images)
            loss = nn.functional.cross_entropy(logits, torch.as_tensor(labels))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            schedule.step()
        with lap("own"):
            total += loss.item() * len(images)
            right += (logits.argmax(1) == torch.as_tensor(labels)).sum().item()
            seen += len(images)
    return total / seen, right / seen


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/wds_decode"))
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    shards = args.out / "shards"
    write_shards(args.data / "photos", shards)
    loader = make_loader(shards, args.batch, args.workers, batches=150)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs * 150)
    for epoch in range(args.epochs):
        loss, accuracy = train_epoch(model, loader, optimizer, schedule)
        print(f"epoch {epoch}: loss {loss:.4f}, accuracy {accuracy:.3f}", flush=True)
        torch.save(model.state_dict(), args.out / "model.pt")


if __name__ == "__main__":
    main()
