"""Ignite: two voices in one recording are told apart (a small Conv-TasNet). Voices are made of pulses through formants;
each mixture is made on the fly, and the loss does not care which output is whose."""

import argparse
from contextlib import ExitStack
from itertools import permutations
from pathlib import Path

import numpy as np
import torch
from ignite.engine import Engine, Events
from ignite.handlers import Checkpoint, DiskSaver, TerminateOnNan
from ignite.metrics import RunningAverage
from scipy.signal import fftconvolve, lfilter
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stopwatch import lap

RATE, LENGTH = 8000, 4000


class Voices(Dataset):
    def __len__(self):
        return 2400

    def voice(self, rng):
        pitch = rng.uniform(80, 260) * (1 + 0.1 * np.sin(np.linspace(0, rng.uniform(3, 12), LENGTH)))
        phase = np.cumsum(pitch / RATE)
        sound = np.diff(np.floor(phase), prepend=0) + rng.normal(0, 0.02, LENGTH)
        for centre in (rng.uniform(250, 900), rng.uniform(900, 2400), rng.uniform(2400, 3400)):
            r = np.exp(-np.pi * rng.uniform(50, 160) / RATE)
            sound = lfilter([1 - r], [1, -2 * r * np.cos(2 * np.pi * centre / RATE), r * r], sound)
        loud = np.repeat(rng.uniform(0, 1, 10), LENGTH // 10)
        sound = sound * np.convolve(loud, np.hanning(400) / 200, "same")
        room = rng.normal(size=800) * np.exp(-np.arange(800) / rng.uniform(40, 160))
        room[0] = 4
        sound = fftconvolve(sound, room)[:LENGTH]
        return sound / (np.abs(sound).max() + 1e-6)

    def __getitem__(self, index):
        rng = np.random.default_rng()
        voices = np.stack([self.voice(rng) for _ in range(2)]) * rng.uniform(0.4, 1, (2, 1))
        return torch.from_numpy(voices.sum(0).astype(np.float32)), torch.from_numpy(voices.astype(np.float32))


class Block(nn.Module):
    def __init__(self, width, inner, dilation):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(width, inner, 1), nn.PReLU(), nn.GroupNorm(1, inner),
            nn.Conv1d(inner, inner, 3, padding=dilation, dilation=dilation, groups=inner), nn.PReLU(),
            nn.GroupNorm(1, inner), nn.Conv1d(inner, width, 1),
        )  # fmt: skip

    def forward(self, x):
        return x + self.body(x)


class TasNet(nn.Module):
    def __init__(self, filters=96, width=64, inner=128, voices=2):
        super().__init__()
        self.voices = voices
        self.encode = nn.Conv1d(1, filters, 20, stride=10, bias=False)
        blocks = [Block(width, inner, 2**k) for _ in range(2) for k in range(5)]
        self.mask = nn.Sequential(
            nn.GroupNorm(1, filters), nn.Conv1d(filters, width, 1), *blocks, nn.PReLU(),
            nn.Conv1d(width, voices * filters, 1),
        )  # fmt: skip
        self.decode = nn.ConvTranspose1d(filters, 1, 20, stride=10, bias=False)

    def forward(self, sound):
        code = self.encode(sound[:, None]).relu()
        masks = self.mask(code).unflatten(1, (self.voices, -1)).sigmoid()
        return self.decode((masks * code[:, None]).flatten(0, 1)).unflatten(0, (-1, self.voices)).squeeze(2)


def ratio(guess, truth):
    """Scale-invariant signal-to-noise ratio in decibels."""
    guess, truth = guess - guess.mean(-1, keepdim=True), truth - truth.mean(-1, keepdim=True)
    part = (guess * truth).sum(-1, keepdim=True) / (truth.pow(2).sum(-1, keepdim=True) + 1e-6) * truth
    return 10 * torch.log10(part.pow(2).sum(-1) / ((guess - part).pow(2).sum(-1) + 1e-6) + 1e-6)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", help="not used: voices are made up")
    parser.add_argument("--out", type=Path, default=Path("runs/ignite_two_speakers"))
    parser.add_argument("--epochs", type=int, default=30)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    loader = DataLoader(Voices(), batch_size=8, num_workers=1, prefetch_factor=4, persistent_workers=True)
    model = TasNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def update(engine, batch):
        with lap("compute"):
            mixture, voices = batch
            guess = model(mixture)
            orders = [ratio(guess[:, list(order)], voices).mean(1) for order in permutations(range(2))]
            loss = -torch.stack(orders).amax(0).mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            return loss.item()

    trainer, waiting = Engine(update), ExitStack()
    RunningAverage(output_transform=lambda loss: loss).attach(trainer, "loss")
    trainer.add_event_handler(Events.ITERATION_COMPLETED, TerminateOnNan())
    trainer.add_event_handler(Events.GET_BATCH_STARTED, lambda: waiting.enter_context(lap("wait")))
    trainer.add_event_handler(Events.GET_BATCH_COMPLETED, waiting.close)
    saver = Checkpoint({"model": model}, DiskSaver(args.out, require_empty=False), n_saved=1)
    trainer.add_event_handler(Events.ITERATION_COMPLETED(every=50), saver)

    @trainer.on(Events.ITERATION_COMPLETED)
    def note(engine):
        with lap("own"), open(args.out / "ratio.tsv", "a") as file:
            file.write(f"{engine.state.iteration}\t{-engine.state.output:.3f}\t{-engine.state.metrics['loss']:.3f}\n")

    trainer.run(loader, max_epochs=args.epochs)


if __name__ == "__main__":
    main()
