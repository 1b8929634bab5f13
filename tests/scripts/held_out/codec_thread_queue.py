"""Train a small audio codec with residual vector quantization; a thread reads the recordings and fills a queue.

The reader waits a little after each file, to leave the shared disk some air.
"""

import argparse
import queue
import random
import threading
import time
import wave
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import nn

from stopwatch import lap, timed

RATE, SECONDS, FILES, PIECE, BATCH, STEPS = 16_000, 6, 60, 16_000, 8, 30


def make_recordings(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(55)
    times = np.arange(RATE * SECONDS) / RATE
    for number in range(FILES):
        path = folder / f"take-{number:03d}.wav"
        if path.exists():
            continue
        base = rng.uniform(90, 300) * (1 + 0.02 * np.sin(2 * np.pi * rng.uniform(3, 6) * times))
        phase = 2 * np.pi * np.cumsum(base) / RATE
        sound = sum(np.sin(k * phase) / k for k in range(1, 6)) * (0.6 + 0.4 * np.sin(7 * times))
        sound = sound + rng.normal(0, 0.02, sound.shape)
        with wave.open(str(path), "wb") as out:
            out.setnchannels(1)
            out.setsampwidth(2)
            out.setframerate(RATE)
            out.writeframes((sound / 3 * 32767).clip(-32767, 32767).astype("<i2").tobytes())


def read_piece(path: Path) -> torch.Tensor:
    with wave.open(str(path), "rb") as source:
        source.setpos(random.randrange(source.getnframes() - PIECE))
        samples = np.frombuffer(source.readframes(PIECE), "<i2").astype(np.float32) / 32768
    loudness = np.abs(np.fft.rfft(samples)[:400]).sum()
    return torch.from_numpy(samples * min(3.0, 900 / (loudness + 1e-6)))


class ReaderThread(threading.Thread):
    def __init__(self, folder: Path, room: int = 4) -> None:
        super().__init__(name="reader", daemon=True)
        self.paths = sorted(folder.glob("*.wav"))
        self.batches: queue.Queue[torch.Tensor] = queue.Queue(maxsize=room)

    def run(self) -> None:
        while True:
            pieces = []
            for path in random.sample(self.paths, BATCH):
                pieces.append(read_piece(path))
                time.sleep(0.004)
            self.batches.put(torch.stack(pieces)[:, None])

    def round(self, steps: int) -> Iterator[torch.Tensor]:
        for _ in range(steps):
            yield self.batches.get()


class Quantizer(nn.Module):
    """Several codebooks, each for what the ones before it left over."""

    def __init__(self, books: int = 6, entries: int = 256, width: int = 64) -> None:
        super().__init__()
        self.books = nn.Parameter(torch.randn(books, entries, width) * 0.3)

    def forward(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rest, total, loss = hidden, torch.zeros_like(hidden), hidden.new_zeros(())
        for book in self.books:
            chosen = book[torch.cdist(rest.detach(), book.detach()).argmin(-1)]
            loss = loss + (chosen - rest.detach()).square().mean() + 0.25 * (rest - chosen.detach()).square().mean()
            total = total + chosen
            rest = rest - chosen.detach()
        return hidden + (total - hidden).detach(), loss


class Codec(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        encode, decode, inputs = [nn.Conv1d(1, 24, 7, padding=3), nn.ELU()], [], 24
        for outputs, stride in ((32, 4), (48, 4), (64, 5)):
            encode += [nn.Conv1d(inputs, outputs, stride * 2 + 1, stride, stride), nn.ELU()]
            encode += [nn.Conv1d(outputs, outputs, 7, padding=3), nn.ELU()]
            decode = [
                nn.Upsample(scale_factor=stride),
                nn.Conv1d(outputs, inputs, 7, padding=3),
                nn.ELU(),
                nn.Conv1d(inputs, inputs, 7, padding=3),
                nn.ELU(),
                *decode,
            ]
            inputs = outputs
        self.encode, self.decode = nn.Sequential(*encode), nn.Sequential(*decode, nn.Conv1d(24, 1, 7, padding=3))
        self.quantizer = Quantizer()

    def forward(self, sound: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        codes, loss = self.quantizer(self.encode(sound).transpose(1, 2))
        return self.decode(codes.transpose(1, 2)), loss


def spectral_gap(made: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    gap = made.new_zeros(())
    for size in (256, 512, 1024):
        window = torch.hann_window(size)
        both = [torch.stft(s[:, 0], size, size // 4, window=window, return_complex=True).abs() for s in (made, real)]
        gap = gap + (both[0] - both[1]).abs().mean() + ((both[0] + 1e-3).log() - (both[1] + 1e-3).log()).abs().mean()
    return gap


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", help="the data folder (the recordings are made up here)")
    parser.add_argument("--epochs", type=int, default=1000, help="rounds of 30 steps")
    options = parser.parse_args()
    torch.manual_seed(27)
    make_recordings(Path("takes"))
    reader = ReaderThread(Path("takes"))
    reader.start()
    codec = Codec()
    optimizer = torch.optim.AdamW(codec.parameters(), 3e-4)
    for epoch in range(options.epochs):
        losses = []
        for sound in timed(reader.round(STEPS), "wait"):
            with lap("compute"):
                made, commitment = codec(sound)
                loss = spectral_gap(made, sound) + 10 * (made - sound).abs().mean() + commitment
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            with lap("own"):
                losses.append(loss.item())
                state = f"{losses[-1]:.3f}, {reader.batches.qsize()} queued"
                print(f"round {epoch}, step {len(losses)}: {state}", flush=True)
        print(f"round {epoch}: mean loss {np.mean(losses):.3f}", flush=True)


if __name__ == "__main__":
    main()
