"""A trainer class with callbacks, one of which keeps the last checkpoints, packed by xz as disk space is scarce."""

import argparse
import io
import lzma
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from stopwatch import lap, timed


class Callback:
    def on_fit_begin(self, trainer): ...

    def on_batch_end(self, trainer): ...

    def on_epoch_end(self, trainer): ...


class Printer(Callback):
    def on_epoch_end(self, trainer):
        print(f"epoch {trainer.epoch}: loss {trainer.loss:.4f} after {trainer.step} steps", flush=True)


class WarmUp(Callback):
    def __init__(self, steps, rate):
        self.steps, self.rate = steps, rate

    def on_batch_end(self, trainer):
        for group in trainer.optimizer.param_groups:
            group["lr"] = self.rate * min(1.0, (trainer.step + 1) / self.steps)


class Checkpointer(Callback):
    def __init__(self, folder: Path, every=4, keep=3, preset=3):
        self.folder, self.every, self.keep, self.preset = folder, every, keep, preset
        self.written = []

    def on_fit_begin(self, trainer):
        self.folder.mkdir(parents=True, exist_ok=True)

    def on_batch_end(self, trainer):
        if trainer.step % self.every == 0:
            self.save(trainer)

    def save(self, trainer):
        buffer = io.BytesIO()
        state = {"model": trainer.model.state_dict(), "optimizer": trainer.optimizer.state_dict()}
        torch.save({**state, "step": trainer.step, "time": time.time()}, buffer)
        path = self.folder / f"step-{trainer.step:06d}.pt.xz"
        path.write_bytes(lzma.compress(buffer.getvalue(), preset=self.preset))
        self.written.append(path)
        while len(self.written) > self.keep:
            self.written.pop(0).unlink(missing_ok=True)


class Trainer:
    def __init__(self, model, optimizer, criterion, callbacks):
        self.model, self.optimizer, self.criterion, self.callbacks = model, optimizer, criterion, callbacks
        self.step, self.epoch, self.loss = 0, 0, float("nan")

    def fire(self, event):
        for callback in self.callbacks:
            getattr(callback, event)(self)

    def train_batch(self, images, labels):
        self.optimizer.zero_grad()
        loss = self.criterion(self.model(images.float().div_(255)), labels)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def fit(self, loader, epochs):
        self.fire("on_fit_begin")
        for self.epoch in range(epochs):
            for images, labels in timed(loader, "wait"):
                with lap("compute"):
                    self.loss = self.train_batch(images, labels)
                self.step += 1
                with lap("own"):
                    self.fire("on_batch_end")
            self.fire("on_epoch_end")


def load_thumbnails(root: Path, side=48, limit=1500):
    files = sorted(root.glob("*/*.*"))
    names = sorted({path.parent.name for path in files})
    images, labels = [], []
    for path in files[:: max(1, len(files) // limit)]:
        image = Image.open(path)
        image.draft("RGB", (side, side))
        images.append(np.array(image.convert("RGB").resize((side, side))))
        labels.append(names.index(path.parent.name))
    return TensorDataset(torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).contiguous(), torch.tensor(labels))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/trainer_callbacks_xz"))
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--save-every", type=int, default=4)
    args = parser.parse_args()
    torch.manual_seed(2)
    torch.set_num_threads(1)

    loader = DataLoader(load_thumbnails(args.data / "photos"), args.batch_size, shuffle=True, drop_last=True)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, 2, 1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 12 * 12, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    callbacks = [WarmUp(100, 1e-3), Checkpointer(args.out, args.save_every), Printer()]
    Trainer(model, optimizer, nn.CrossEntropyLoss(), callbacks).fit(loader, args.epochs)


if __name__ == "__main__":
    main()
