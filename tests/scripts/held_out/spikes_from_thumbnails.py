"""A spiking network (leaky integrate-and-fire, surrogate gradients) that reads thumbnails as trains of spikes. Spikes
are drawn for each look anew and kept as lists of events, as a neuromorphic camera would send them."""

import argparse
import json
import random
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stopwatch import lap, timed


class Spike(torch.autograd.Function):
    @staticmethod
    def forward(context, potential):
        context.save_for_backward(potential)
        return (potential > 0).float()

    @staticmethod
    def backward(context, gradient):
        (potential,) = context.saved_tensors
        return gradient / (1 + 10 * potential.abs()) ** 2


class Leaky(nn.Module):
    def __init__(self, layer, norm):
        super().__init__()
        self.layer, self.norm = layer, norm
        self.decay = nn.Parameter(torch.tensor(1.5))

    def forward(self, spikes, potential):
        potential = self.decay.sigmoid() * potential + self.norm(self.layer(spikes))
        fired = Spike.apply(potential - 1)
        return fired, potential - fired


class Retina(nn.Module):
    def __init__(self, classes, width=32):
        super().__init__()
        self.first = Leaky(nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width))
        self.second = Leaky(
            nn.Conv2d(width, 2 * width, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(2 * width)
        )
        self.third = Leaky(
            nn.Conv2d(2 * width, 2 * width, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(2 * width)
        )
        self.head = nn.Linear(2 * width, classes)

    def forward(self, train):
        one = two = three = 0.0
        votes, rates = 0.0, []
        for frame in train.unbind(1):
            a, one = self.first(frame, one)
            b, two = self.second(a, two)
            c, three = self.third(b, three)
            votes = votes + self.head(c.mean((2, 3)))
            rates.append(torch.stack([a.mean(), b.mean(), c.mean()]))
        return votes / train.shape[1], torch.stack(rates)


class Events(Dataset):
    """Each brightness becomes a rate; events are (time, channel, row, column), packed to frames in the end."""

    def __init__(self, root, count, side=32, times=8):
        self.side, self.times = side, times
        files = sorted(root.glob("*/*.JPEG"))
        kinds = sorted({file.parent.name for file in files})
        self.items = [(file, kinds.index(file.parent.name)) for file in random.Random(2).sample(files, count)]

    def __len__(self):
        return len(self.items)

    def events(self, image):
        rng = np.random.default_rng()
        draws = rng.random((self.times, *image.shape), dtype=np.float32)
        return rng.permutation(np.argwhere(draws < image))

    def __getitem__(self, index):
        file, label = self.items[index]
        photo = Image.open(file)
        photo.draft("RGB", (4 * self.side, 4 * self.side))
        image = np.asarray(photo.convert("RGB").resize((self.side, self.side))).transpose(2, 0, 1) / 400
        events = self.events(image)
        train = torch.zeros(self.times, 3, self.side, self.side)
        train[tuple(torch.from_numpy(events).T)] = 1
        return train, label


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/spikes_from_thumbnails"))
    parser.add_argument("--epochs", type=int, default=100)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    events = Events(args.data / "photos", 1500)
    loader = DataLoader(
        events, 8, shuffle=True, num_workers=1, persistent_workers=True, prefetch_factor=4, drop_last=True
    )
    model = Retina(classes=10)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    step = 0
    for epoch in range(args.epochs):
        for train, labels in timed(loader, "wait"):
            with lap("compute"):
                votes, rates = model(train)
                quiet = (rates.mean(0) - 0.1).relu().sum()
                loss = nn.functional.cross_entropy(votes, labels) + 0.1 * quiet
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            with lap("own"):
                step += 1
                decays = [layer.decay.sigmoid().item() for layer in (model.first, model.second, model.third)]
                line = {"step": step, "loss": loss.item(), "rates": rates.mean(0).tolist(), "decays": decays}
                with open(args.out / "rates.jsonl", "a") as file:
                    file.write(json.dumps(line) + "\n")
                if step % 20 == 0:
                    print(f"epoch {epoch} step {step}: {loss.item():.4f}", flush=True)
        with lap("own"):
            torch.save(model.state_dict(), args.out / "retina.pt")


if __name__ == "__main__":
    main()
