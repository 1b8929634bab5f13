"""Pick the onset of the P wave in three-component seismograms; each step draws a batch at random.

There are no epochs in the usual sense: every step asks the loader for one fresh random batch. Ctrl-C ends the run
after the step in hand.
"""

import argparse
import signal
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stopwatch import lap

EVENTS, CHANNELS, SAMPLES = 1500, 3, 1600
WINDOW, STEPS = 1024, 60


def make_recordings(path: Path, onsets_path: Path) -> None:
    """Background noise with a decaying wave train from the onset on, as 32-bit counts of the digitizer."""
    if onsets_path.exists():
        return
    rng = np.random.default_rng(77)
    times = np.arange(SAMPLES)
    onsets = rng.integers(500, 1000, EVENTS)
    noise = rng.normal(0, 300, (64, CHANNELS, SAMPLES))
    with path.open("wb") as out:
        for onset in onsets:
            after = np.clip(times - onset, 0, None)
            train = np.sin(after * rng.uniform(0.2, 0.6)) * np.exp(-after / rng.uniform(80, 250)) * (after > 0)
            gains = rng.uniform(800, 3000, (CHANNELS, 1))
            out.write((noise[rng.integers(64)] + gains * train).astype("<i4").tobytes())
    np.save(onsets_path, onsets)


class Recordings(Dataset):
    def __init__(self, path: Path, onsets_path: Path) -> None:
        self.counts = np.memmap(path, "<i4", "r", shape=(EVENTS, CHANNELS, SAMPLES))
        self.onsets = np.load(onsets_path)

    def __len__(self) -> int:
        return EVENTS

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        onset = int(self.onsets[index])
        begin = int(torch.randint(max(0, onset - WINDOW + 100), min(onset - 50, SAMPLES - WINDOW), ()))
        piece = self.counts[index, :, begin : begin + WINDOW].astype(np.float32)
        piece -= piece.mean(1, keepdims=True)
        piece /= piece.std() + 1e-6
        place = np.arange(WINDOW) - (onset - begin)
        target = np.exp(-0.5 * (place / 8.0) ** 2).astype(np.float32)
        return torch.from_numpy(piece), torch.from_numpy(target)


class Picker(nn.Module):
    """An encoder and decoder in one dimension: a score for each sample of the trace."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList()
        inputs = CHANNELS
        for outputs in (16, 24, 32):
            self.down.append(nn.Sequential(nn.Conv1d(inputs, outputs, 7, stride=2, padding=3), nn.ReLU()))
            inputs = outputs
        self.up = nn.ModuleList()
        for outputs in (24, 16, 8):
            wider = [nn.Upsample(scale_factor=2), nn.Conv1d(inputs, outputs, 7, padding=3), nn.ReLU()]
            self.up.append(nn.Sequential(*wider))
            inputs = outputs
        self.head = nn.Conv1d(inputs, 1, 1)

    def forward(self, waves: torch.Tensor) -> torch.Tensor:
        for stage in (*self.down, *self.up):
            waves = stage(waves)
        return self.head(waves)[:, 0]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", help="the data folder (the recordings are made up here)")
    parser.add_argument("--epochs", type=int, default=2000, help="rounds of 60 steps")
    options = parser.parse_args()
    torch.manual_seed(9)
    counts_path, onsets_path = Path("counts.i32"), Path("onsets.npy")
    make_recordings(counts_path, onsets_path)
    recordings = Recordings(counts_path, onsets_path)
    loader = DataLoader(recordings, batch_size=48, shuffle=True, num_workers=2)
    model = Picker()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.995)
    asked_to_stop: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: asked_to_stop.append(number))
    for epoch in range(options.epochs):
        errors = []
        for _ in range(STEPS):
            if asked_to_stop:
                print("stopped", flush=True)
                return
            with lap("wait"):
                waves, targets = next(iter(loader))
            with lap("compute"):
                scores = model(waves)
                loss = nn.functional.binary_cross_entropy_with_logits(scores, targets)
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 5.0)
                optimizer.step()
            with lap("own"):
                missed = (scores.argmax(1) - targets.argmax(1)).abs().float()
                errors.append((loss.item(), missed.median().item()))
        schedule.step()
        loss_mean, missed_mean = np.mean(errors, 0)
        print(f"round {epoch}: loss {loss_mean:.4f}, typical miss {missed_mean:.1f} samples", flush=True)


if __name__ == "__main__":
    main()
