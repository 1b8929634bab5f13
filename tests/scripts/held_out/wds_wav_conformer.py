"""Frog calls: WAV files in tar shards, log-mel features and SpecAugment on the fly, a small Conformer."""

import argparse
import io
from pathlib import Path

import numpy as np
import scipy.io.wavfile
import scipy.signal
import torch
import webdataset as wds
from torch import nn

from stopwatch import lap, timed

RATE, MELS = 16_000, 40
FROGS = {"tree": (900, 8), "bull": (200, 2), "chorus": (2600, 14), "wood": (600, 20), "peeper": (2900, 1)}


def call(frog, rng, seconds=1.5):
    t = np.arange(int(RATE * seconds)) / RATE
    pitch, pulses = FROGS[frog]
    tone = np.sin(2 * np.pi * pitch * rng.uniform(0.9, 1.1) * t + rng.uniform(0, 6))
    return tone * (np.sin(2 * np.pi * pulses * t) > 0) * 0.4 + rng.normal(0, 0.1, len(t))


def make_shards(folder, shards=3, each=60):
    urls = []
    for shard in range(shards):
        rng = np.random.default_rng(shard)
        urls.append(str(folder / f"frogs-{shard:02d}.tar"))
        with wds.TarWriter(urls[-1]) as sink:
            for n in range(each):
                label = int(rng.integers(len(FROGS)))
                wave, buffer = call(list(FROGS)[label], rng), io.BytesIO()
                scipy.io.wavfile.write(buffer, RATE, (wave.clip(-1, 1) * 32767).astype(np.int16))
                sink.write({"__key__": f"{shard}-{n:04d}", "wav": buffer.getvalue(), "cls": label})
    return urls


def mel_filters(bins=257):
    top = 2595 * np.log10(1 + RATE / 2 / 700)
    edges = 700 * (10 ** (np.linspace(0, top, MELS + 2) / 2595) - 1)
    at = np.linspace(0, RATE / 2, bins)
    rising = (at - edges[:-2, None]) / np.diff(edges)[:-1, None]
    falling = (edges[2:, None] - at) / np.diff(edges)[1:, None]
    return np.maximum(0, np.minimum(rising, falling))


FILTERS = mel_filters()


def features(sample):
    rate, wave = scipy.io.wavfile.read(io.BytesIO(sample["wav"]))
    with lap("transform"):
        stretch = int(np.random.choice([9, 10, 11]))
        wave = scipy.signal.resample_poly(wave / 32768, stretch, 10)
        wave = wave[: int(1.3 * rate)]
        power = np.abs(scipy.signal.stft(wave, rate, nperseg=512, noverlap=352)[2]) ** 2
        mel = np.log(FILTERS @ power + 1e-8)[:, :128]
        mel = (mel - mel.mean()) / mel.std()
        band, begin = np.random.randint(0, MELS - 6), np.random.randint(0, 100)
        mel[band : band + 6], mel[:, begin : begin + 20] = 0, 0
    return torch.tensor(mel.T, dtype=torch.float32), int(sample["cls"])


class Block(nn.Module):
    def __init__(self, width, heads=4, kernel=15):
        super().__init__()
        self.first, self.second = self.feed(width), self.feed(width)
        self.norm, self.attend = nn.LayerNorm(width), nn.MultiheadAttention(width, heads, batch_first=True)
        self.before = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GLU())
        self.slide = nn.Conv1d(width, width, kernel, padding=kernel // 2, groups=width)
        self.after = nn.Sequential(nn.SiLU(), nn.Linear(width, width))
        self.last = nn.LayerNorm(width)

    @staticmethod
    def feed(width):
        return nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + 0.5 * self.first(x)
        y = self.norm(x)
        x = x + self.attend(y, y, y, need_weights=False)[0]
        x = x + self.after(self.slide(self.before(x).transpose(1, 2)).transpose(1, 2))
        return self.last(x + 0.5 * self.second(x))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", help="not used: calls are synthesised")
    parser.add_argument("--out", type=Path, default=Path("runs/wds_wav_conformer"))
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--batch-size", type=int, default=8)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    frogs = wds.WebDataset(make_shards(args.out), resampled=True, shardshuffle=False).shuffle(60).map(features)
    loader = wds.WebLoader(frogs.batched(args.batch_size), batch_size=None, num_workers=1).with_epoch(args.steps)
    width = 112
    model = nn.Sequential(nn.Linear(MELS, width), *[Block(width) for _ in range(4)])
    head = nn.Linear(width, len(FROGS))
    weights = [*model.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(weights, lr=5e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=args.steps + 1)
    average = None
    for step, (mels, labels) in enumerate(timed(loader, "wait")):
        with lap("compute"):
            logits = head(model(mels).mean(1))
            loss = nn.functional.cross_entropy(logits, torch.as_tensor(labels), label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(weights, 1.0)
            optimizer.step()
            schedule.step()
        average = loss.item() if average is None else 0.95 * average + 0.05 * loss.item()
        if step % 20 == 0:
            print(f"{step}/{args.steps} loss {average:.4f} rate {schedule.get_last_lr()[0]:.6f}", flush=True)
        if step % 200 == 199:
            torch.save({"body": model.state_dict(), "head": head.state_dict()}, args.out / "frogs.pt")


if __name__ == "__main__":
    main()
