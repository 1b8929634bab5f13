"""Learn which of two photos is the more colourful, from duels; the photos' ratings follow as Glicko-2 players.

The photos fit in memory as thumbnails. Each training batch is a round of duels, and after each round every photo
that took part is rated anew from the network's verdicts in its last 64 duels.
"""

import argparse
import math
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from scipy.stats import spearmanr
from torch import nn

from stopwatch import lap, timed

SIDE, PHOTOS, DUELS = 48, 500, 64
SCALE, TAU, PERIOD = 173.7178, 0.5, 64


def load_thumbnails(folder: Path) -> tuple[torch.Tensor, np.ndarray]:
    listed = sorted(folder.glob("*/*.JPEG"))
    chosen = listed[:: max(1, len(listed) // PHOTOS)][:PHOTOS]
    pixels, colours = [], []
    for path in chosen:
        image = Image.open(path)
        image.draft("RGB", (SIDE * 2, SIDE * 2))
        array = np.array(image.convert("RGB").resize((SIDE, SIDE)))
        red, green, blue = array.astype(np.float32).transpose(2, 0, 1)
        opponent = np.stack([red - green, (red + green) / 2 - blue])
        colours.append(np.hypot(*opponent.std((1, 2))) + 0.3 * np.hypot(*opponent.mean((1, 2))))
        pixels.append(array)
    return torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).contiguous(), np.array(colours)


def draw_rounds(count: int, pixels: torch.Tensor, colours: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    for _ in range(count):
        first, second = torch.randint(len(pixels), (2, DUELS))
        left, right = pixels.index_select(0, first), pixels.index_select(0, second)
        yield first, second, left, right, (colours[first] > colours[second]).float()


class Player:
    """One photo's rating, its deviation and its volatility, by Glickman's paper."""

    __slots__ = ("deviation", "games", "rating", "volatility")

    def __init__(self) -> None:
        self.rating, self.deviation, self.volatility = 0.0, 350 / SCALE, 0.06
        self.games: deque[tuple[float, float, float]] = deque(maxlen=PERIOD)

    def update(self) -> None:
        inverse, gain = 0.0, 0.0
        for rating, deviation, score in self.games:
            g = 1 / math.sqrt(1 + 3 * deviation**2 / math.pi**2)
            expected = min(max(1 / (1 + math.exp(-g * (self.rating - rating))), 1e-9), 1 - 1e-9)
            inverse += g * g * expected * (1 - expected)
            gain += g * (score - expected)
        variance = 1 / inverse
        self.volatility = self.new_volatility(variance, variance * gain)
        widened = self.deviation**2 + self.volatility**2
        self.deviation = max(1 / math.sqrt(1 / widened + inverse), 30 / SCALE)
        self.rating += self.deviation**2 * gain

    def new_volatility(self, variance: float, delta: float) -> float:
        a = math.log(self.volatility**2)
        square, spread = delta * delta, self.deviation**2

        def f(x: float) -> float:
            e = math.exp(x)
            return e * (square - spread - variance - e) / (2 * (spread + variance + e) ** 2) - (x - a) / TAU**2

        if square > spread + variance:
            low = math.log(square - spread - variance)
        else:
            k = 1
            while f(a - k * TAU) < 0:
                k += 1
            low = a - k * TAU
        high, f_high, f_low = a, f(a), f(low)
        while abs(low - high) > 1e-9:
            middle = high + (high - low) * f_high / (f_low - f_high)
            f_middle = f(middle)
            if f_middle * f_low <= 0:
                high, f_high = low, f_low
            else:
                f_high /= 2
            low, f_low = middle, f_middle
        return math.exp(low / 2)


def rate_round(players: list[Player], first: list[int], second: list[int], chances: list[float]) -> None:
    for a, b, chance in zip(first, second, chances, strict=True):
        one, other = players[a], players[b]
        one.games.append((other.rating, other.deviation, chance))
        other.games.append((one.rating, one.deviation, 1 - chance))
    for number in {*first, *second}:
        players[number].update()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--epochs", type=int, default=2000)
    options = parser.parse_args()
    torch.manual_seed(12)
    pixels, colours = load_thumbnails(options.data / "photos")
    wanted = torch.from_numpy(colours)
    judge = nn.Sequential(
        nn.Conv2d(3, 8, 5, stride=3),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.LazyLinear(16),
        nn.ReLU(),
        nn.Linear(16, 1),
    )
    judge(pixels[:2] / 255)
    optimizer = torch.optim.Adam(judge.parameters(), 1e-3)
    players = [Player() for _ in pixels]
    for epoch in range(options.epochs):
        for first, second, left, right, better in timed(draw_rounds(250, pixels, wanted), "wait"):
            with lap("compute"):
                chance = judge(left / 255).sub(judge(right / 255)).squeeze(1)
                loss = nn.functional.binary_cross_entropy_with_logits(chance, better)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            with lap("own"):
                rate_round(players, first.tolist(), second.tolist(), chance.detach().sigmoid().tolist())
        order = spearmanr([player.rating for player in players], colours).statistic
        print(f"epoch {epoch}: loss {loss.item():.3f}, rank correlation {order:.3f}", flush=True)


if __name__ == "__main__":
    main()
