"""Lightning: super-resolution on patches. All pictures are in memory as uint8 and num_workers is 0, on purpose."""

import argparse
from pathlib import Path

import lightning as L
import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stopwatch import lap, timed


class Patches(Dataset):
    """A random patch of a picture in memory, and the same at half the size."""

    def __init__(self, root: Path, patch=64, count=250, length=1600):
        self.patch, self.length = patch, length
        files = sorted(root.glob("*/*.JPEG"))
        self.pictures = []
        for path in files[:: max(1, len(files) // count)]:
            image = Image.open(path)
            image.draft("RGB", (200, 200))
            image = image.convert("RGB")
            if min(image.size) >= patch:
                self.pictures.append(torch.from_numpy(np.array(image)).permute(2, 0, 1))

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        picture = self.pictures[torch.randint(len(self.pictures), ()).item()]
        _, height, width = picture.shape
        y = torch.randint(height - self.patch + 1, ()).item()
        x = torch.randint(width - self.patch + 1, ()).item()
        fine = picture[:, y : y + self.patch, x : x + self.patch]
        if torch.rand(()) < 0.5:
            fine = fine.flip(2)
        coarse = fine[:, ::2, ::2]
        return coarse.contiguous(), fine.contiguous()


class TimedLoader(DataLoader):
    def __iter__(self):
        return timed(super().__iter__(), "wait")


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1), nn.ReLU(inplace=True), nn.Conv2d(width, width, 3, padding=1)
        )

    def forward(self, x):
        return x + 0.1 * self.body(x)


class SuperResolution(L.LightningModule):
    def __init__(self, width=40, depth=5, lr=4e-4):
        super().__init__()
        self.save_hyperparameters()
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.Sequential(*[Block(width) for _ in range(depth)])
        self.last = nn.Sequential(nn.Conv2d(width, 12, 3, padding=1), nn.PixelShuffle(2))

    def forward(self, coarse):
        x = self.first(coarse)
        return self.last(x + self.blocks(x))

    def training_step(self, batch, number):
        coarse, fine = (part.float() / 255 for part in batch)
        loss = nn.functional.l1_loss(self(coarse), fine)
        self.log("loss", loss, on_epoch=True, on_step=False)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), self.hparams.lr)


class Watch(L.Callback):
    """A lap of the whole step; one line an epoch."""

    def on_train_batch_start(self, trainer, module, batch, number):
        self.lap = lap("compute")
        self.lap.__enter__()

    def on_train_batch_end(self, trainer, module, outputs, batch, number):
        self.lap.__exit__(None, None, None)

    def on_train_epoch_end(self, trainer, module):
        loss = float(trainer.callback_metrics["loss"])
        print(f"epoch {trainer.current_epoch}: l1 {loss:.4f}", flush=True)
        torch.save(module.state_dict(), Path(trainer.default_root_dir) / "model.pt")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/superres_lightning"))
    parser.add_argument("--epochs", type=int, default=20)
    args = parser.parse_args()
    torch.set_num_threads(1)
    L.seed_everything(4, verbose=False)
    args.out.mkdir(parents=True, exist_ok=True)
    loader = TimedLoader(Patches(args.data / "photos"), batch_size=8, shuffle=True, num_workers=0)
    trainer = L.Trainer(
        max_epochs=args.epochs,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[Watch()],
        default_root_dir=args.out,
    )
    trainer.fit(SuperResolution(), loader)


if __name__ == "__main__":
    main()
