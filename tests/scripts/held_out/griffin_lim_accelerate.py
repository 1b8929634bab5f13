"""Accelerate: speech is cleaned in the spectrogram; every few steps clips are made audible, to be listened to."""

import argparse
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from PIL import Image
from scipy import signal
from scipy.io import wavfile
from stopwatch import lap, timed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

RATE, LENGTH, WINDOW, OVERLAP = 16000, 16384, 512, 384


def voices(photos: Path, each=24):
    """A voice is a buzz of some pitch whose harmonics follow the brightness of a photograph: magnitudes only."""
    times, found = np.arange(LENGTH) / RATE, []
    for number, folder in enumerate(sorted(p for p in photos.iterdir() if p.is_dir())):
        buzz = [np.sin(2 * np.pi * (110 + 12 * number) * k * times) for k in (1, 2, 4, 7, 12, 20)]
        for file in sorted(folder.iterdir())[:each]:
            image = Image.open(file)
            image.draft("L", (64, 64))
            rows = np.asarray(image.convert("L").resize((32, len(buzz))), np.float64) / 255
            wave = sum(tone * np.repeat(row, LENGTH // 32) for tone, row in zip(buzz, rows))
            _, _, spectrum = signal.stft(wave, RATE, nperseg=WINDOW, noverlap=OVERLAP)
            found.append(np.abs(spectrum).astype(np.float32))
    return torch.from_numpy(np.stack(found))


class Cleaner(nn.Module):
    """A mask for each bin, from convolutions along time."""

    def __init__(self, bins, width=64):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv1d(bins, width, 5, padding=2), nn.BatchNorm1d(width), nn.ReLU(),
            nn.Conv1d(width, width, 5, padding=4, dilation=2), nn.BatchNorm1d(width), nn.ReLU(),
            nn.Conv1d(width, bins, 5, padding=2), nn.Sigmoid(),
        )  # fmt: skip

    def forward(self, noisy):
        return noisy * self.layers(torch.log1p(100 * noisy))


def griffin_lim(magnitude, rounds=32):
    """A wave whose spectrogram is as given: phases are guessed, and mended by going back and forth."""
    phases = np.exp(2j * np.pi * np.random.rand(*magnitude.shape))
    for _ in range(rounds):
        _, wave = signal.istft(magnitude * phases, RATE, nperseg=WINDOW, noverlap=OVERLAP)
        _, _, spectrum = signal.stft(wave, RATE, nperseg=WINDOW, noverlap=OVERLAP)
        spectrum = spectrum[:, : magnitude.shape[1]]
        phases = spectrum / np.maximum(np.abs(spectrum), 1e-8)
    return wave


class Listening:
    """Three clips of the batch as WAV files, the latest only."""

    def __init__(self, folder: Path, every, clips=3):
        self.folder, self.every, self.clips = folder, every, clips
        folder.mkdir(parents=True, exist_ok=True)

    def __call__(self, step, cleaned):
        if step % self.every:
            return
        for number, magnitude in enumerate(cleaned[: self.clips].detach().double().numpy()):
            wave = griffin_lim(magnitude)
            wave = wave / max(1e-6, np.abs(wave).max())
            wavfile.write(self.folder / f"clip_{number}.wav", RATE, (32000 * wave).astype(np.int16))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/griffin_lim_accelerate"))
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--listen-every", type=int, default=4)
    args = parser.parse_args()
    set_seed(4)
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True)
    clean = voices(args.data / "photos")
    loader = DataLoader(TensorDataset(clean), batch_size=8, shuffle=True, drop_last=True)
    model = Cleaner(clean.shape[1])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    listening = Listening(args.out / "clips", args.listen_every)
    step = 0
    for epoch in range(args.epochs):
        total = 0.0
        for (spectra,) in timed(loader, "wait"):
            with lap("compute"):
                noisy = spectra + 0.03 * torch.randn_like(spectra).abs()
                cleaned = model(noisy)
                loss = nn.functional.l1_loss(torch.log1p(100 * cleaned), torch.log1p(100 * spectra))
                optimizer.zero_grad()
                accelerator.backward(loss)
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                total += loss.item()
            step += 1
            with lap("own"):
                listening(step, cleaned)
        accelerator.print(f"epoch {epoch}: {total / len(loader):.4f}", flush=True)
    accelerator.save(accelerator.unwrap_model(model).state_dict(), args.out / "cleaner.pt")


if __name__ == "__main__":
    main()
