"""Lightning on random tensors kept in memory: a MobileNetV2 is what takes the time."""

import argparse
from contextlib import ExitStack

import lightning as L
import torch
from lightning.pytorch.loggers import CSVLogger
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from torchvision.models import mobilenet_v2

from stopwatch import lap


class LitMobileNet(L.LightningModule):
    def __init__(self, classes: int = 10, lr: float = 0.05):
        super().__init__()
        self.save_hyperparameters()
        self.model = mobilenet_v2(weights=None, num_classes=classes)

    def forward(self, x):
        return self.model(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.hparams.lr, momentum=0.9)


class Stopwatch(L.Callback):
    """`compute` is a whole training step, `wait` all between one step and the next."""

    laps = ExitStack()

    def on_train_batch_start(self, *args):
        self.laps.close()
        self.laps.enter_context(lap("compute"))

    def on_train_batch_end(self, *args):
        self.laps.close()
        self.laps.enter_context(lap("wait"))

    def on_train_end(self, *args):
        self.laps.close()


parser = argparse.ArgumentParser()
parser.add_argument("data", help="not read: the tensors are random")
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--out", default="runs/lightning_compute_random")

if __name__ == "__main__":
    args = parser.parse_args()
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(1024, 3, 96, 96), torch.randint(10, (1024,)))
    loader = DataLoader(data, batch_size=args.batch_size, shuffle=True)
    trainer = L.Trainer(
        max_epochs=args.epochs,
        accelerator="cpu",
        logger=CSVLogger(args.out),
        enable_checkpointing=False,
        log_every_n_steps=5,
        callbacks=[Stopwatch()],
    )
    trainer.fit(LitMobileNet(), loader)
