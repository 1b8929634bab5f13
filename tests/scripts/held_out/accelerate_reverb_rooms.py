"""How far away is the speaker? A network hears dry clips in simulated rooms (image source method, after Allen and Berkley)
and tells the distance. Trains under Accelerate."""

import argparse
import math
import random
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from scipy.signal import fftconvolve
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stopwatch import lap, timed

RATE, SPEED = 8000, 343.0


def voice(rng, seconds=0.5):
    """A dry clip: glottal pulses through two formants, in syllables."""
    time = np.arange(int(RATE * seconds)) / RATE
    pitch = rng.uniform(90, 220) * (1 + 0.1 * np.sin(2 * np.pi * rng.uniform(1, 4) * time))
    pulses = np.sin(2 * np.pi * np.cumsum(pitch) / RATE) ** 9
    formants = sum(np.sin(2 * np.pi * rng.uniform(300, 2500) * time) for _ in range(2))
    syllables = np.clip(np.sin(2 * np.pi * rng.uniform(2, 5) * time), 0, 1)
    return (pulses * (1 + 0.4 * formants) * syllables).astype(np.float32)


class Room:
    def __init__(self, size, absorption, order=7):
        self.size, self.order = size, order
        self.reflect = math.sqrt(1 - absorption)

    def images(self, source):
        """Mirror images of the source and the number of walls between."""
        span = range(-self.order, self.order + 1)
        length, width, height = self.size
        for i in span:
            x = i * length + (source[0] if i % 2 == 0 else length - source[0])
            for j in span:
                y = j * width + (source[1] if j % 2 == 0 else width - source[1])
                for k in span:
                    z = k * height + (source[2] if k % 2 == 0 else height - source[2])
                    yield (x, y, z), abs(i) + abs(j) + abs(k)

    def response(self, source, ear, taps=2400):
        impulse = [0.0] * taps
        for place, walls in self.images(source):
            distance = math.dist(place, ear)
            at = distance / SPEED * RATE
            whole = int(at)
            if whole + 1 < taps:
                strength = self.reflect**walls / (4 * math.pi * max(distance, 0.1))
                impulse[whole] += strength * (1 - at + whole)
                impulse[whole + 1] += strength * (at - whole)
        return np.array(impulse, dtype=np.float32)


class Distances(Dataset):
    def __init__(self, length, voices=300):
        rng = np.random.default_rng(12)
        self.voices = [voice(rng) for _ in range(voices)]
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        size = [random.uniform(3, 9), random.uniform(3, 7), random.uniform(2.4, 3.5)]
        source, ear = ([random.uniform(0.3, side - 0.3) for side in size] for _ in range(2))
        with lap("room"):
            impulse = Room(size, absorption=random.uniform(0.15, 0.6)).response(source, ear)
        dry = self.voices[index % len(self.voices)]
        wet = fftconvolve(dry, impulse)[: len(dry)]
        wet = wet / (np.abs(wet).max() + 1e-6) + 0.003 * np.random.randn(len(wet))
        return torch.from_numpy(wet.astype(np.float32)), torch.tensor(math.log(math.dist(source, ear)))


class Listener(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv1d(1, width, 32, stride=8), nn.ReLU(),
            nn.Conv1d(width, width * 2, 8, stride=4), nn.ReLU(),
            nn.Conv1d(width * 2, width * 2, 5, stride=2), nn.ReLU(),
        )  # fmt: skip
        self.memory = nn.GRU(width * 2, 48, batch_first=True)
        self.distance = nn.Linear(48, 1)

    def forward(self, sound):
        _, state = self.memory(self.layers(sound[:, None]).transpose(1, 2))
        return self.distance(state[-1]).squeeze(1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", help="not used, voices and rooms are simulated")
    parser.add_argument("--out", type=Path, default=Path("runs/accelerate_reverb_rooms"))
    parser.add_argument("--epochs", type=int, default=300)
    args = parser.parse_args()
    set_seed(4)
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True)
    loader = DataLoader(Distances(4800), 24, shuffle=True, num_workers=1, persistent_workers=True, drop_last=True)
    model = Listener()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for epoch in range(args.epochs):
        for step, (sound, distance) in enumerate(timed(loader, "wait")):
            with lap("compute"):
                loss = nn.functional.smooth_l1_loss(model(sound), distance)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            if step % 25 == 0:
                accelerator.print(f"epoch {epoch} step {step}: {loss.item():.4f}", flush=True)
        accelerator.save_model(model, str(args.out))


if __name__ == "__main__":
    main()
