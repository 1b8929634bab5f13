"""Scenes as dicts of many small tensors and nested lists, grouped by a batch sampler, handed over as they are."""

import argparse
import random

import torch
import torch.multiprocessing
from stopwatch import lap, timed
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler

torch.multiprocessing.set_sharing_strategy("file_system")  # else: too many open files


class Scenes(Dataset):
    def __init__(self, n):
        rng = random.Random(0)
        self.counts = [rng.randint(8, 16) for _ in range(n)]
        self.pool = torch.rand(4096, 16)
        self.images = torch.rand(64, 3, 32, 32)

    def __len__(self):
        return len(self.counts)

    def __getitem__(self, i):
        count = self.counts[i]
        objects = []
        for k, row in enumerate(self.pool[i : i + count]):
            objects.append({"box": row[:4].clone(), "feature": row.clone(), "label": torch.tensor(k % 5)})
        relations = [[[a, b, (a * b) % 7] for b in range(count)] for a in range(count)]
        return {"image": self.images[i % 64], "objects": objects, "relations": relations, "target": count % 4}


class ByCount(Sampler):
    """Batches of scenes with about as many objects each."""

    def __init__(self, counts, batch_size):
        self.counts, self.batch_size = counts, batch_size

    def __len__(self):
        return len(self.counts) // self.batch_size

    def __iter__(self):
        order = sorted(range(len(self.counts)), key=lambda i: (self.counts[i], random.random()))
        batches = [order[k * self.batch_size : (k + 1) * self.batch_size] for k in range(len(self))]
        random.shuffle(batches)
        return iter(batches)


class SceneNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, stride=2)
        self.embed = nn.Linear(20, 32)
        self.out = nn.Linear(40, 4)

    def forward(self, scenes):
        seen = torch.relu(self.conv(torch.stack([s["image"] for s in scenes]))).mean((2, 3))
        things = [torch.stack([torch.cat([o["box"], o["feature"]]) for o in s["objects"]]) for s in scenes]
        pooled = torch.stack([torch.relu(self.embed(thing)).mean(0) for thing in things])
        return self.out(torch.cat([seen, pooled], 1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", help="not used: the scenes are made in memory")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(1)
    scenes = Scenes(2000)
    sampler = ByCount(scenes.counts, 32)
    loader = DataLoader(scenes, batch_sampler=sampler, collate_fn=list, num_workers=args.workers)
    model = SceneNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        for batch in timed(loader, "wait"):
            with lap("compute"):
                loss = nn.functional.cross_entropy(model(batch), torch.tensor([s["target"] for s in batch]))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
