"""Lightning: metric learning on thumbnails (triplets mined in the batch), with a map of the embedding that the web page
beside the run shows: every few steps the recent photographs are laid out anew by t-SNE."""

import argparse
import json
from collections import deque
from contextlib import ExitStack
from pathlib import Path

import lightning as L
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from PIL import Image
from sklearn.manifold import TSNE
from stopwatch import lap
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset


class Thumbnails(Dataset):
    def __init__(self, root, each=70, side=48):
        self.images, self.labels = [], []
        for label, folder in enumerate(sorted(root.iterdir())):
            for file in sorted(folder.glob("*.JPEG"))[:each]:
                with Image.open(file) as photo:
                    photo.draft("RGB", (side, side))
                    pixels = np.array(photo.convert("RGB").resize((side + 8, side + 8), Image.Resampling.BILINEAR))
                self.images.append(torch.from_numpy(pixels).permute(2, 0, 1).contiguous())
                self.labels.append(label)
        self.side = side

    def __len__(self):
        return 12 * len(self.images)

    def __getitem__(self, index):
        index %= len(self.images)
        top, left = torch.randint(9, (2,)).tolist()
        image = self.images[index][:, top : top + self.side, left : left + self.side]
        return (image.flip(2) if torch.rand(()) < 0.5 else image), self.labels[index]


class Embedder(L.LightningModule):
    def __init__(self, size=32, margin=0.2):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(
            nn.Conv2d(3, 24, 3, stride=2, padding=1), nn.BatchNorm2d(24), nn.ReLU(),
            nn.Conv2d(24, 48, 3, stride=2, padding=1), nn.BatchNorm2d(48), nn.ReLU(),
            nn.Conv2d(48, 64, 3, stride=2, padding=1), nn.ReLU(),
            nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(256, size),
        )  # fmt: skip
        self.laps = ExitStack()

    def turn(self, name):
        self.laps.close()
        self.laps.enter_context(lap(name))

    def on_train_batch_start(self, batch, batch_idx):
        self.turn("compute")

    def training_step(self, batch, batch_idx):
        images, labels = batch
        places = F.normalize(self.net(images.float() / 127.5 - 1))
        distances = torch.cdist(places, places)
        same = labels[:, None] == labels[None]
        farthest = distances.masked_fill(~same, 0).amax(1)
        nearest = distances.masked_fill(same, 9).amin(1)
        loss = F.relu(farthest - nearest + self.hparams.margin).mean()
        self.log("triplet", loss)
        return {"loss": loss, "places": places.detach()}

    def configure_optimizers(self):
        return torch.optim.NAdam(self.parameters(), lr=1e-3)


class LivingMap(Callback):
    def __init__(self, file, every=8, last=240):
        self.file, self.every = file, every
        self.places, self.labels, self.before = deque(maxlen=last), deque(maxlen=last), None

    def lay_out(self):
        layout = TSNE(2, perplexity=20, init="pca", max_iter=500, random_state=0).fit_transform(np.stack(self.places))
        layout -= layout.min(0)
        return (layout / layout.max(0)).round(3)

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        module.turn("own")
        self.places.extend(outputs["places"].numpy())
        self.labels.extend(batch[1].tolist())
        if batch_idx % self.every == self.every - 1:
            points = [[*place, label] for place, label in zip(self.lay_out().tolist(), self.labels)]
            self.file.write_text(json.dumps({"step": trainer.global_step, "points": points}))
        module.turn("wait")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/lightning_tsne_map"))
    parser.add_argument("--epochs", type=int, default=200)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    L.seed_everything(9)
    torch.set_num_threads(1)
    loader = DataLoader(Thumbnails(args.data / "photos"), 32, shuffle=True, num_workers=0)
    trainer = L.Trainer(
        accelerator="cpu", max_epochs=args.epochs, logger=CSVLogger(args.out), log_every_n_steps=25,
        callbacks=[LivingMap(args.out / "map.json"), ModelCheckpoint(save_top_k=1)], default_root_dir=args.out,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Embedder(), loader)


if __name__ == "__main__":
    main()
