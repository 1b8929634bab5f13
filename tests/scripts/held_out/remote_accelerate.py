"""Classification of pictures that lie in an object store (simulated), trained with Accelerate."""

import argparse
import random
import time
from pathlib import Path

import cv2
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler

from stopwatch import lap, timed


class Bucket:
    """An object store: each GET costs a round trip, now and then a slow one."""

    def __init__(self, root: Path, trip: float):
        self.root, self.trip = root, trip

    def keys(self):
        return sorted(str(p.relative_to(self.root)) for p in self.root.glob("*/*.JPEG"))

    def get(self, key: str) -> bytes:
        with lap("get"):
            time.sleep(self.trip * (3 if random.random() < 0.05 else 1))
            return (self.root / key).read_bytes()


class RemotePhotos(Dataset):
    def __init__(self, bucket: Bucket):
        self.bucket = bucket
        self.keys = bucket.keys()
        names = sorted({key.split("/")[0] for key in self.keys})
        self.labels = [names.index(key.split("/")[0]) for key in self.keys]
        self.classes = len(names)

    def __len__(self):
        return len(self.keys)

    def __getitem__(self, index):
        blob = self.bucket.get(self.keys[index])
        raw = torch.frombuffer(bytearray(blob), dtype=torch.uint8).numpy()
        image = cv2.imdecode(raw, cv2.IMREAD_REDUCED_COLOR_4)
        image = cv2.resize(image, (72, 72))
        return torch.from_numpy(image).permute(2, 0, 1), self.labels[index]


class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 24, 3, 2, 1),
            nn.BatchNorm2d(24),
            nn.SiLU(),
            nn.Conv2d(24, 48, 3, 2, 1),
            nn.BatchNorm2d(48),
            nn.SiLU(),
            nn.Conv2d(48, 96, 3, 2, 1),
            nn.BatchNorm2d(96),
            nn.SiLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        self.head = nn.Linear(96, classes)

    def forward(self, x):
        return self.head(self.features(x.float() / 127.5 - 1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/remote_accelerate"))
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--trip", type=float, default=0.02)
    parser.add_argument("--batch", type=int, default=16)
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    data = RemotePhotos(Bucket(args.data / "photos", args.trip))
    counts = torch.bincount(torch.tensor(data.labels))
    weights = [1.0 / counts[label].item() for label in data.labels]
    sampler = WeightedRandomSampler(weights, num_samples=1600)
    loader = DataLoader(data, batch_size=args.batch, sampler=sampler, num_workers=2, persistent_workers=True)
    model = Net(data.classes)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=args.epochs * len(loader))
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.05)

    for epoch in range(args.epochs):
        model.train()
        right = seen = 0
        for images, labels in timed(loader, "wait"):
            with lap("compute"), accelerator.accumulate(model):
                logits = model(images)
                loss = criterion(logits, labels)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            with lap("own"):
                right += (logits.argmax(1) == labels).sum().item()
                seen += len(labels)
        accelerator.print(f"epoch {epoch}: accuracy {right / seen:.3f}", flush=True)
        accelerator.save(accelerator.unwrap_model(model).state_dict(), args.out / "net.pt")


if __name__ == "__main__":
    main()
