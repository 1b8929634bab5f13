"""A graph of patches: which class is each from? A GCN on the whole graph at once, one step an epoch, no batches."""

import argparse
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from stopwatch import lap
from torch import nn

GRID, PATCH = 6, 8


def patches(photos: Path, each=60):
    """Each photograph as 36 patches of 8 x 8; of a patch its frequencies, of all colours."""
    waves = np.cos(np.pi * (np.arange(PATCH) + 0.5)[:, None] * np.arange(4) / PATCH)
    features, labels = [], []
    for label, folder in enumerate(sorted(p for p in photos.iterdir() if p.is_dir())):
        for file in sorted(folder.iterdir())[:each]:
            image = Image.open(file)
            image.draft("RGB", (128, 128))
            pixels = np.asarray(image.convert("RGB").resize((GRID * PATCH, GRID * PATCH)), np.float64) / 127.5 - 1
            cells = pixels.reshape(GRID, PATCH, GRID, PATCH, 3).transpose(0, 2, 4, 1, 3)
            cells = waves.T @ cells @ waves
            features.append(cells.reshape(GRID * GRID, -1).astype(np.float32))
            labels += [label] * GRID * GRID
    return torch.from_numpy(np.concatenate(features)), torch.tensor(labels)


def edges(features, views=6, seed=0):
    """Neighbours in a photograph, and nodes next to each other along some random directions."""
    count = len(features)
    number = torch.arange(count).view(-1, GRID, GRID)
    pairs = [(number[:, :, 1:], number[:, :, :-1]), (number[:, 1:], number[:, :-1])]
    directions = torch.randn(features.shape[1], views, generator=torch.Generator().manual_seed(seed))
    for order in (features @ directions).argsort(0).T:
        pairs.append((order[1:], order[:-1]))
    ends = torch.stack([torch.cat([a.flatten() for a, _ in pairs]), torch.cat([b.flatten() for _, b in pairs])])
    return torch.cat([ends, ends.flip(0), number.flatten().repeat(2, 1)], 1)


def normalised(ends, count):
    """The adjacency with loops, each edge over the root of its nodes' degrees."""
    degree = torch.bincount(ends[0], minlength=count).float().rsqrt()
    return torch.sparse_coo_tensor(ends, degree[ends[0]] * degree[ends[1]], (count, count)).coalesce()


class GCN(nn.Module):
    def __init__(self, inputs, classes, width=128, layers=3, dropout=0.3):
        super().__init__()
        sizes = [inputs] + [width] * layers
        self.layers = nn.ModuleList([nn.Linear(a, b) for a, b in zip(sizes, sizes[1:])])
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(layers)])
        self.head, self.dropout = nn.Linear(layers * width, classes), nn.Dropout(dropout)

    def forward(self, x, adjacency):
        kept = []
        for layer, norm in zip(self.layers, self.norms):
            x = self.dropout(torch.relu(norm(torch.sparse.mm(adjacency, layer(x)))))
            kept.append(x)
        return self.head(torch.cat(kept, 1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/patch_graph_gcn"))
    parser.add_argument("--epochs", type=int, default=2000)
    parser.add_argument("--each", type=int, default=15, help="photographs of each class")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)

    x, y = patches(args.data / "photos", args.each)
    x = (x - x.mean(0)) / (x.std(0) + 1e-6)
    adjacency = normalised(edges(x), len(x))
    known = torch.rand(len(y) // GRID**2) < 0.3
    train, test = known.repeat_interleave(GRID**2), ~known.repeat_interleave(GRID**2)
    model = GCN(x.shape[1], int(y.max()) + 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3, weight_decay=5e-4)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)
    best = 0.0
    for epoch in range(args.epochs):
        with lap("compute"):
            model.train()
            loss = nn.functional.cross_entropy(model(x, adjacency)[train], y[train])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            cosine.step()
        if epoch % 10 == 0:
            with lap("compute"), torch.no_grad():
                model.eval()
                right = (model(x, adjacency).argmax(1) == y)[test].float().mean().item()
            if right > best:
                best = right
                torch.save(model.state_dict(), args.out / "gcn.pt")
            print(f"epoch {epoch}: loss {loss.item():.3f}, test {right:.3f}, best {best:.3f}", flush=True)


if __name__ == "__main__":
    main()
