"""Trains straight from the zip that the photographs came in, so that nothing need be unpacked."""

import argparse
import io
import zipfile
from pathlib import Path

import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from stopwatch import lap, timed


def pack(photos: Path, archive: Path, limit=2000):
    """The zip as a Mac makes it: with each file goes a small one of its attributes."""
    if archive.exists():
        return
    files = sorted(photos.glob("*/*.*"))
    part = archive.with_suffix(".part")
    with zipfile.ZipFile(part, "w") as bundle:
        for path in files[:: -(-len(files) // limit)]:
            bundle.writestr(f"photos/{path.parent.name}/{path.name}", path.read_bytes())
            bundle.writestr(f"__MACOSX/photos/{path.parent.name}/._{path.name}", bytes(120))
    part.replace(archive)


class ZippedPhotos(Dataset):
    def __init__(self, archive: Path, transform):
        self.archive, self.transform = archive, transform
        with zipfile.ZipFile(archive) as bundle:
            self.members = sorted(name for name in bundle.namelist() if name.startswith("photos/"))
        self.classes = sorted({name.split("/")[1] for name in self.members})

    def __len__(self):
        return len(self.members)

    def read_member(self, name):
        # a ZipFile must not be shared by the worker processes
        with zipfile.ZipFile(self.archive) as bundle:
            return bundle.read(name)

    def __getitem__(self, index):
        name = self.members[index]
        with lap("read"):
            blob = self.read_member(name)
        with lap("decode"):
            image = Image.open(io.BytesIO(blob))
            image.draft("RGB", (96, 96))
            image = image.convert("RGB")
        with lap("transform"):
            return self.transform(image), self.classes.index(name.split("/")[1])


def network(classes):
    layers, inputs = [], 3
    for outputs in (24, 48, 96):
        layers += [nn.Conv2d(inputs, outputs, 3, 2, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.1), nn.Linear(inputs, classes))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/zip_members"))
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    pack(args.data / "photos", args.out / "photos.zip")

    train = ZippedPhotos(
        args.out / "photos.zip",
        transforms.Compose(
            [
                transforms.RandomResizedCrop(64, scale=(0.4, 1.0)),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
                transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
            ]
        ),
    )
    loader = DataLoader(
        train,
        batch_size=args.batch_size,
        shuffle=True,
        num_workers=args.workers,
        persistent_workers=args.workers > 0,
        drop_last=True,
    )
    model = network(len(train.classes))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=args.epochs * len(loader))
    for epoch in range(args.epochs):
        running = 0.0
        for step, (images, labels) in enumerate(timed(loader, "wait")):
            with lap("compute"):
                loss = nn.functional.cross_entropy(model(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                scheduler.step()
            running += loss.item()
            if step % 20 == 19:
                print(f"epoch {epoch} [{step + 1}/{len(loader)}] loss {running / 20:.4f}", flush=True)
                running = 0.0
        torch.save(model.state_dict(), args.out / "model.pt")


if __name__ == "__main__":
    main()
