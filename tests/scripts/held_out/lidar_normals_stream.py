"""Label the ground, walls and cars in lidar sweeps: a stream of recorded drives, turned to range images.

Each sweep gets surface normals from the neighbours of its points before it is projected.
"""

import argparse
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from scipy.spatial import cKDTree
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from stopwatch import lap, timed

DRIVES, SWEEPS, POINTS = 6, 20, 12288
ROWS, COLUMNS, CLASSES = 32, 256, 3


def make_drives(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(4)
    for drive in range(DRIVES):
        path = folder / f"drive-{drive:02d}.bin"
        if path.exists():
            continue
        with path.open("wb") as out:
            for _ in range(SWEEPS):
                label = rng.choice(CLASSES, POINTS, p=[0.5, 0.3, 0.2])
                angle, far = rng.uniform(-np.pi, np.pi, POINTS), rng.uniform(3, 40, POINTS)
                height = np.select(
                    [label == 0, label == 1], [-1.7, rng.uniform(-1.7, 4, POINTS)], rng.uniform(-1.6, 0.2, POINTS)
                )
                far = np.where(label == 1, 12 + 4 * np.sin(3 * angle), far)
                xyz = np.stack([far * np.cos(angle), far * np.sin(angle), height], 1)
                xyz += rng.normal(0, 0.03, xyz.shape)
                out.write(np.concatenate([xyz, label[:, None]], 1).astype("<f4").tobytes())


def surface_normals(xyz: np.ndarray, neighbours: int = 16) -> np.ndarray:
    """The direction of least spread among each point's neighbours, towards the sensor."""
    tree = cKDTree(xyz)
    _, nearest = tree.query(xyz, k=neighbours)
    around = xyz[nearest] - xyz[nearest].mean(1, keepdims=True)
    spread = np.einsum("nki,nkj->nij", around, around)
    _, axes = np.linalg.eigh(spread)
    normals = axes[:, :, 0]
    return normals * np.where((normals * xyz).sum(1) > 0, -1.0, 1.0)[:, None]


def to_range_image(sweep: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    xyz = sweep[:, :3].astype(np.float64)
    normals = surface_normals(xyz)
    far = np.linalg.norm(xyz, axis=1)
    column = ((np.arctan2(xyz[:, 1], xyz[:, 0]) / np.pi + 1) * 0.5 * COLUMNS).astype(int) % COLUMNS
    row = ((np.arcsin(np.clip(xyz[:, 2] / far, -1, 1)) + 0.6) / 1.0 * ROWS).astype(int).clip(0, ROWS - 1)
    order = np.argsort(-far)
    image = np.zeros((5, ROWS, COLUMNS), np.float32)
    label = np.full((ROWS, COLUMNS), -1, np.int64)
    values = np.concatenate([far[:, None] / 40, xyz[:, 2:3] / 3, normals], 1).T
    image[:, row[order], column[order]] = values[:, order]
    label[row[order], column[order]] = sweep[order, 3].astype(np.int64)
    return image, label


class DriveStream(IterableDataset):
    """Every worker plays its own drives, sweep by sweep, in an order drawn anew each time."""

    def __init__(self, folder: Path) -> None:
        self.drives = sorted(folder.glob("drive-*.bin"))

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        worker = get_worker_info()
        mine = self.drives[worker.id :: worker.num_workers] if worker else list(self.drives)
        random.shuffle(mine)
        for drive in mine:
            sweeps = np.fromfile(drive, "<f4").reshape(-1, POINTS, 4)
            for sweep in sweeps:
                turn = random.uniform(0, 2 * np.pi)
                c, s = np.cos(turn), np.sin(turn)
                turned = sweep.copy()
                turned[:, :2] = sweep[:, :2] @ np.array([[c, -s], [s, c]], np.float32)
                image, label = to_range_image(turned)
                yield torch.from_numpy(image), torch.from_numpy(label)


def make_model() -> nn.Module:
    layers, inputs = [], 5
    for outputs in (12, 16):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]
        inputs = outputs
    return nn.Sequential(*layers, nn.Conv2d(inputs, CLASSES, 1))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", help="the data folder (the drives are made up here)")
    parser.add_argument("--epochs", type=int, default=1000)
    options = parser.parse_args()
    torch.manual_seed(8)
    torch.set_num_threads(1)
    make_drives(Path("drives"))
    loader = DataLoader(
        DriveStream(Path("drives")), batch_size=6, num_workers=2, persistent_workers=True, prefetch_factor=3
    )
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    for epoch in range(options.epochs):
        hits = torch.zeros(CLASSES)
        counts = torch.zeros(CLASSES)
        for images, labels in timed(loader, "wait"):
            with lap("compute"):
                scores = model(images)
                loss = nn.functional.cross_entropy(scores, labels, ignore_index=-1)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            with lap("own"):
                right = scores.argmax(1) == labels
                counts += torch.bincount((labels + 1).flatten(), minlength=CLASSES + 1)[1:]
                hits += torch.bincount(((labels + 1) * right).flatten(), minlength=CLASSES + 1)[1:]
        shares = ", ".join(f"{share:.2f}" for share in (hits / counts.clamp(min=1)).tolist())
        print(f"epoch {epoch}: loss {loss.item():.3f}, recall {shares}", flush=True)


if __name__ == "__main__":
    main()
