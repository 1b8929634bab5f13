"""Training on fields of view that one motorised microscope hands over: each worker asks its server by a socket."""

import argparse
import io
import multiprocessing as mp
import os
import tempfile
import time
from multiprocessing.connection import Client, Listener, wait
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from stopwatch import lap, timed
from torch import nn
from torch.utils.data import DataLoader, Dataset

SETTLE = 0.022  # seconds from the order to move until the stage stands still


def serve(address, files, ready):
    """The microscope: one stage, so one field at a time, whoever asks."""
    parent, clients = mp.parent_process(), []
    with Listener(address, "AF_UNIX", backlog=16) as listener:
        ready.set()
        door = listener._listener._socket
        while parent.is_alive():
            for ready_one in wait([door, *clients], timeout=1.0):
                if ready_one is door:
                    clients.append(listener.accept())
                    continue
                try:
                    field = ready_one.recv()
                    time.sleep(SETTLE)
                    ready_one.send_bytes(files[field].read_bytes())
                except (EOFError, OSError):
                    clients.remove(ready_one)


class Fields(Dataset):
    def __init__(self, address, labels, side=64):
        self.address, self.labels, self.side = address, labels, side
        self.link = None

    def __len__(self):
        return len(self.labels)

    def acquire(self, field):
        if self.link is None:
            self.link = Client(self.address, "AF_UNIX")
        self.link.send(field)
        return self.link.recv_bytes()

    def __getitem__(self, field):
        with lap("blocked"):
            blob = self.acquire(field)
        with lap("decode"):
            view = Image.open(io.BytesIO(blob))
            view.draft("RGB", (self.side * 2, self.side * 2))
            view = view.convert("RGB").resize((self.side, self.side))
        return torch.from_numpy(np.array(view)).permute(2, 0, 1), self.labels[field]


def train(model, loader, epochs):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(epochs):
        right = seen = 0
        for views, labels in timed(loader, "wait"):
            with lap("compute"):
                logits = model(views.float().div_(255))
                loss = nn.functional.cross_entropy(logits, labels)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
            right += int((logits.argmax(1) == labels).sum())
            seen += len(labels)
        print(f"epoch {epoch}: {right / seen:.1%} of {seen} fields", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--fields", type=int, default=480, help="an epoch's")
    parser.add_argument("--epochs", type=int, default=20)
    args = parser.parse_args()

    files = sorted((args.data / "photos").glob("*/*.[jJ]*"))
    names = sorted({file.parent.name for file in files})
    files = [files[n % len(files)] for n in range(args.fields)]
    with tempfile.TemporaryDirectory(prefix="microscope-") as folder:
        address, ready = os.path.join(folder, "stage"), mp.Event()
        microscope = mp.Process(target=serve, args=(address, files, ready), daemon=True)
        microscope.start()
        ready.wait()
        fields = Fields(address, [names.index(file.parent.name) for file in files])
        loader = DataLoader(fields, batch_size=16, shuffle=True, num_workers=2, persistent_workers=True)
        model = nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=2), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(),
            nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Dropout(0.2), nn.Linear(128, len(names)),
        )  # fmt: skip
        train(model, loader, args.epochs)
        microscope.terminate()


if __name__ == "__main__":
    main()
