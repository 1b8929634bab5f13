"""Who wrote it? Pieces are MIDI files, whole, in a column of a Hugging Face dataset, read as they are needed, moved to
another key, and turned into tokens (pitch, length, pause) for a small GRU."""

import argparse
import random
from pathlib import Path

import torch
from datasets import Dataset
from torch import nn
from torch.utils.data import DataLoader

from stopwatch import lap, timed

COMPOSERS = 8
LENGTHS = 12


def number(value):
    """A number as MIDI writes it: seven bits a byte."""
    out = [value & 127]
    while value := value >> 7:
        out.append(value & 127 | 128)
    return bytes(reversed(out))


def compose(composer, rng, notes=450):
    steps = [(-2, 2, 1, -1), (3, -3, 4, -4), (7, -7, 5, -5), (0, 1, 2, 3), (12, -12, 1, -1), (2, 2, -4, 5),
             (1, -2, 1, 0), (4, 3, -7, 2)][composer]  # fmt: skip
    track, pitch = bytearray(), 60
    for _ in range(notes):
        pitch += rng.choice(steps)
        pitch = pitch if 36 <= pitch <= 84 else 60
        length = rng.choice([60, 120, 120, 240, 480])
        track += number(rng.choice([0, 0, 0, 120])) + bytes([0x90, pitch, rng.randrange(50, 110)])
        if rng.random() < 0.1:
            track += number(0) + bytes([0xFF, 0x51, 3]) + rng.randrange(400_000, 600_000).to_bytes(3, "big")
        track += number(length) + bytes([0x80, pitch, 64])
    track += number(0) + bytes([0xFF, 0x2F, 0])
    head = b"MThd" + (6).to_bytes(4, "big") + bytes([0, 0, 0, 1, 1, 224])
    return head + b"MTrk" + len(track).to_bytes(4, "big") + bytes(track)


def events(data):
    """All notes of a file: onset, length, pitch, in ticks."""
    at, clock, end = 22, 0, len(data)
    sounding, notes = {}, []

    def varying():
        nonlocal at
        value = 0
        while True:
            byte = data[at]
            at += 1
            value = value << 7 | byte & 127
            if byte < 128:
                return value

    while at < end:
        clock += varying()
        status = data[at]
        at += 1
        if status == 0xFF:
            at += 1
            skipped = varying()
            at += skipped
        elif status & 0xF0 in (0x80, 0x90):
            pitch, loud = data[at], data[at + 1]
            at += 2
            if status & 0xF0 == 0x90 and loud:
                sounding[pitch] = clock
            elif pitch in sounding:
                start = sounding.pop(pitch)
                notes.append((start, clock - start, pitch))
        else:
            at += 1 if status & 0xE0 == 0xC0 else 2
    return sorted(notes)


def tokens(batch, length=64):
    rows = []
    for data in batch["midi"]:
        notes = events(data)
        start, key = random.randrange(len(notes) - length - 1), random.randint(-5, 5)
        row = []
        for (onset, long, pitch), (following, _, _) in zip(notes[start:-1], notes[start + 1 :]):
            pause = min(max(following - onset - long, 0) // 60, LENGTHS - 1)
            row.append([min(max(pitch + key, 0), 127), min(long // 60, LENGTHS - 1), pause])
        rows.append(torch.tensor(row[:length]))
    return {"notes": rows, "composer": batch["composer"]}


class Listener(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.pitch = nn.Embedding(128, width)
        self.long, self.pause = nn.Embedding(LENGTHS, width), nn.Embedding(LENGTHS, width)
        self.gru = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, COMPOSERS)

    def forward(self, notes):
        pitch, long, pause = notes.unbind(2)
        return self.head(self.gru(self.pitch(pitch) + self.long(long) + self.pause(pause))[0].mean(1))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", help="not used: the music is made up")
    parser.add_argument("--out", type=Path, default=Path("runs/arrow_midi_composers"))
    parser.add_argument("--epochs", type=int, default=1000)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    rng = random.Random(12)
    composers = [k % COMPOSERS for k in range(640)]
    pieces = Dataset.from_dict({"midi": [compose(k, rng) for k in composers], "composer": composers})
    loader = DataLoader(pieces.with_transform(tokens), 32, shuffle=True, drop_last=True)
    model = Listener()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    step = 0
    for epoch in range(args.epochs):
        for batch in timed(loader, "wait"):
            with lap("compute"):
                loss = nn.functional.cross_entropy(model(batch["notes"]), batch["composer"])
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
            step += 1
            with lap("own"):
                if step % 20 == 0:
                    print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)
        with lap("own"):
            torch.save(model.state_dict(), args.out / "listener.pt")


if __name__ == "__main__":
    main()
