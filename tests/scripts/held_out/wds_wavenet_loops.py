"""WebDataset: a WaveNet that goes on with drum loops, one of 256 levels for each sample. Loops lie in shards as WAV."""

import argparse
import io
import json
import random
import wave
from pathlib import Path

import numpy as np
import torch
import webdataset as wds
from torch import nn
from tqdm import tqdm

from stopwatch import lap, timed

RATE = 8000


def hit(kind, rng):
    times = np.arange(RATE // 4) / RATE
    noise = rng.normal(0, 1, len(times))
    if kind == "kick":
        return np.sin(2 * np.pi * (50 * times + 8 * (1 - np.exp(-30 * times)))) * np.exp(-14 * times)
    if kind == "snare":
        return (0.5 * np.sin(2 * np.pi * 180 * times) + 0.6 * noise) * np.exp(-22 * times)
    return np.diff(noise, prepend=0) * np.exp(-60 * times) * 0.3


def loop(rng):
    """Two bars of sixteenths, played a little unevenly."""
    beat = 60 / rng.uniform(80, 150) / 4
    out = np.zeros(int(32 * beat * RATE) + RATE)
    chances = {"kick": [0.9, 0.05, 0.2, 0.1], "snare": [0.05, 0.05, 0.6, 0.1], "hat": [0.8, 0.4, 0.8, 0.4]}
    for sixteenth in range(32):
        for kind, chance in chances.items():
            if rng.random() < chance[sixteenth % 4]:
                at = max(0, int((sixteenth * beat + rng.normal(0, 0.004)) * RATE))
                sound = hit(kind, rng) * rng.uniform(0.6, 1.0)
                out[at : at + len(sound)] += sound
    return 60 / beat / 4, np.clip(out / 2, -1, 1)


def write_shards(folder, count, each=40):
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(14)
    with wds.ShardWriter(str(folder / "loops-%02d.tar"), maxcount=each, verbose=0) as sink:
        for number in range(count):
            pace, sound = loop(rng)
            buffer = io.BytesIO()
            with wave.open(buffer, "wb") as file:
                file.setparams((1, 2, RATE, len(sound), "NONE", ""))
                file.writeframes((sound * 32767).astype("<i2").tobytes())
            sink.write({"__key__": f"{number:04d}", "wav": buffer.getvalue(), "json": json.dumps({"bpm": pace})})


class Cut:
    """A piece of the loop, faster or slower and through a softer or harder room, by mu-law in 256 levels."""

    def __init__(self, length):
        self.length = length

    def __call__(self, sample):
        longest = int(1.1 * self.length) + 2
        with wave.open(io.BytesIO(sample["wav"])) as file:
            file.setpos(random.randrange(file.getnframes() - longest))
            sound = np.frombuffer(file.readframes(longest), "<i2") / 32768
        pace = random.uniform(0.9, 1.1)
        piece = np.interp(pace * np.arange(self.length + 1), np.arange(longest), sound)
        room = np.exp(-np.arange(240) / random.uniform(20, 60)) * np.random.normal(0, 0.1, 240)
        piece = piece + np.convolve(piece, room)[: len(piece)]
        level = np.sign(piece) * np.log1p(255 * np.abs(piece).clip(0, 1)) / np.log(256)
        return torch.from_numpy(((level + 1) * 127.5).round().astype(np.int64)), sample["json"]["bpm"] / 100


class WaveNet(nn.Module):
    def __init__(self, width=32, skips=64, dilations=(1, 2, 4, 8, 16, 32, 64, 128)):
        super().__init__()
        self.levels, self.pace = nn.Embedding(256, width), nn.Linear(1, width)
        self.gates = nn.ModuleList(nn.Conv1d(width, 2 * width, 2, dilation=step) for step in dilations)
        self.outs = nn.ModuleList(nn.Conv1d(width, width + skips, 1) for _ in dilations)
        self.head = nn.Sequential(nn.ReLU(), nn.Conv1d(skips, skips, 1), nn.ReLU(), nn.Conv1d(skips, 256, 1))
        self.width = width

    def forward(self, levels, pace):
        x, total = self.levels(levels).transpose(1, 2) + self.pace(pace[:, None])[:, :, None], 0
        for gate, out in zip(self.gates, self.outs):
            a, b = gate(nn.functional.pad(x, (gate.dilation[0], 0))).chunk(2, 1)
            change, skip = out(a.tanh() * b.sigmoid()).tensor_split([self.width], 1)
            x, total = x + change, total + skip
        return self.head(total)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", help="not used: the loops are made up")
    parser.add_argument("--out", type=Path, default=Path("runs/wds_wavenet_loops"))
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--length", type=int, default=1600)
    args = parser.parse_args()
    write_shards(args.out / "shards", 240)
    urls = sorted(str(path) for path in (args.out / "shards").glob("*.tar"))
    stream = wds.WebDataset(urls, shardshuffle=len(urls), nodesplitter=None, empty_check=False).repeat()
    stream = stream.shuffle(100, initial=30).decode().map(Cut(args.length)).batched(6, partial=False)
    loader = wds.WebLoader(stream, batch_size=None, num_workers=0)
    model = WaveNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    bar = tqdm(timed(loader, "wait"), mininterval=2, ncols=90)
    for step, (levels, pace) in enumerate(bar, 1):
        with lap("compute"):
            scores = model(levels[:, :-1], torch.as_tensor(pace, dtype=torch.float32))
            losses = nn.functional.cross_entropy(scores, levels[:, 1:], reduction="none")
            optimizer.zero_grad()
            losses.mean().backward()
            optimizer.step()
        with lap("own"):
            parts = [f"{part.mean().item():.3f}" for part in losses.detach().tensor_split(8, 1)]
            with open(args.out / "parts.txt", "a") as file:
                print(step, *parts, file=file)
            bar.set_postfix(bits=f"{losses.mean().item() / np.log(2):.3f}", refresh=False)
            if step % 500 == 0:
                torch.save(model.state_dict(), args.out / "drummer.pt")
        if step == args.steps:
            break


if __name__ == "__main__":
    main()
