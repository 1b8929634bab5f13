"""A stand-in for a solver of heat conduction: how warm is a plate with holes after a while? The solver is a program of
its own, as the institute's is, and writes cases to its standard output; the network learns from each case once."""

import argparse
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn

from stopwatch import lap

SOLVER = """
import sys
import numpy as np

side, rounds, seed = map(int, sys.argv[1:])
rng = np.random.default_rng(seed)
try:
    while True:
        conduct = np.ones((side, side), np.float32)
        for _ in range(rng.integers(2, 6)):
            y, x, h, w = rng.integers(2, side - 12, 2).tolist() + rng.integers(4, 10, 2).tolist()
            conduct[y : y + h, x : x + w] = 0.02
        heat = np.zeros((side, side), np.float32)
        edge = np.interp(np.arange(side), np.linspace(0, side, 5), rng.uniform(0, 1, 5)).astype(np.float32)
        down, right = (conduct[1:] + conduct[:-1]) / 2, (conduct[:, 1:] + conduct[:, :-1]) / 2
        for _ in range(rounds):
            heat[:, 0] = edge
            flow = 0.24 * down * (heat[1:] - heat[:-1])
            heat[:-1] += flow
            heat[1:] -= flow
            flow = 0.24 * right * (heat[:, 1:] - heat[:, :-1])
            heat[:, :-1] += flow
            heat[:, 1:] -= flow
        case = np.stack([conduct, np.broadcast_to(edge[:, None], conduct.shape), heat])
        sys.stdout.buffer.write(case.astype(np.float32).tobytes())
        sys.stdout.buffer.flush()
except (BrokenPipeError, KeyboardInterrupt):
    sys.stderr.close()
"""


class Cases:
    def __init__(self, side, rounds, seed=1):
        self.side = side
        command = [sys.executable, "-c", SOLVER, str(side), str(rounds), str(seed)]
        self.solver = subprocess.Popen(command, stdout=subprocess.PIPE)

    def case(self):
        raw = self.solver.stdout.read(3 * self.side * self.side * 4)
        if len(raw) < 3 * self.side * self.side * 4:
            raise RuntimeError(f"the solver ended with {self.solver.wait()}")
        return np.frombuffer(raw, np.float32).reshape(3, self.side, self.side)

    def batch(self, size):
        cases = torch.from_numpy(np.stack([self.case() for _ in range(size)]))
        return cases[:, :2], cases[:, 2:]

    def close(self):
        self.solver.terminate()
        self.solver.wait()


class Spectral(nn.Module):
    """A layer of a Fourier neural operator."""

    def __init__(self, width, modes):
        super().__init__()
        self.modes = modes
        self.weight = nn.Parameter(torch.randn(2, width, width, modes, modes, dtype=torch.cfloat) / width)
        self.local = nn.Conv2d(width, width, 1)

    def forward(self, x):
        m, spectrum = self.modes, torch.fft.rfft2(x)
        out = torch.zeros_like(spectrum)
        out[:, :, :m, :m] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, :m, :m], self.weight[0])
        out[:, :, -m:, :m] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, -m:, :m], self.weight[1])
        return nn.functional.gelu(torch.fft.irfft2(out, s=x.shape[2:]) + self.local(x))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", help="not used: cases come from the solver")
    parser.add_argument("--out", type=Path, default=Path("runs/plate_simulator_pipe"))
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--batch", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=600)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    cases = Cases(side=40, rounds=args.rounds)
    model = nn.Sequential(nn.Conv2d(2, 16, 1), Spectral(16, 8), Spectral(16, 8), nn.Conv2d(16, 1, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9997)
    try:
        for step in range(1, args.steps + 1):
            with lap("wait"):
                plates, heat = cases.batch(args.batch)
            with lap("compute"):
                loss = ((model(plates) - heat).flatten(1).norm(dim=1) / (heat.flatten(1).norm(dim=1) + 0.1)).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
            with lap("own"):
                if step % 20 == 0:
                    print(f"{step}: off by {loss.item():.1%}", flush=True)
                if step % 500 == 0:
                    torch.save(model.state_dict(), args.out / "operator.pt")
    finally:
        cases.close()


if __name__ == "__main__":
    main()
