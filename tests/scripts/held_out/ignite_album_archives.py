"""Ignite: photographs stay in the archives they came in, one .tar for each album, and are taken out by tar itself when
they are needed. Nothing is unpacked to the disk."""

import argparse
import io
import random
import subprocess
import tarfile
from contextlib import ExitStack
from pathlib import Path

import torch
from ignite.engine import Engine, Events
from ignite.handlers import Checkpoint, DiskSaver, EMAHandler
from ignite.metrics import RunningAverage
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms as T

from stopwatch import lap


def pack(photos, folder, each):
    """An archive for each album, as they were handed in."""
    folder.mkdir(parents=True, exist_ok=True)
    for album in sorted(p for p in photos.iterdir() if p.is_dir()):
        target = folder / f"{album.name}.tar"
        if target.exists():
            continue
        part = target.with_suffix(".part")
        with tarfile.open(part, "w") as archive:
            for file in sorted(album.glob("*.JPEG"))[:each]:
                archive.add(file, f"{album.name}/{file.name}")
        part.rename(target)


class Albums(Dataset):
    def __init__(self, folder, transform):
        self.transform, self.items = transform, []
        self.archives = sorted(folder.glob("*.tar"))
        for label, archive in enumerate(self.archives):
            listing = subprocess.run(["tar", "-tf", archive], capture_output=True, text=True, check=True).stdout
            self.items += [(label, name) for name in listing.splitlines()]

    def __len__(self):
        return len(self.items)

    def member(self, archive, name):
        return subprocess.run(["tar", "-xOf", archive, name], capture_output=True, check=True).stdout

    def __getitem__(self, index):
        label, name = self.items[index]
        photo = Image.open(io.BytesIO(self.member(self.archives[label], name)))
        photo.draft("RGB", (128, 128))
        return self.transform(photo.convert("RGB")), label


def network(kinds, width=8):
    layers, inner = [], 3
    for outer in (width, 2 * width, 4 * width):
        layers += [nn.Conv2d(inner, outer, 3, stride=2, padding=1), nn.GroupNorm(4, outer), nn.SiLU()]
        inner = outer
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inner, kinds))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/ignite_album_archives"))
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--each", type=int, default=220)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    pack(args.data / "photos", args.out / "albums", args.each)
    random.seed(5)
    torch.set_num_threads(1)
    transform = T.Compose([T.Resize(72), T.RandomCrop(64), T.RandomHorizontalFlip(), T.ToTensor()])
    albums = Albums(args.out / "albums", transform)
    loader = DataLoader(
        albums, 16, shuffle=True, num_workers=args.workers, persistent_workers=True, prefetch_factor=3, drop_last=True
    )
    model = network(len(albums.archives))
    optimizer = torch.optim.NAdam(model.parameters(), lr=2e-3)

    def update(engine, batch):
        with lap("compute"):
            images, labels = batch
            scores = model(images * 2 - 1)
            loss = nn.functional.cross_entropy(scores, labels, label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return {"loss": loss.item(), "right": (scores.argmax(1) == labels).float().mean().item()}

    trainer, waiting = Engine(update), ExitStack()
    trainer.add_event_handler(Events.GET_BATCH_STARTED, lambda: waiting.enter_context(lap("wait")))
    trainer.add_event_handler(Events.GET_BATCH_COMPLETED, waiting.close)
    for name in ("loss", "right"):
        RunningAverage(output_transform=lambda output, name=name: output[name]).attach(trainer, name)
    EMAHandler(model, momentum=0.005).attach(trainer, name="ema_momentum", event=Events.ITERATION_COMPLETED(every=5))
    saver = Checkpoint({"model": model}, DiskSaver(str(args.out), require_empty=False), n_saved=1)
    trainer.add_event_handler(Events.EPOCH_COMPLETED, saver)

    @trainer.on(Events.ITERATION_COMPLETED(every=10))
    def report(engine):
        with lap("own"):
            loss, right = engine.state.metrics["loss"], engine.state.metrics["right"]
            print(f"{engine.state.epoch}/{engine.state.iteration}: {loss:.4f}, {right:.1%} right", flush=True)

    trainer.run(loader, max_epochs=args.epochs)


if __name__ == "__main__":
    main()
