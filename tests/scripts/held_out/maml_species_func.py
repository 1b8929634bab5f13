"""Model-agnostic meta-learning with torch.func: each item of the loader is a task of five species, and the outer loss
goes through some gradient steps of a functional copy of the network."""

import argparse
import random
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import torch
from PIL import Image
from torch import nn
from torch.func import functional_call, grad
from torch.utils.data import DataLoader, IterableDataset
from torchvision.transforms import functional as tv

from stopwatch import lap


class Task(NamedTuple):
    """Photographs by species; the first `shots` of each are to learn from, the others to be judged by."""

    photos: torch.Tensor
    shots: int

    def part(self, chosen):
        photos = self.photos[:, chosen]
        return photos.flatten(0, 1), torch.arange(len(photos)).repeat_interleave(photos.shape[1])

    @property
    def support(self):
        return self.part(slice(self.shots))

    @property
    def query(self):
        return self.part(slice(self.shots, None))


class Tasks(IterableDataset):
    def __init__(self, root: Path, ways=5, shots=3, queries=3, side=40):
        self.species = [sorted(folder.glob("*.JPEG")) for folder in sorted(root.iterdir())]
        self.ways, self.shots, self.queries, self.side = ways, shots, queries, side

    def photo(self, file):
        with lap("decode"):
            image = Image.open(file)
            image.draft("RGB", (2 * self.side, 2 * self.side))
            image = image.convert("RGB").resize((self.side + 8, self.side + 8), Image.Resampling.BICUBIC)
        left, top = random.randint(0, 8), random.randint(0, 8)
        image = image.crop((left, top, left + self.side, top + self.side))
        return tv.normalize(tv.to_tensor(image), [0.5] * 3, [0.25] * 3)

    def __iter__(self):
        while True:
            photos = []
            for files in random.sample(self.species, self.ways):
                chosen = random.sample(files, self.shots + self.queries)
                photos.append(torch.stack([self.photo(file) for file in chosen]))
            yield Task(torch.stack(photos), self.shots)


def learner(ways, width=28):
    def stage(inputs):
        return [nn.Conv2d(inputs, width, 3, padding=1), nn.GroupNorm(4, width), nn.ReLU(), nn.MaxPool2d(2)]

    return nn.Sequential(*stage(3), *stage(width), *stage(width), nn.Flatten(), nn.Linear(width * 25, ways))


class MetaLearner:
    def __init__(self, network, rate, steps):
        self.network, self.rate, self.steps = network, rate, steps

    def loss(self, parameters, images, labels):
        return nn.functional.cross_entropy(functional_call(self.network, parameters, (images,)), labels)

    def adapt(self, parameters, task):
        for _ in range(self.steps):
            gradients = grad(self.loss)(parameters, *task.support)
            parameters = {name: p - self.rate * gradients[name] for name, p in parameters.items()}
        return parameters

    def outer_loss(self, tasks):
        slow = dict(self.network.named_parameters())
        losses = [self.loss(self.adapt(slow, task), *task.query) for task in tasks]
        return torch.stack(losses).mean()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/maml_species_func"))
    parser.add_argument("--rounds", type=int, default=900)
    parser.add_argument("--meta-batch", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    stream = iter(DataLoader(Tasks(args.data / "photos"), batch_size=None, num_workers=1, prefetch_factor=4))
    meta = MetaLearner(learner(5), rate=0.05, steps=2)
    optimizer = torch.optim.Adam(meta.network.parameters(), 1e-3)
    shown = 0.0
    for number in range(args.rounds):
        with lap("wait"):
            tasks = list(islice(stream, args.meta_batch))
        with lap("compute"):
            optimizer.zero_grad(set_to_none=True)
            loss = meta.outer_loss(tasks)
            loss.backward()
            optimizer.step()
        shown = 0.95 * shown + 0.05 * loss.item()
        if number % 20 == 0:
            print(f"round {number}: outer loss {shown:.3f}", flush=True)
    torch.save(meta.network.state_dict(), args.out / "slow_weights.pt")


if __name__ == "__main__":
    main()
