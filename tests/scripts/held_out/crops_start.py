"""Self-supervised multi-crop (two views against four small ones), short epochs, every worker sets itself up anew."""

import argparse
import hashlib
import random
from pathlib import Path

import cv2
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset, get_worker_info

from stopwatch import lap, timed


class MultiCrop(Dataset):
    """Crops of pictures held in memory; `open` registers the archive's files (for the audit) in each worker."""

    def __init__(self, root: Path, large=64, small=32):
        self.root, self.large, self.small = root, large, small
        self.files = sorted(root.glob("*/*.JPEG"))
        self.pictures = [
            cv2.resize(cv2.imread(str(path), cv2.IMREAD_REDUCED_COLOR_4), (96, 96)) for path in self.files[::3]
        ]
        self.digests = None

    def open(self):
        """Digest of every file, to be kept with the worker's random state."""
        with lap("open"):
            self.digests = {}
            for path in self.files:
                content = path.read_bytes()
                self.digests[path.name] = hashlib.sha256(content).hexdigest(), hashlib.md5(content).hexdigest()

    def __len__(self):
        return len(self.pictures)

    def crop(self, picture, side, low, high):
        part = int(96 * random.uniform(low, high) ** 0.5)
        x, y = random.randint(0, 96 - part), random.randint(0, 96 - part)
        view = cv2.resize(picture[y : y + part, x : x + part], (side, side))
        if random.random() < 0.5:
            view = view[:, ::-1]
        return torch.from_numpy(np.ascontiguousarray(view)).permute(2, 0, 1)

    def __getitem__(self, index):
        picture = self.pictures[index]
        views = [self.crop(picture, self.large, 0.4, 1.0) for _ in range(2)]
        bits = [self.crop(picture, self.small, 0.1, 0.4) for _ in range(4)]
        return torch.stack(views), torch.stack(bits)


def prepare_worker(number):
    data = get_worker_info().dataset
    while isinstance(data, Subset):
        data = data.dataset
    random.seed(torch.initial_seed() % 2**32)
    data.open()


def backbone(size=48):
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1),
        nn.BatchNorm2d(16),
        nn.GELU(),
        nn.Conv2d(16, 32, 3, 2, 1),
        nn.BatchNorm2d(32),
        nn.GELU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, size),
    )


def ssl_loss(student, teacher, centre):
    target = ((teacher - centre) / 0.06).softmax(-1)
    return -(target * (student / 0.1).log_softmax(-1)).sum(-1).mean()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/crops_start"))
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    data = MultiCrop(args.data / "photos")
    loader = DataLoader(
        data, batch_size=16, shuffle=True, num_workers=args.workers, drop_last=True, worker_init_fn=prepare_worker
    )
    student, teacher = backbone(), backbone()
    teacher.load_state_dict(student.state_dict())
    teacher.requires_grad_(False)
    centre = torch.zeros(48)
    optimizer = torch.optim.AdamW(student.parameters(), 1e-3)
    for epoch in range(args.epochs):
        total = 0.0
        for views, bits in timed(loader, "wait"):
            with lap("compute"):
                views = views.flatten(0, 1).float() / 255
                bits = bits.flatten(0, 1).float() / 255
                goal = teacher(views).view(-1, 2, 48)
                ours, small = student(views).view(-1, 2, 48), student(bits).view(-1, 4, 48)
                loss = ssl_loss(ours[:, 0], goal[:, 1], centre) + ssl_loss(ours[:, 1], goal[:, 0], centre)
                for k in range(4):
                    loss = loss + ssl_loss(small[:, k], goal.mean(1), centre) / 4
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                with torch.no_grad():
                    centre.lerp_(goal.mean((0, 1)), 0.1)
                    for theirs, mine in zip(teacher.parameters(), student.parameters()):
                        theirs.lerp_(mine, 0.01)
            with lap("own"):
                total += loss.item()
        print(f"epoch {epoch}: loss {total / len(loader):.4f}", flush=True)
        torch.save(teacher.state_dict(), args.out / "teacher.pt")


if __name__ == "__main__":
    main()
