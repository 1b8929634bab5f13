"""Foreground segmentation: a small U-Net on masks made from colour, with elastic deformation as augmentation."""

import argparse
from pathlib import Path

import cv2
import numpy as np
import torch
from scipy.ndimage import gaussian_filter, map_coordinates
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stopwatch import lap, timed

SIDE = 128


class MaskedPhotos(Dataset):
    """Picture and mask; the mask is Otsu's threshold on saturation."""

    def __init__(self, root: Path, seed: int = 0):
        self.files = sorted(root.glob("*/*.JPEG"))
        self.seed = seed

    def __len__(self):
        return len(self.files)

    def load(self, path):
        image = cv2.imread(str(path), cv2.IMREAD_REDUCED_COLOR_2)
        image = cv2.resize(image, (SIDE, SIDE), interpolation=cv2.INTER_AREA)
        saturation = cv2.cvtColor(image, cv2.COLOR_BGR2HSV)[..., 1]
        _, mask = cv2.threshold(saturation, 0, 255, cv2.THRESH_BINARY + cv2.THRESH_OTSU)
        return image, mask

    def elastic(self, image, mask, alpha=120.0, sigma=9.0):
        """Displace every pixel by a smooth random field (after Simard et al.)."""
        rng = np.random.default_rng()
        shape = image.shape[:2]
        dx = gaussian_filter(rng.uniform(-1, 1, shape), sigma) * alpha
        dy = gaussian_filter(rng.uniform(-1, 1, shape), sigma) * alpha
        rows, columns = np.meshgrid(np.arange(shape[0]), np.arange(shape[1]), indexing="ij")
        where = [rows + dy, columns + dx]
        warped = [map_coordinates(image[..., c].astype(np.float64), where, order=3, mode="reflect") for c in range(3)]
        mask = map_coordinates(mask.astype(np.float64), where, order=1, mode="reflect")
        return np.stack(warped), mask

    def __getitem__(self, index):
        with lap("load"):
            image, mask = self.load(self.files[index])
        with lap("elastic"):
            image, mask = self.elastic(image, mask)
        image = torch.from_numpy(image.clip(0, 255).astype(np.float32) / 255)
        return image, torch.from_numpy((mask > 127).astype(np.float32))[None]


def block(inputs, outputs):
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


class TinyUNet(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, stride=2, padding=1)
        self.down1 = block(width, width * 2)
        self.down2 = block(width * 2, width * 4)
        self.up1 = block(width * 6, width)
        self.head = nn.Conv2d(width, 1, 1)

    def forward(self, x):
        x = self.down1(nn.functional.max_pool2d(self.stem(x), 2))
        deep = self.down2(nn.functional.max_pool2d(x, 2))
        deep = nn.functional.interpolate(deep, scale_factor=2)
        y = self.up1(torch.cat([x, deep], 1))
        return nn.functional.interpolate(self.head(y), scale_factor=4, mode="bilinear")


def dice(logits, target):
    p = logits.sigmoid()
    return 1 - (2 * (p * target).sum() + 1) / (p.sum() + target.sum() + 1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/seg_elastic"))
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    torch.manual_seed(3)
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)

    data = MaskedPhotos(args.data / "photos")
    loader = DataLoader(
        data, args.batch, shuffle=True, num_workers=args.workers, drop_last=True, persistent_workers=True
    )
    model = TinyUNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    bce = nn.BCEWithLogitsLoss()
    for epoch in range(args.epochs):
        total = 0.0
        for images, masks in timed(loader, "wait"):
            with lap("compute"):
                logits = model(images)
                loss = bce(logits, masks) + dice(logits, masks)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            with lap("own"):
                total += loss.item()
        print(f"epoch {epoch}: loss {total / len(loader):.4f}", flush=True)
        torch.save(model.state_dict(), args.out / "model.pt")


if __name__ == "__main__":
    main()
