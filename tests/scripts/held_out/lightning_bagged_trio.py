"""Lightning: three networks, each with a loader of its own over its own bootstrap of the pictures; a dict of loaders
and manual optimisation."""

import argparse
from contextlib import ExitStack
from pathlib import Path

import lightning as L
import torch
from lightning.pytorch.loggers import CSVLogger
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset
from torchvision.transforms import functional as tv

from stopwatch import lap


class Bags(L.LightningDataModule):
    def __init__(self, root: Path, members: int, batch: int, side: int = 56):
        super().__init__()
        self.root, self.members, self.batch, self.side = root, members, batch, side

    def setup(self, stage=None):
        images, labels = [], []
        for label, folder in enumerate(sorted(self.root.iterdir())):
            for file in sorted(folder.glob("*.JPEG"))[:150]:
                image = Image.open(file)
                image.draft("RGB", (self.side, self.side))
                images.append(tv.pil_to_tensor(image.convert("RGB").resize((self.side, self.side))))
                labels.append(label)
        self.pictures = TensorDataset(torch.stack(images), torch.tensor(labels))

    def bag(self, member):
        generator = torch.Generator().manual_seed(member)
        sampler = RandomSampler(self.pictures, replacement=True, num_samples=960, generator=generator)
        return DataLoader(self.pictures, self.batch, sampler=sampler, num_workers=0)

    def train_dataloader(self):
        return {f"member{k}": self.bag(k) for k in range(self.members)}


def network(width, classes):
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.GELU(),
        nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.GELU(), nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1), nn.BatchNorm2d(2 * width), nn.GELU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, classes),
    )  # fmt: skip


class Ensemble(L.LightningModule):
    def __init__(self, widths=(16, 20, 24), classes=10):
        super().__init__()
        self.automatic_optimization = False
        self.nets = nn.ModuleList(network(width, classes) for width in widths)

    def configure_optimizers(self):
        return [torch.optim.SGD(net.parameters(), 0.03, momentum=0.9, nesterov=True) for net in self.nets]

    def training_step(self, batch, index):
        for k, (net, optimizer) in enumerate(zip(self.nets, self.optimizers(), strict=True)):
            images, labels = batch[f"member{k}"]
            logits = net(images.float() / 127.5 - 1)
            loss = nn.functional.cross_entropy(logits, labels, label_smoothing=0.1)
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
            self.log(f"loss/{k}", loss.detach())
            self.log(f"accuracy/{k}", (logits.argmax(1) == labels).float().mean())


class Laps(L.Callback):
    def __init__(self):
        self.open = ExitStack()

    def turn(self, name):
        self.open.close()
        self.open.enter_context(lap(name))

    def on_train_batch_start(self, *_):
        self.turn("compute")

    def on_train_batch_end(self, *_):
        self.turn("wait")

    def on_train_end(self, *_):
        self.open.close()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/lightning_bagged_trio"))
    parser.add_argument("--epochs", type=int, default=12)
    args = parser.parse_args()
    torch.set_num_threads(1)
    trainer = L.Trainer(
        accelerator="cpu", max_epochs=args.epochs, logger=CSVLogger(args.out), log_every_n_steps=20,
        callbacks=[Laps()], enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    model = Ensemble()
    trainer.fit(model, datamodule=Bags(args.data / "photos", len(model.nets), batch=12))
    trainer.save_checkpoint(args.out / "trio.ckpt", weights_only=True)


if __name__ == "__main__":
    main()
