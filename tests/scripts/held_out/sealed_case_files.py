"""Ignite: photographs of cases that may lie on the disk only under seal. Every case has a salt of its own; key and
file are opened in the worker, so that no plain picture is ever written."""

import argparse
import hashlib
import io
import os
import random
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from ignite.engine import Engine, Events
from ignite.handlers import ModelCheckpoint
from ignite.metrics import RunningAverage
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stopwatch import lap


class Vault:
    """Files of the form salt (16 bytes), nonce (12 bytes), sealed content."""

    def __init__(self, folder: Path, phrase: str, rounds: int):
        self.folder, self.phrase, self.rounds = folder, phrase.encode(), rounds

    def derive_key(self, salt: bytes) -> bytes:
        return hashlib.pbkdf2_hmac("sha256", self.phrase, salt, self.rounds, dklen=32)

    def seal_case(self, case: str, files: list[Path]):
        salt = os.urandom(16)
        cipher = AESGCM(self.derive_key(salt))
        (self.folder / case).mkdir(parents=True, exist_ok=True)
        for file in files:
            nonce = os.urandom(12)
            sealed = cipher.encrypt(nonce, file.read_bytes(), case.encode())
            (self.folder / case / f"{file.stem}.sealed").write_bytes(salt + nonce + sealed)

    def unseal(self, path: Path) -> bytes:
        content = path.read_bytes()
        cipher = AESGCM(self.derive_key(content[:16]))
        return cipher.decrypt(content[16:28], content[28:], path.parent.name.encode())


class Cases(Dataset):
    def __init__(self, vault: Vault, side: int):
        self.vault, self.side = vault, side
        self.paths = sorted(vault.folder.glob("*/*.sealed"))
        self.kinds = sorted({path.parent.name.split("-")[0] for path in self.paths})

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        path = self.paths[index]
        image = Image.open(io.BytesIO(self.vault.unseal(path)))
        image.draft("RGB", (2 * self.side, 2 * self.side))
        image = image.convert("RGB").resize((self.side, self.side), Image.Resampling.BILINEAR)
        if random.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)
        return pixels, self.kinds.index(path.parent.name.split("-")[0])


def network(kinds):
    layers, width = [], 3
    for out in (16, 32, 48):
        layers += [nn.Conv2d(width, out, 3, stride=2, padding=1), nn.BatchNorm2d(out), nn.SiLU()]
        width = out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.1), nn.Linear(width, kinds))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/sealed_case_files"))
    parser.add_argument("--epochs", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=130_000)
    args = parser.parse_args()

    vault = Vault(args.out / "vault", os.environ.get("CASE_PHRASE", "correct horse battery staple"), args.rounds)
    for folder in sorted((args.data / "photos").iterdir()):
        files = sorted(folder.glob("*.JPEG"))[:60]
        for number in range(6):
            vault.seal_case(f"{folder.name}-{number}", files[number::6])

    cases = Cases(vault, side=64)
    loader = DataLoader(cases, 8, shuffle=True, num_workers=2, persistent_workers=True, drop_last=True)
    model = network(len(cases.kinds))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)

    def update(engine, batch):
        with lap("compute"):
            images, kinds = batch
            loss = nn.functional.cross_entropy(model(images.float() / 127.5 - 1), kinds)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss.item()

    trainer, waiting = Engine(update), ExitStack()
    RunningAverage(output_transform=lambda loss: loss).attach(trainer, "loss")
    trainer.add_event_handler(Events.GET_BATCH_STARTED, lambda: waiting.enter_context(lap("wait")))
    trainer.add_event_handler(Events.GET_BATCH_COMPLETED, waiting.close)
    saver = ModelCheckpoint(args.out, "cases", n_saved=1, require_empty=False)
    trainer.add_event_handler(Events.EPOCH_COMPLETED(every=5), saver, {"model": model})

    @trainer.on(Events.EPOCH_COMPLETED)
    def report(engine):
        print(f"epoch {engine.state.epoch}: loss {engine.state.metrics['loss']:.4f}", flush=True)

    trainer.run(loader, max_epochs=args.epochs)


if __name__ == "__main__":
    main()
