"""Accelerate: photographs are found by their palette. Two towers learn it, and torchmetrics follows how well each
query of a batch finds the photographs of its class."""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MetricCollection, retrieval

from stopwatch import lap, timed


def load(photos: Path, side=48, each=48, colours=12):
    """Thumbnails, and the commonest colours of each as its query."""
    images, palettes, labels = [], [], []
    for label, folder in enumerate(sorted(path for path in photos.iterdir() if path.is_dir())):
        for file in sorted(folder.glob("*.JPEG"))[:each]:
            image = Image.open(file)
            image.draft("RGB", (side, side))
            image = image.convert("RGB").resize((side, side))
            few = image.resize((16, 16)).quantize(colours)
            palette = np.zeros(3 * colours, np.float32)
            found = np.array(few.getpalette()[: 3 * colours], np.float32) / 255
            palette[: len(found)] = found
            images.append(np.asarray(image))
            palettes.append(palette)
            labels.append(label)
    pixels = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).contiguous()
    return TensorDataset(pixels, torch.from_numpy(np.stack(palettes)), torch.tensor(labels))


class Towers(nn.Module):
    def __init__(self, colours=12, width=64):
        super().__init__()
        self.photo = nn.Sequential(
            nn.Conv2d(3, 24, 3, 2, 1),
            nn.BatchNorm2d(24),
            nn.ReLU(),
            nn.Conv2d(24, width, 3, 2, 1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(width, width),
        )
        self.query = nn.Sequential(nn.Linear(3 * colours, 128), nn.ReLU(), nn.Linear(128, width))
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, images, palettes):
        photos = nn.functional.normalize(self.photo(images.float() / 127.5 - 1), dim=1)
        queries = nn.functional.normalize(self.query(palettes), dim=1)
        return self.scale.exp() * queries @ photos.T


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/accelerate_search_metrics"))
    parser.add_argument("--epochs", type=int, default=300)
    parser.add_argument("--batch-size", type=int, default=64)
    args = parser.parse_args()
    torch.manual_seed(78)
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)

    accelerator = Accelerator(cpu=True)
    loader = DataLoader(load(args.data / "photos"), args.batch_size, shuffle=True, drop_last=True)
    model = Towers()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    metrics = MetricCollection(
        {
            "map": retrieval.RetrievalMAP(),
            "ndcg": retrieval.RetrievalNormalizedDCG(),
            "mrr": retrieval.RetrievalMRR(),
            "hit5": retrieval.RetrievalHitRate(top_k=5),
            "recall10": retrieval.RetrievalRecall(top_k=10),
        }
    )
    with (args.out / "steps.jsonl").open("w") as file:
        for epoch in range(args.epochs):
            metrics.reset()
            for step, (images, palettes, labels) in enumerate(timed(loader, "wait")):
                with lap("compute"):
                    scores = model(images, palettes)
                    places = torch.arange(len(labels))
                    loss = nn.functional.cross_entropy(scores, places)
                    loss = (loss + nn.functional.cross_entropy(scores.T, places)) / 2
                    accelerator.backward(loss)
                    optimizer.step()
                    optimizer.zero_grad()
                with lap("own"):
                    relevant = labels[:, None] == labels[None]
                    queries = (step * args.batch_size + places)[:, None].expand_as(relevant)
                    values = metrics(scores.detach(), relevant, indexes=queries)
                    line = {"epoch": epoch, "step": step, "loss": loss.item()}
                    file.write(json.dumps(line | {name: value.item() for name, value in values.items()}) + "\n")
            accelerator.print(f"epoch {epoch}: loss {loss.item():.4f}, map {values['map']:.3f}", flush=True)
            accelerator.save_model(model, str(args.out))


if __name__ == "__main__":
    main()
