"""WebDataset: a detector of two rare kinds out of shards that hold all ten; the others are left out by a select."""

import argparse
import json
import random
from pathlib import Path

import torch
import webdataset as wds
from stopwatch import lap, timed
from torch import nn
from torchvision import transforms


def write_shards(photos: Path, folder: Path, number=6):
    """Photographs with a record beside each; kinds mixed."""
    folder.mkdir(parents=True, exist_ok=True)
    files = sorted(photos.glob("*/*.JPEG"))
    kinds = sorted({file.parent.name for file in files})
    random.Random(17).shuffle(files)
    for shard in range(number):
        with wds.TarWriter(str(folder / f"survey-{shard:03d}.tar")) as tar:
            for k, file in enumerate(files[shard::number]):
                record = {"kind": kinds.index(file.parent.name), "site": f"S{random.randrange(40):02d}"}
                tar.write({"__key__": f"{shard:03d}{k:05d}", "jpg": file.read_bytes(), "json": json.dumps(record)})
    return sorted(str(path) for path in folder.glob("survey-*.tar"))


class Wanted:
    """Keeps the samples of the rare kinds."""

    def __init__(self, kinds):
        self.kinds = set(kinds)

    def __call__(self, sample):
        return sample["json"]["kind"] in self.kinds


class Prepare:
    def __init__(self, kinds, side):
        self.kinds = sorted(kinds)
        self.transform = transforms.Compose(
            [transforms.Resize(side + 12), transforms.RandomCrop(side), transforms.ToTensor()]
        )

    def __call__(self, sample):
        with lap("transform"):
            return self.transform(sample["jpg"]), self.kinds.index(sample["json"]["kind"])


def make_loader(shards, kinds, side, batch):
    dataset = (
        wds.WebDataset(shards, shardshuffle=len(shards), empty_check=False, resampled=True)
        .shuffle(100)
        .decode("pilrgb")
        .select(Wanted(kinds))
        .map(Prepare(kinds, side))
        .batched(batch, partial=False)
    )
    return wds.WebLoader(dataset, batch_size=None, num_workers=2).with_epoch(60)


class RareNet(nn.Module):
    def __init__(self, kinds, width=24):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 7, stride=4)
        self.body = nn.Sequential(nn.ReLU(), nn.Conv2d(width, 2 * width, 3), nn.ReLU(), nn.MaxPool2d(2))
        self.attend, self.head = nn.Conv2d(2 * width, 1, 1), nn.Linear(2 * width, kinds)

    def forward(self, x):
        x = self.body(self.stem(x)).flatten(2)
        weights = self.attend(x[..., None])[:, 0, :, 0].softmax(1)
        return self.head(torch.einsum("bcn,bn->bc", x, weights))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/wds_rare_kinds"))
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--kinds", type=int, nargs="+", default=[2, 7])
    args = parser.parse_args()
    torch.set_num_threads(1)
    shards = write_shards(args.data / "photos", args.out / "shards")
    loader = make_loader(shards, args.kinds, side=88, batch=12)
    model = RareNet(len(args.kinds))
    optimizer = torch.optim.RMSprop(model.parameters(), 3e-4)
    for epoch in range(args.epochs):
        for images, kinds in timed(loader, "wait"):
            with lap("compute"):
                loss = nn.functional.cross_entropy(model(images), torch.as_tensor(kinds))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.3f}", flush=True)
        torch.save(model.state_dict(), args.out / "rare.pt")


if __name__ == "__main__":
    main()
