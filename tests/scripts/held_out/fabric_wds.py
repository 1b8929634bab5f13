"""WebDataset with samples of many shards mixed once more behind the loader, as its documentation recommends."""

import argparse
import io
from pathlib import Path

import torch
import webdataset as wds
from PIL import Image
from torch import nn
from torchvision.transforms import functional as F
from torchvision.transforms import v2

from stopwatch import lap, timed

SIDE = 128


def write_shards(photos: Path, folder: Path, every=3, per_shard=110):
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.glob("*.tar")):
        return
    files = sorted(photos.glob("*/*.JPEG"))
    names = sorted({file.parent.name for file in files})
    order = torch.randperm(len(files), generator=torch.Generator().manual_seed(6)).tolist()[::every]
    with wds.ShardWriter(str(folder / "fabric-%03d.tar"), maxcount=per_shard, verbose=0) as sink:
        for number in order:
            file = files[number]
            sink.write({"__key__": f"{number:05d}", "jpg": file.read_bytes(), "cls": names.index(file.parent.name)})


def thumbnail(blob):
    with lap("decode"):
        photo = Image.open(io.BytesIO(blob))
        photo.draft("RGB", (SIDE, SIDE))
        return F.pil_to_tensor(photo.convert("RGB").resize((SIDE, SIDE)))


policy = v2.Compose(
    [
        v2.RandomAffine(20, (0.1, 0.1), (0.9, 1.2), 5, interpolation=v2.InterpolationMode.BILINEAR),
        v2.GaussianBlur(9, (0.5, 2.5)),
        v2.ColorJitter(0.3, 0.3, 0.3, 0.1),
        v2.RandomCrop(96),
        v2.RandomHorizontalFlip(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize([0.5] * 3, [0.25] * 3),
    ]
)


def vary(sample):
    image, label = sample
    return policy(image), int(label)


def stream(folder: Path, batch: int, workers: int, steps: int):
    shards = sorted(str(path) for path in folder.glob("*.tar"))
    dataset = (
        wds.WebDataset(shards, resampled=True, shardshuffle=False, nodesplitter=wds.split_by_node)
        .shuffle(100)
        .decode(wds.handle_extension("jpg", thumbnail))
        .to_tuple("jpg", "cls")
        .batched(16)
    )
    loader = wds.WebLoader(dataset, batch_size=None, shuffle=False, num_workers=workers, persistent_workers=True)
    return loader.unbatched().shuffle(300).map(vary).batched(batch).with_epoch(steps)


class Fabric(nn.Module):
    def __init__(self, classes=10):
        super().__init__()
        self.bank = nn.Conv2d(3, 32, 7, 4, 3)
        self.mix = nn.Sequential(
            nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 48, 3, 2, 1), nn.ReLU(), nn.Conv2d(48, 32, 1)
        )
        self.head = nn.Linear(32 * 32, classes)

    def forward(self, images):
        """Bilinear pooling: which textures are seen together."""
        maps = self.mix(self.bank(images)).flatten(2)
        gram = (maps @ maps.transpose(1, 2) / maps.shape[2]).flatten(1)
        return self.head(nn.functional.normalize(gram.sign() * gram.abs().add(1e-6).sqrt()))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/fabric_wds"))
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--batch", type=int, default=24)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    torch.manual_seed(8)
    torch.set_num_threads(1)
    write_shards(args.data / "photos", args.out / "shards")
    batches = stream(args.out / "shards", args.batch, args.workers, steps=60)
    model = Fabric()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    for epoch in range(args.epochs):
        total = 0.0
        for images, labels in timed(batches, "wait"):
            with lap("compute"):
                loss = nn.functional.cross_entropy(model(images), torch.as_tensor(labels))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            total += loss.item()
        print(f"epoch {epoch}: {total / 60:.4f}", flush=True)
        torch.save(model.state_dict(), args.out / "fabric.pt")


if __name__ == "__main__":
    main()
