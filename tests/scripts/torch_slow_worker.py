"""Photos from two mirrors, one mirror for each worker; the second mirror is far away."""

import argparse
import io
import time
from pathlib import Path

import torch
from PIL import Image
from stopwatch import lap, timed
from torch import nn
from torch.utils.data import DataLoader, Dataset, get_worker_info
from torchvision import transforms

LATENCY = {0: 0.0, 1: 0.03}  # seconds for each photo, by mirror


class MirroredPhotos(Dataset):
    def __init__(self, root, transform):
        self.paths = sorted(Path(root).glob("*/*.*"))
        self.classes = sorted({path.parent.name for path in self.paths})
        self.index = {name: i for i, name in enumerate(self.classes)}
        self.transform = transform

    def __len__(self):
        return len(self.paths)

    def fetch(self, path):
        info = get_worker_info()
        mirror = info.id if info is not None else 0
        with lap("read"):
            time.sleep(LATENCY[mirror % 2])
            return path.read_bytes()

    def __getitem__(self, i):
        path = self.paths[i]
        raw = self.fetch(path)
        with lap("decode"):
            image = Image.open(io.BytesIO(raw)).convert("RGB")
        return self.transform(image), self.index[path.parent.name]


parser = argparse.ArgumentParser()
parser.add_argument("data")
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--batch-size", type=int, default=16)
args = parser.parse_args()

augment = transforms.Compose([transforms.Resize(80), transforms.RandomCrop(72), transforms.ToTensor()])
train_data = MirroredPhotos(Path(args.data, "photos"), augment)
train_loader = DataLoader(
    train_data, batch_size=args.batch_size, shuffle=True, num_workers=2, drop_last=True, persistent_workers=True
)

net = nn.Sequential(
    nn.Conv2d(3, 16, 3, stride=2, padding=1),
    nn.ReLU(),
    nn.MaxPool2d(3),
    nn.Flatten(),
    nn.Linear(16 * 12 * 12, len(train_data.classes)),
)
loss_fn = nn.CrossEntropyLoss()
sgd = torch.optim.SGD(net.parameters(), lr=0.01)

for epoch in range(args.epochs):
    began, running = time.time(), 0.0
    for step, (xb, yb) in enumerate(timed(train_loader, "wait"), 1):
        with lap("compute"):
            sgd.zero_grad()
            loss = loss_fn(net(xb), yb)
            loss.backward()
            sgd.step()
        running += loss.item()
        if step % 25 == 0:
            rate = step * args.batch_size / (time.time() - began)
            print(f"{epoch + 1}.{step:03d}: loss {running / step:.3f}, {rate:.0f} photos/s", flush=True)
