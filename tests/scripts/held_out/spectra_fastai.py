"""fastai: 'audio' tagging; waveforms in an .npy store, spectrograms by NumPy's FFT in a single worker."""

import argparse
import warnings
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

warnings.filterwarnings("ignore")
from fastai.callback.core import Callback  # noqa: E402
from fastai.data.core import DataLoaders  # noqa: E402
from fastai.data.load import DataLoader  # noqa: E402
from fastai.learner import Learner  # noqa: E402

from stopwatch import lap, timed  # noqa: E402

RATE, SECONDS, WINDOW, HOP = 16000, 2, 512, 250


def make_waves(root: Path, store: Path, every=4):
    """Turn each picture's rows into a sum of tones: a stand-in for recordings."""
    if store.with_suffix(".labels.npy").exists():
        return
    folders = sorted(p for p in root.iterdir() if p.is_dir())
    files = [(path, label) for label, folder in enumerate(folders) for path in sorted(folder.iterdir())[::every]]
    waves = np.lib.format.open_memmap(store, "w+", np.float32, (len(files), RATE * SECONDS))
    for number, (path, _) in enumerate(files):
        image = Image.open(path)
        image.draft("L", (64, 64))
        grey = np.asarray(image.convert("L").resize((RATE * SECONDS // 64, 64)), np.float32) / 255 - 0.5
        waves[number] = grey.T.reshape(-1)
    waves.flush()
    np.save(store.with_suffix(".labels.npy"), np.array([label for _, label in files]))


class Spectrograms:
    def __init__(self, store: Path, part=slice(None)):
        self.waves = np.load(store, mmap_mode="r")[part]
        self.labels = np.load(store.with_suffix(".labels.npy"))[part]
        self.window = np.hanning(WINDOW).astype(np.float32)

    def __len__(self):
        return len(self.waves)

    def __getitem__(self, index):
        with lap("spectrogram"):
            wave = np.array(self.waves[index])
            wave = np.roll(wave, np.random.randint(len(wave))) + 0.01 * np.random.randn(len(wave))
            frames = np.lib.stride_tricks.sliding_window_view(wave, WINDOW)[::HOP]
            power = np.abs(np.fft.rfft(frames * self.window)) ** 2
            spectrum = np.log1p(power[:, 1:]).astype(np.float32).T
            spectrum = spectrum.reshape(64, 4, -1).mean(1)
        return torch.from_numpy(spectrum)[None], torch.tensor(self.labels[index])


class TimedLoader(DataLoader):
    def __iter__(self):
        yield from timed(super().__iter__(), "wait")


class Steps(Callback):
    """The step under the stopwatch; a line and a copy of the weights each epoch."""

    def __init__(self, out: Path):
        self.out = out

    def before_batch(self):
        if self.training:
            self.lap = lap("compute")
            self.lap.__enter__()

    def after_batch(self):
        if self.training:
            self.lap.__exit__(None, None, None)

    def after_epoch(self):
        print(f"epoch {self.learn.epoch}: loss {float(self.learn.loss):.4f}", flush=True)
        torch.save(self.learn.model.state_dict(), self.out / "tagger.pt")


def tagger(classes, width=26):
    layers, inputs = [], 1
    for outputs in (width, width * 2, width * 3):
        layers += [
            nn.Conv2d(inputs, outputs, 3, padding=1),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/spectra_fastai"))
    parser.add_argument("--epochs", type=int, default=20)
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    make_waves(args.data / "photos", args.out / "waves.npy")
    data = Spectrograms(args.out / "waves.npy")
    loader = TimedLoader(data, bs=8, shuffle=True, drop_last=True, num_workers=1)
    held_out = DataLoader(Spectrograms(args.out / "waves.npy", slice(None, None, 31)), bs=8, num_workers=0)
    learner = Learner(
        DataLoaders(loader, held_out, device=torch.device("cpu")),
        tagger(int(data.labels.max()) + 1),
        loss_func=nn.CrossEntropyLoss(),
        cbs=[Steps(args.out)],
        path=args.out,
    )
    with learner.no_logging():
        learner.fit(args.epochs, lr=1e-3)


if __name__ == "__main__":
    main()
