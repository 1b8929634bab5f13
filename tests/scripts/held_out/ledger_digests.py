"""A perceptron whose training must be reproducible to the bit: a ledger holds a digest of the whole state of each step.

Two runs can be compared line by line, and the first line that differs tells the step and what differed in it.
"""

import argparse
import hashlib
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from stopwatch import lap, timed


class Ledger:
    """One line a step: a digest of the batch, the weights, the gradients and the optimizer's moments, each chained to
    the line before."""

    def __init__(self, path: Path, model, optimizer):
        self.file = path.open("w")
        self.model, self.optimizer = model, optimizer
        self.last = b""

    def digest(self, tensors):
        state = hashlib.blake2b(self.last, digest_size=16)
        for tensor in tensors:
            state.update(memoryview(tensor.detach().contiguous().numpy()).cast("B"))
        return state.digest()

    def parts(self, batch):
        weights = list(self.model.parameters())
        moments = [self.optimizer.state[weight] for weight in weights]
        yield "batch", batch
        yield "weights", weights
        yield "gradients", [weight.grad for weight in weights]
        yield "first", [moment["exp_avg"] for moment in moments]
        yield "second", [moment["exp_avg_sq"] for moment in moments]

    def seal(self, step, loss, batch):
        digests = {name: self.digest(tensors) for name, tensors in self.parts(batch)}
        self.last = hashlib.blake2b(b"".join(digests.values()), digest_size=16).digest()
        columns = " ".join(f"{name}={digest.hex()}" for name, digest in digests.items())
        self.file.write(f"{step} {loss!r} {columns}\n")
        self.file.flush()


def load(root: Path, side: int):
    names = sorted(folder.name for folder in root.iterdir() if folder.is_dir())
    images, labels = [], []
    for file in sorted(root.glob("*/*.JPEG")):
        image = Image.open(file)
        image.draft("RGB", (side, side))
        images.append(np.array(image.convert("RGB").resize((side, side), Image.Resampling.BOX)))
        labels.append(names.index(file.parent.name))
    return TensorDataset(torch.from_numpy(np.stack(images)), torch.tensor(labels)), len(names)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/ledger_digests"))
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=64)
    args = parser.parse_args()
    torch.manual_seed(51)
    torch.use_deterministic_algorithms(True)
    args.out.mkdir(parents=True, exist_ok=True)

    photos, classes = load(args.data / "photos", side=32)
    loader = DataLoader(photos, batch_size=args.batch_size, shuffle=True, drop_last=True)
    widths = (3 * 32 * 32, 1536, 1536, 1024)
    layers = [nn.Flatten()]
    for before, after in zip(widths, widths[1:]):
        layers += [nn.Linear(before, after), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(widths[-1], classes))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-4)
    ledger = Ledger(args.out / "ledger.txt", model, optimizer)
    step = 0
    for epoch in range(args.epochs):
        for images, labels in timed(loader, "wait"):
            with lap("compute"):
                loss = nn.functional.cross_entropy(model(images.float() / 127.5 - 1), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            with lap("own"):
                ledger.seal(step, loss.item(), [images, labels])
            step += 1
        print(f"epoch {epoch}: step {step}, loss {loss.item():.4f}, {ledger.last.hex()}", flush=True)


if __name__ == "__main__":
    main()
