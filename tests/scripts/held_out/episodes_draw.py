"""Prototypical networks on thumbnails; the episodes are drawn from classes that are hard for each other."""

import argparse
from pathlib import Path

import cv2
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler

from stopwatch import lap, timed


class Thumbnails(Dataset):
    def __init__(self, root: Path, side=48):
        self.pictures, self.labels = [], []
        for label, folder in enumerate(sorted(p for p in root.iterdir() if p.is_dir())):
            for path in sorted(folder.iterdir())[:100]:
                picture = cv2.imread(str(path), cv2.IMREAD_REDUCED_COLOR_8)
                self.pictures.append(cv2.resize(picture, (side, side)))
                self.labels.append(label)
        self.labels = np.array(self.labels)

    def __len__(self):
        return len(self.pictures)

    def __getitem__(self, index):
        picture = self.pictures[index]
        if np.random.rand() < 0.5:
            picture = picture[:, ::-1]
        return torch.from_numpy(np.ascontiguousarray(picture)).permute(2, 0, 1).float() / 255, self.labels[index]


class HardEpisodes(Sampler):
    """Episodes of `ways` classes with `shots + queries` pictures each.

    For every class the pictures nearest to a random anchor of another class are preferred, so that an episode
    holds pictures that are easily mistaken for one another.
    """

    def __init__(self, data: Thumbnails, ways, shots, queries, episodes):
        self.labels = data.labels
        tiny = np.stack([cv2.resize(p, (16, 16)) for p in data.pictures]).astype(np.float32)
        self.features = tiny.reshape(len(tiny), -1) / 255
        self.ways, self.each, self.episodes = ways, shots + queries, episodes

    def __len__(self):
        return self.episodes

    def distances(self, anchor):
        return ((self.features - self.features[anchor]) ** 2).sum(1)

    def draw(self):
        ways = np.random.permutation(self.labels.max() + 1)[: self.ways]
        batch = []
        for way in ways:
            members = np.flatnonzero(self.labels == way)
            others = np.flatnonzero(np.isin(self.labels, ways) & (self.labels != way))
            anchors = np.random.choice(others, 12, replace=False)
            nearness = np.mean([self.distances(a) for a in anchors], 0)[members]
            ranks = nearness.argsort().argsort()
            chances = np.exp(-ranks / 25.0)
            batch += list(np.random.choice(members, self.each, replace=False, p=chances / chances.sum()))
        return batch

    def __iter__(self):
        for _ in range(self.episodes):
            with lap("draw"):
                batch = self.draw()
            yield batch


def encoder(width=24):
    layers, inputs = [], 3
    for _ in range(3):
        layers += [nn.Conv2d(inputs, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2)]
        inputs = width
    return nn.Sequential(*layers, nn.Flatten())


def episode_loss(model, images, ways, shots, queries):
    z = model(images).view(ways, shots + queries, -1)
    prototypes = z[:, :shots].mean(1)
    logits = -(torch.cdist(z[:, shots:].reshape(ways * queries, -1), prototypes) ** 2)
    target = torch.arange(ways).repeat_interleave(queries)
    return nn.functional.cross_entropy(logits, target), (logits.argmax(1) == target).float().mean()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/episodes_draw"))
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--ways", type=int, default=5)
    parser.add_argument("--shots", type=int, default=3)
    parser.add_argument("--queries", type=int, default=4)
    args = parser.parse_args()
    torch.set_num_threads(1)
    np.random.seed(11)
    args.out.mkdir(parents=True, exist_ok=True)
    data = Thumbnails(args.data / "photos")
    episodes = HardEpisodes(data, args.ways, args.shots, args.queries, 100)
    loader = DataLoader(data, batch_sampler=episodes, num_workers=1, persistent_workers=True)
    model = encoder()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for epoch in range(args.epochs):
        right = []
        for images, _ in timed(loader, "wait"):
            with lap("compute"):
                loss, accuracy = episode_loss(model, images, args.ways, args.shots, args.queries)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            with lap("own"):
                right.append(accuracy.item())
        print(f"epoch {epoch}: episode accuracy {np.mean(right):.3f}", flush=True)
        torch.save(model.state_dict(), args.out / "encoder.pt")


if __name__ == "__main__":
    main()
