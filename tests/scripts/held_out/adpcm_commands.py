"""Spoken-command style classification on clips kept as IMA ADPCM, the codec of the recorder that we use in the field.

A clip is one second at 8 kHz; the class is the contour of its pitch. Clips that do not exist yet are synthesised once.
"""

import argparse
import struct
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stopwatch import lap, timed

RATE = 8000
CONTOURS = ["rise", "fall", "flat", "dip", "bump", "warble"]
MOVES = [-1, -1, -1, -1, 2, 4, 6, 8] * 2
STEPS = [7]
while len(STEPS) < 89:
    STEPS.append(min(32767, max(STEPS[-1] + 1, round(STEPS[-1] * 1.1))))


def synthesise(label, rng):
    t = np.arange(RATE) / RATE
    curve = {
        "rise": t, "fall": 1 - t, "flat": 0.5 + 0 * t, "dip": 2 * abs(t - 0.5), "bump": 1 - 2 * abs(t - 0.5),
        "warble": 0.5 + 0.5 * np.sin(2 * np.pi * 5 * t),
    }[CONTOURS[label]]  # fmt: skip
    pitch = rng.uniform(150, 400) * (1 + curve)
    voice = np.sin(2 * np.pi * np.cumsum(pitch) / RATE) + 0.4 * np.sin(4 * np.pi * np.cumsum(pitch) / RATE)
    return (6000 * voice * np.hanning(RATE) + rng.normal(0, 400, RATE)).clip(-32768, 32767).astype(int)


def encode(samples):
    predicted, index, codes = 0, 0, []
    for sample in samples.tolist():
        step, difference = STEPS[index], sample - predicted
        code = 8 if difference < 0 else 0
        code |= min(7, 4 * abs(difference) // step)
        change = (2 * (code & 7) + 1) * step >> 3
        predicted = max(-32768, min(32767, predicted - change if code & 8 else predicted + change))
        index = max(0, min(88, index + MOVES[code]))
        codes.append(code)
    return bytes(low | high << 4 for low, high in zip(codes[::2], codes[1::2]))


def decode(data):
    """Nibbles back to samples in -1 to 1, low nibble first."""
    predicted, index, samples = 0, 0, []
    for byte in data:
        for code in (byte & 15, byte >> 4):
            change = (2 * (code & 7) + 1) * STEPS[index] >> 3
            predicted = predicted - change if code & 8 else predicted + change
            predicted = max(-32768, min(32767, predicted))
            index = max(0, min(88, index + MOVES[code]))
            samples.append(predicted)
    return torch.tensor(samples, dtype=torch.float32) / 32768


class Clips(Dataset):
    def __init__(self, folder, count):
        folder.mkdir(parents=True, exist_ok=True)
        self.files = [folder / f"{number:04d}.adp" for number in range(count)]
        for number, file in enumerate(self.files):
            if not file.exists() or not file.stat().st_size:
                label = number % len(CONTOURS)
                body = encode(synthesise(label, np.random.default_rng(number)))
                file.write_bytes(struct.pack("<HH", label, RATE) + body)

    def __len__(self):
        return 12 * len(self.files)

    def __getitem__(self, index):
        with lap("read"):
            data = self.files[index % len(self.files)].read_bytes()
        label, _ = struct.unpack_from("<HH", data)
        with lap("decode"):
            wave = decode(data[4:])
        shift = int(torch.randint(-400, 400, ()))
        return torch.roll(wave, shift)[None] * torch.empty(1).uniform_(0.5, 1.5), label


def build(width=16):
    layers, channels = [], 1
    for stride in (8, 4, 4, 2):
        layers += [nn.Conv1d(channels, width, 2 * stride + 1, stride, stride), nn.BatchNorm1d(width), nn.ReLU()]
        channels, width = width, width + 8
    return nn.Sequential(*layers, nn.AdaptiveAvgPool1d(4), nn.Flatten(), nn.Linear(4 * channels, len(CONTOURS)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("data", help="not used: clips are synthesised below --out")
    parser.add_argument("--out", type=Path, default=Path("runs/adpcm_commands"))
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--clips", type=int, default=96)
    args = parser.parse_args()
    torch.set_num_threads(1)
    clips = Clips(args.out / "clips", args.clips)
    loader = DataLoader(clips, batch_size=24, shuffle=True, num_workers=2, drop_last=True, persistent_workers=True)
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for epoch in range(args.epochs):
        losses = []
        for waves, labels in timed(loader, "wait"):
            with lap("compute"):
                loss = nn.functional.cross_entropy(model(waves), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            losses.append(loss.item())
        print(f"epoch {epoch + 1}/{args.epochs}: loss {sum(losses) / len(losses):.4f}", flush=True)
        torch.save(model.state_dict(), args.out / "commands.pt")
