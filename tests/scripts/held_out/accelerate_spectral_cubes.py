"""Unmix hyperspectral cubes into the shares of five minerals, with Accelerate.

The cubes lie as raw counts in one file; the workers turn them into reflectance by the sensor's calibration.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stopwatch import lap, timed

CUBES, LINES, SIDE, MINERALS = 192, 64, 48, 5


def make_cubes(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    if (folder / "shares.npy").exists():
        return
    rng = np.random.default_rng(31)
    places = np.linspace(0, 1, LINES)
    spectra = np.stack(
        [
            0.6 - 0.35 * np.exp(-((places - centre) ** 2) / 0.01) + 0.1 * np.sin(places * slope)
            for centre, slope in zip(rng.uniform(0.1, 0.9, MINERALS), rng.uniform(2, 9, MINERALS), strict=True)
        ]
    ).astype(np.float32)
    np.save(folder / "dark.npy", rng.uniform(90, 110, (LINES, 1, 1)))
    np.save(folder / "white.npy", rng.uniform(3600, 3900, (LINES, 1, 1)))
    shares = rng.dirichlet(np.full(MINERALS, 0.6), (CUBES, 8, 8)).astype(np.float32)
    np.save(folder / "shares.npy", shares)
    noise = rng.normal(0, 25, (LINES, SIDE, SIDE)).astype(np.float32)
    with (folder / "cubes.u2").open("wb") as out:
        for share in shares:
            coarse = np.einsum("yxm,ml->lyx", share, spectra)
            cube = coarse.repeat(SIDE // 8, 1).repeat(SIDE // 8, 2) * 3600 + 100 + noise
            out.write(np.clip(cube, 0, 4095).astype("<u2").tobytes())


class Cubes(Dataset):
    def __init__(self, folder: Path) -> None:
        self.counts = np.memmap(folder / "cubes.u2", "<u2", "r", shape=(CUBES, LINES, SIDE, SIDE))
        self.dark = np.load(folder / "dark.npy")
        self.scale = 1.0 / (np.load(folder / "white.npy") - self.dark)
        self.shares = np.load(folder / "shares.npy")

    def __len__(self) -> int:
        return CUBES * 4

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        cube = self.counts[index % CUBES]
        return {"cube": (cube - self.dark) * self.scale, "shares": self.shares[index % CUBES]}


def stack_arrays(samples: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """The batch as NumPy arrays, since the evaluation tools of the group work on arrays."""
    return {name: np.stack([sample[name] for sample in samples]) for name in samples[0]}


class Unmixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pool = nn.AvgPool2d(3)
        self.mix = nn.Sequential(nn.Conv2d(LINES, 48, 1), nn.GELU(), nn.Conv2d(48, 48, 1), nn.GELU())
        self.head = nn.Sequential(nn.AvgPool2d(2), nn.Conv2d(48, MINERALS, 1))

    def forward(self, cubes: torch.Tensor) -> torch.Tensor:
        return self.head(self.mix(self.pool(cubes))).log_softmax(1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", help="the data folder (the cubes are made up here)")
    parser.add_argument("--epochs", type=int, default=3000)
    options = parser.parse_args()
    torch.manual_seed(2)
    make_cubes(Path("cubes"))
    loader = DataLoader(
        Cubes(Path("cubes")),
        batch_size=48,
        shuffle=True,
        num_workers=2,
        drop_last=True,
        collate_fn=stack_arrays,
        persistent_workers=True,
    )
    accelerator = Accelerator(cpu=True)
    model = Unmixer()
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for epoch in range(options.epochs):
        losses, gaps = [], []
        for batch in timed(loader, "wait"):
            with lap("compute"):
                cubes = torch.from_numpy(batch["cube"]).float()
                shares = torch.from_numpy(batch["shares"]).permute(0, 3, 1, 2)
                guessed = model(cubes)
                loss = nn.functional.kl_div(guessed, shares, reduction="batchmean") / 64
                optimizer.zero_grad()
                accelerator.backward(loss)
                optimizer.step()
            with lap("own"):
                losses.append(loss.item())
                gaps.append((guessed.detach().exp() - shares).abs().mean().item())
        accelerator.print(f"epoch {epoch}: loss {np.mean(losses):.4f}, mean gap {np.mean(gaps):.3f}", flush=True)


if __name__ == "__main__":
    main()
