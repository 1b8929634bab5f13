"""Metric learning with triplets; the retrieval is evaluated every few steps, in Python, and that takes long."""

import argparse
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from stopwatch import lap, timed
from torch import nn
from torch.utils.data import DataLoader, Dataset


def read_photos(root, side, limit):
    images, labels = [], []
    for label, folder in enumerate(sorted(path for path in root.iterdir() if path.is_dir())):
        for path in sorted(folder.iterdir())[:limit]:
            image = Image.open(path)
            image.draft("RGB", (side, side))
            images.append(np.array(image.convert("RGB").resize((side, side)), dtype=np.float32).transpose(2, 0, 1))
            labels.append(label)
    return torch.from_numpy(np.stack(images)) / 255, np.array(labels)


class Triplets(Dataset):
    """An anchor, another of its class, one of another class."""

    def __init__(self, images, labels):
        self.images, self.labels = images, labels
        self.by_class = [np.flatnonzero(labels == c) for c in np.unique(labels)]
        self.others = [np.flatnonzero(labels != c) for c in np.unique(labels)]

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        c = self.labels[i]
        positive, negative = np.random.choice(self.by_class[c]), np.random.choice(self.others[c])
        return self.images[i], self.images[positive], self.images[negative]


class Embedder(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=2),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(3),
        )
        self.proj = nn.Linear(288, dim)

    def forward(self, x):
        return F.normalize(self.proj(self.body(x).flatten(1)), dim=1)


def average_precision(ranking, relevant):
    hits, total = 0, 0.0
    for rank, candidate in enumerate(ranking, start=1):
        if candidate in relevant:
            hits += 1
            total += hits / rank
    return total / max(1, len(relevant))


@torch.no_grad()
def evaluate(model, images, labels):
    """Mean average precision over all queries against all photographs."""
    model.eval()
    embeddings = torch.cat([model(chunk) for chunk in images.split(256)])
    similarity = (embeddings @ embeddings.T).tolist()
    labels = labels.tolist()
    precisions = []
    for query, scores in enumerate(similarity):
        relevant = {i for i, label in enumerate(labels) if label == labels[query] and i != query}
        candidates = [i for i in range(len(scores)) if i != query]
        ranking = sorted(candidates, key=lambda i: -scores[i])
        precisions.append(average_precision(ranking, relevant))
    model.train()
    return sum(precisions) / len(precisions)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/retrieval_eval_steps"))
    parser.add_argument("--max-steps", type=int, default=320)
    parser.add_argument("--eval-steps", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=16)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(2)
    np.random.seed(2)

    images, labels = read_photos(args.data / "photos", side=48, limit=200)
    loader = DataLoader(Triplets(images, labels), batch_size=args.batch_size, shuffle=True, drop_last=True)
    model = Embedder(32)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    criterion = nn.TripletMarginLoss(margin=0.3)
    args.out.mkdir(parents=True, exist_ok=True)
    step, best = 0, 0.0
    while step < args.max_steps:
        for anchor, positive, negative in timed(loader, "wait"):
            with lap("compute"):
                loss = criterion(model(anchor), model(positive), model(negative))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            step += 1
            if step % args.eval_steps == 0:
                with lap("own"):
                    score = evaluate(model, images, labels)
                print(f"step {step}: loss {loss.item():.3f}, mAP {score:.4f}", flush=True)
                if score > best:
                    best = score
                    torch.save(model.state_dict(), args.out / "best.pt")
            if step >= args.max_steps:
                break


if __name__ == "__main__":
    main()
