"""Which bird sings? Everything here is a coroutine: three listeners make batches of spectrograms, one pupil learns."""

import argparse
import asyncio
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from scipy import signal
from torch import nn

from stopwatch import lap

RATE, SECONDS, WINDOW, HOP, BANDS, BATCH = 16000, 3, 1024, 256, 48, 16


def synthesise(photos: Path, each=28):
    """A stand-in for recordings: a photograph's rows are the loudness of four whistles, its class gives their pitch."""
    times = np.arange(RATE * SECONDS, dtype=np.float32) / RATE
    waves, labels = [], []
    for label, folder in enumerate(sorted(p for p in photos.iterdir() if p.is_dir())):
        for file in sorted(folder.iterdir())[:each]:
            image = Image.open(file)
            image.draft("L", (64, 64))
            rows = np.asarray(image.convert("L").resize((8 * SECONDS, 4)), np.float32) / 255
            wave = np.zeros_like(times)
            for k, row in enumerate(rows):
                loudness = np.interp(times, np.linspace(0, SECONDS, len(row)), row)
                wave += loudness * np.sin(2 * np.pi * (800 + 300 * label + 450 * k) * times)
            waves.append(wave.astype(np.float32))
            labels.append(label)
    return np.stack(waves), np.array(labels)


def mel_filters():
    """Triangles over the bins of the spectrum, evenly spaced in mel."""
    top = 2595 * np.log10(1 + RATE / 2 / 700)
    edges = 700 * (10 ** (np.linspace(0, top, BANDS + 2) / 2595) - 1)
    bins = np.fft.rfftfreq(WINDOW, 1 / RATE)
    rising = (bins[:, None] - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - bins[:, None]) / (edges[2:] - edges[1:-1])
    return np.maximum(0, np.minimum(rising, falling))


class Aviary:
    def __init__(self, photos):
        self.waves, self.labels = synthesise(photos)
        self.mel, self.hann = mel_filters(), np.hanning(WINDOW)

    def features(self, index, rng):
        """Another moment, another speed, wind and a microphone of its own; then energies that adapt to each band."""
        wave = np.roll(self.waves[index], rng.integers(RATE * SECONDS))
        speed = rng.uniform(0.9, 1.1)
        wave = np.interp(np.arange(len(wave)) * speed % len(wave), np.arange(len(wave)), wave)
        wave = wave + rng.normal(0, 0.05, len(wave))
        band = signal.butter(4, (rng.uniform(150, 400), rng.uniform(5000, 7500)), "bandpass", fs=RATE, output="sos")
        wave = signal.sosfilt(band, wave)
        frames = np.lib.stride_tricks.sliding_window_view(wave, WINDOW)[::HOP]
        energy = np.abs(np.fft.rfft(frames * self.hann)) ** 2 @ self.mel
        smooth = signal.lfilter([0.04], [1, -0.96], energy, axis=0)
        return (np.sqrt(energy / (1e-6 + smooth) ** 0.9 + 2) - np.sqrt(2)).T.astype(np.float32)


async def listener(aviary, queue, seed):
    """Makes batches for ever, and gives way after each sample."""
    rng = np.random.default_rng(seed)
    while True:
        picked = rng.integers(len(aviary.labels), size=BATCH)
        spectra = []
        for index in picked:
            spectra.append(aviary.features(index, rng))
            await asyncio.sleep(0)
        await queue.put((torch.from_numpy(np.stack(spectra))[:, None], torch.from_numpy(aviary.labels[picked])))


def ear(classes):
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, stride=2), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Conv2d(32, 48, 3, stride=2), nn.BatchNorm2d(48), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, classes),
    )  # fmt: skip


async def pupil(aviary, queue, steps):
    model = ear(int(aviary.labels.max()) + 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for step in range(steps):
        with lap("wait"):
            spectra, labels = await queue.get()
        with lap("compute"):
            loss = nn.functional.cross_entropy(model(spectra), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if step % 20 == 0:
            print(f"step {step}: {loss.item():.3f}, {queue.qsize()} batches ready", flush=True)
    return model


async def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/asyncio_birdsong"))
    parser.add_argument("--epochs", type=int, default=50)
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    aviary = Aviary(args.data / "photos")
    queue = asyncio.Queue(maxsize=6)
    listeners = [asyncio.create_task(listener(aviary, queue, seed)) for seed in range(3)]
    model = await pupil(aviary, queue, args.epochs * len(aviary.labels) // BATCH)
    for task in listeners:
        task.cancel()
    torch.save(model.state_dict(), args.out / "ear.pt")


if __name__ == "__main__":
    asyncio.run(main())
