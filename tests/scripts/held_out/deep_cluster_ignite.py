"""Ignite: DeepCluster on small photographs, without labels: features are put in clusters, and the clusters learnt."""

import argparse
import warnings
from pathlib import Path

import numpy as np
import torch
from ignite.engine import Engine, Events
from ignite.handlers import ModelCheckpoint, global_step_from_engine
from ignite.metrics import Accuracy, RunningAverage
from PIL import Image
from sklearn.cluster import KMeans
from sklearn.preprocessing import normalize
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stopwatch import lap, timed

warnings.filterwarnings("ignore", category=UserWarning)


class Numbered(Dataset):
    """Photographs in memory with their numbers, as the labels are made while we learn."""

    def __init__(self, root: Path, side=40):
        self.images = []
        for path in sorted(root.glob("*/*.JPEG")):
            image = Image.open(path)
            image.draft("RGB", (side, side))
            self.images.append(torch.from_numpy(np.array(image.convert("RGB").resize((side, side)))).permute(2, 0, 1))

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = self.images[index]
        return index, image.flip(2) if torch.rand(()) < 0.5 else image


class TimedLoader(DataLoader):
    def __iter__(self):
        return timed(super().__iter__(), "wait")


class Clusterer(nn.Module):
    def __init__(self, clusters, width=64):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 24, 5, stride=2, padding=2),
            nn.BatchNorm2d(24),
            nn.ReLU(),
            nn.Conv2d(24, 48, 3, stride=2, padding=1),
            nn.BatchNorm2d(48),
            nn.ReLU(),
            nn.Conv2d(48, width, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        self.head = nn.Linear(width, clusters)

    def forward(self, images):
        features = self.body(images.float() / 127.5 - 1)
        return features, self.head(features)


def pseudo_labels(bank, clusters, tries, seed):
    found = KMeans(clusters, n_init=tries, max_iter=60, random_state=seed).fit(normalize(bank))
    return found.labels_.astype(np.int64), found.inertia_


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/deep_cluster_ignite"))
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=48)
    parser.add_argument("--clusters", type=int, default=100)
    parser.add_argument("--tries", type=int, default=5)
    parser.add_argument("--every", type=int, default=4, help="steps between clusterings")
    args = parser.parse_args()
    torch.manual_seed(33)
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)

    photos = Numbered(args.data / "photos")
    loader = TimedLoader(photos, batch_size=args.batch_size, shuffle=True, drop_last=True)
    model = Clusterer(args.clusters)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9, weight_decay=1e-5)
    bank = np.random.default_rng(33).random((len(photos), 64), np.float32)
    labels = torch.randint(args.clusters, (len(photos),))

    def update(engine, batch):
        with lap("compute"):
            model.train()
            numbers, images = batch
            features, scores = model(images)
            loss = nn.functional.cross_entropy(scores, labels[numbers])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        bank[numbers.numpy()] = features.detach().numpy()
        return {"loss": loss.item(), "y_pred": scores.detach(), "y": labels[numbers]}

    trainer = Engine(update)
    RunningAverage(output_transform=lambda output: output["loss"]).attach(trainer, "loss")
    Accuracy(output_transform=lambda output: (output["y_pred"], output["y"])).attach(trainer, "agreement")

    @trainer.on(Events.ITERATION_COMPLETED(every=args.every))
    def recluster(engine):
        with lap("own"):
            found, engine.state.inertia = pseudo_labels(bank, args.clusters, args.tries, engine.state.iteration)
            labels.copy_(torch.from_numpy(found))
        with lap("compute"):
            nn.init.normal_(model.head.weight, std=0.02)

    @trainer.on(Events.EPOCH_COMPLETED)
    def tell(engine):
        values = engine.state.metrics
        print(
            f"epoch {engine.state.epoch}: loss {values['loss']:.4f}, agreement {values['agreement']:.1%}, "
            f"inertia {engine.state.inertia:.1f}",
            flush=True,
        )

    keep = ModelCheckpoint(
        str(args.out),
        "cluster",
        n_saved=1,
        require_empty=False,
        global_step_transform=global_step_from_engine(trainer),
    )
    trainer.add_event_handler(Events.EPOCH_COMPLETED, keep, {"model": model})
    trainer.run(loader, max_epochs=args.epochs)


if __name__ == "__main__":
    main()
