"""Semi-supervised training: a labelled loader zipped with an unlabelled one, weak and strong views of the latter."""

import argparse
import random
import time
from pathlib import Path

import torch
from PIL import Image
from stopwatch import lap, timed
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torchvision import transforms as T


class GrainNoise:
    """Grain, made in plain Python: a fixed cost of CPU a sample."""

    def __init__(self, cost):
        self.cost = cost

    def __call__(self, tensor):
        grain, end = 0.0, time.thread_time() + self.cost
        while time.thread_time() < end:
            grain = 0.9 * grain + random.gauss(0, 0.02)
        return (tensor + grain).clamp(-1, 1)


class TwoViews(Dataset):
    def __init__(self, paths, cost):
        self.paths = paths
        finish = [T.ToTensor(), T.Normalize([0.5] * 3, [0.5] * 3)]
        self.weak = T.Compose([T.RandomHorizontalFlip(), *finish])
        self.strong = T.Compose([T.RandomGrayscale(0.3), *finish, GrainNoise(cost)])

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        with lap("decode"):
            image = load_small(self.paths[index])
        with lap("transform"):
            return self.weak(image), self.strong(image)


def load_small(path, size=64):
    image = Image.open(path)
    image.draft("RGB", (size, size))
    return image.convert("RGB").resize((size, size))


def labelled_set(paths, classes):
    images = torch.stack([T.functional.to_tensor(load_small(path)) for path in paths]) * 2 - 1
    return TensorDataset(images, torch.tensor([classes.index(path.parent.name) for path in paths]))


def forever(loader):
    while True:
        yield from loader


parser = argparse.ArgumentParser()
parser.add_argument("data")
parser.add_argument("--epochs", type=int, default=6)
parser.add_argument("--grain-cost", type=float, default=0.012)
parser.add_argument("--workers", type=int, default=1)
args = parser.parse_args()
torch.set_num_threads(1)
all_paths = sorted(Path(args.data, "photos").glob("*/*.*"))
classes = sorted({path.parent.name for path in all_paths})
labelled = DataLoader(labelled_set(all_paths[::20], classes), batch_size=16, shuffle=True, drop_last=True)
views = TwoViews(all_paths, args.grain_cost)
unlabelled = DataLoader(views, batch_size=32, shuffle=True, num_workers=args.workers, drop_last=True)
net = nn.Sequential(
    nn.Conv2d(3, 24, 3, stride=2, padding=1), nn.BatchNorm2d(24), nn.ReLU(),
    nn.Conv2d(24, 48, 3, stride=2, padding=1), nn.BatchNorm2d(48), nn.ReLU(),
    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, len(classes)),
)  # fmt: skip
optimizer = torch.optim.SGD(net.parameters(), lr=0.03, momentum=0.9, nesterov=True)
for epoch in range(args.epochs):
    for (x, y), (weak, strong) in timed(zip(forever(labelled), unlabelled), "wait"):
        with lap("compute"):
            on_x, on_weak, on_strong = net(torch.cat([x, weak, strong])).split([len(x), len(weak), len(strong)])
            confidence, target = on_weak.detach().softmax(1).max(1)
            loss = nn.functional.cross_entropy(on_x, y)
            loss += (nn.functional.cross_entropy(on_strong, target, reduction="none") * (confidence > 0.8)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print(f"[{epoch + 1}/{args.epochs}] last loss {loss.item():.4f}", flush=True)
