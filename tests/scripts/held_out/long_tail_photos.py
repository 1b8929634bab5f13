"""Photographs of a phone, of which one in sixteen is a panorama; torchvision.io, transforms v2, a deep narrow network."""

import argparse
import contextlib
import pathlib
import shutil
import tempfile

import torch
from PIL import Image
from stopwatch import lap, timed
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchvision.io import ImageReadMode, decode_image
from torchvision.transforms import v2


def add_panoramas(photos: list[pathlib.Path], folder: pathlib.Path, number: int) -> list[pathlib.Path]:
    made = []
    for index, photo in enumerate(photos[:number]):
        target = folder / photo.parent.name / f"pano_{index}.jpg"
        target.parent.mkdir(exist_ok=True)
        Image.open(photo).convert("RGB").resize((8000, 4600), Image.Resampling.BILINEAR).save(target, quality=90)
        made.append(target)
    return made


class Album(Dataset):
    def __init__(self, files: list[pathlib.Path], transform: v2.Transform):
        self.files, self.transform = files, transform
        self.classes = sorted({file.parent.name for file in files})

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        file = self.files[index]
        with lap("decode"):
            image = decode_image(str(file), ImageReadMode.RGB)
        with lap("transform"):
            return self.transform(image), self.classes.index(file.parent.name)


class Bottleneck(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width // 2, 1),
            nn.ReLU(),
            nn.Conv2d(width // 2, width // 2, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width // 2, width, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.body(x))


class DeepNet(nn.Module):
    """Twenty-four layers in eight blocks."""

    def __init__(self, classes: int, width: int = 8, blocks: int = 8):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 8, stride=8)
        self.blocks = nn.Sequential(*(Bottleneck(width) for _ in range(blocks)))
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)).mean((-2, -1)))


def run(args: argparse.Namespace, folder: pathlib.Path) -> None:
    torch.set_num_threads(1)
    photos = sorted(pathlib.Path(args.data, "photos").glob("*/*.*"))[:: args.every]
    panoramas = add_panoramas(photos[:: max(1, len(photos) // 12)], folder, 12)
    files = photos + [panoramas[i % len(panoramas)] for i in range(len(photos) // 15)]
    transform = v2.Compose(
        [
            v2.RandomCrop(300, pad_if_needed=True),
            v2.Resize(96),
            v2.RandomHorizontalFlip(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize([0.5], [0.25]),
        ]
    )
    album = Album(files, transform)
    loader = DataLoader(
        album, batch_size=16, shuffle=True, num_workers=args.workers, persistent_workers=True, drop_last=True
    )
    model = DeepNet(len(album.classes))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.05)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=args.epochs * len(loader))
    for epoch in range(args.epochs):
        for images, labels in timed(loader, "wait"):
            with lap("compute"):
                loss = nn.functional.cross_entropy(model(images), labels, label_smoothing=0.1)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
        print(f"epoch {epoch + 1}/{args.epochs} loss {loss.item():.4f}", flush=True)
    pathlib.Path(args.out).mkdir(parents=True, exist_ok=True)
    torch.save(model.state_dict(), pathlib.Path(args.out, "deep.pt"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--out", default="runs/long_tail_photos")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--every", type=int, default=2, help="take each n-th photograph")
    parser.add_argument("--workers", type=int, default=2)
    temporary = pathlib.Path(tempfile.mkdtemp())
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, temporary)
        run(parser.parse_args(), temporary)
