"""Denoising autoencoder with an EMA copy; the pictures come from a slow disk (simulated) that the workers hide."""

import argparse
import copy
import time
import zipfile
from pathlib import Path

import cv2
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stopwatch import lap, timed


def pack(root: Path, archive: Path, every=3):
    """One zip of thumbnails, as one often gets a data set."""
    if archive.exists():
        return
    with zipfile.ZipFile(archive, "w") as store:
        for path in sorted(root.glob("*/*.JPEG"))[::every]:
            picture = cv2.resize(cv2.imread(str(path), cv2.IMREAD_REDUCED_COLOR_2), (96, 96))
            store.writestr(f"{path.parent.name}/{path.stem}.png", cv2.imencode(".png", picture)[1].tobytes())


class ZipPictures(Dataset):
    """Opens the zip once in each worker; every read costs a seek of the old disk."""

    def __init__(self, archive: Path, seek: float):
        self.archive, self.seek, self.store = archive, seek, None
        with zipfile.ZipFile(archive) as store:
            self.names = store.namelist()

    def __len__(self):
        return len(self.names)

    def __getitem__(self, index):
        if self.store is None:
            self.store = zipfile.ZipFile(self.archive)
        with lap("read"):
            time.sleep(self.seek)
            blob = self.store.read(self.names[index])
        picture = cv2.imdecode(np.frombuffer(blob, np.uint8), cv2.IMREAD_COLOR)
        return torch.from_numpy(picture).permute(2, 0, 1)


class Autoencoder(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.encode = nn.Sequential(
            nn.Conv2d(3, width, 3, 1, 1),
            nn.GELU(),
            nn.Conv2d(width, width * 2, 4, 2, 1),
            nn.GELU(),
            nn.Conv2d(width * 2, width * 4, 4, 2, 1),
            nn.GELU(),
            nn.Conv2d(width * 4, width * 2, 3, 1, 1),
        )
        self.decode = nn.Sequential(
            nn.ConvTranspose2d(width * 2, width * 2, 4, 2, 1),
            nn.GELU(),
            nn.ConvTranspose2d(width * 2, width, 4, 2, 1),
            nn.GELU(),
            nn.Conv2d(width, 3, 3, 1, 1),
        )

    def forward(self, x):
        return self.decode(self.encode(x))


class Average:
    """Exponential moving average of the weights."""

    def __init__(self, model, decay=0.998):
        self.model, self.decay = copy.deepcopy(model).requires_grad_(False), decay

    @torch.no_grad()
    def update(self, model):
        for mine, theirs in zip(self.model.parameters(), model.parameters()):
            mine.lerp_(theirs, 1 - self.decay)


def psnr(a, b):
    return -10 * torch.log10(nn.functional.mse_loss(a, b)).item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/autoencoder_hidden"))
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--seek", type=float, default=0.02)
    parser.add_argument("--workers", type=int, default=4)
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    pack(args.data / "photos", args.out / "pictures.zip")
    loader = DataLoader(
        ZipPictures(args.out / "pictures.zip", args.seek),
        batch_size=12,
        shuffle=True,
        drop_last=True,
        num_workers=args.workers,
        prefetch_factor=3,
        persistent_workers=True,
    )
    model = Autoencoder()
    average = Average(model)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for epoch in range(args.epochs):
        history = []
        for images in timed(loader, "wait"):
            with lap("compute"):
                clean = images.float() / 255
                output = model(clean + 0.1 * torch.randn_like(clean))
                loss = nn.functional.mse_loss(output, clean)
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                average.update(model)
            with lap("own"):
                history.append(psnr(output.detach(), clean))
        print(f"epoch {epoch}: psnr {sum(history) / len(history):.2f}", flush=True)
        torch.save(average.model.state_dict(), args.out / "average.pt")


if __name__ == "__main__":
    main()
