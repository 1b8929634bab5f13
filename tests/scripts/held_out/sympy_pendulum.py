"""Sparse identification of a pendulum with friction: angles come as noisy pictures of numbers (32 sensors), an
autoencoder finds the two coordinates and a sparse library of terms their equations of motion.

    python sympy_pendulum.py DATA --steps 20000
"""

import argparse
from pathlib import Path

import sympy
import torch
from torch import nn

from stopwatch import lap

TERMS = ["1", "x", "v", "x*x", "x*v", "v*v", "sin(x)", "cos(x)", "x*x*x", "x*x*v", "x*v*v", "v*v*v"]


def simulate(runs, length, dt=0.02, friction=0.15):
    """Semi-implicit Euler from random beginnings: states (runs, length, 2) and their derivatives."""
    x, v = torch.empty(runs).uniform_(-2, 2), torch.empty(runs).uniform_(-1.5, 1.5)
    states, slopes = [], []
    for _ in range(length):
        a = -torch.sin(x) - friction * v
        states.append(torch.stack([x, v], 1))
        slopes.append(torch.stack([v, a], 1))
        v = v + dt * a
        x = x + dt * v
    return torch.stack(states, 1), torch.stack(slopes, 1)


def library(z):
    x, v = z.unbind(-1)
    one = torch.ones_like(x)
    cubes = [x * x * x, x * x * v, x * v * v, v * v * v]
    return torch.stack([one, x, v, x * x, x * v, v * v, x.sin(), x.cos(), *cubes], -1)


class Identifier(nn.Module):
    def __init__(self, sensors, hidden=96):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(sensors, hidden), nn.ELU(), nn.Linear(hidden, hidden), nn.ELU(), nn.Linear(hidden, 2)
        )
        self.decoder = nn.Sequential(
            nn.Linear(2, hidden), nn.ELU(), nn.Linear(hidden, hidden), nn.ELU(), nn.Linear(hidden, sensors)
        )
        self.coefficients = nn.Parameter(0.3 * torch.randn(len(TERMS), 2))
        self.register_buffer("mask", torch.ones(len(TERMS), 2))

    def forward(self, seen, speed):
        z, dz = torch.func.jvp(self.encoder, (seen,), (speed,))
        guess = library(z) @ (self.coefficients * self.mask)
        back = self.decoder(z)
        rebuilt = (back - seen).square().mean()
        sparse = self.coefficients.abs().mean()
        return rebuilt + 0.1 * (guess - dz).square().mean() + 1e-3 * sparse, rebuilt


class Notebook:
    """The equations as people write them, and what they say about the point of rest."""

    def __init__(self, path):
        self.file = path.open("w")
        self.x, self.v = sympy.symbols("x v", real=True)
        self.terms = [sympy.sympify(term, locals={"x": self.x, "v": self.v}) for term in TERMS]

    def equations(self, coefficients):
        columns = coefficients.T.tolist()
        return [sum(sympy.Float(round(c, 3), 4) * t for c, t in zip(column, self.terms)) for column in columns]

    def enter(self, step, coefficients, loss):
        field = sympy.Matrix(self.equations(coefficients))
        jacobian = field.jacobian([self.x, self.v])
        divergence = sympy.collect(sympy.expand(jacobian.trace()), self.x)
        rotation = sympy.expand(jacobian.det())
        rest = jacobian.subs({self.x: 0, self.v: 0}).evalf()
        lines = [sympy.latex(equation) for equation in field] + [sympy.latex(divergence), sympy.latex(rotation)]
        modes = ", ".join(str(sympy.N(mode, 3)) for mode in rest.eigenvals())
        self.file.write(f"% step {step}, loss {loss:.5f}, modes {modes}\n" + "\n".join(lines) + "\n")
        self.file.flush()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", help="not used, the pendulum is simulated")
    parser.add_argument("--out", type=Path, default=Path("runs/sympy_pendulum"))
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--batch-size", type=int, default=512)
    args = parser.parse_args()
    torch.manual_seed(4)
    args.out.mkdir(parents=True, exist_ok=True)

    states, slopes = (part.flatten(0, 1) for part in simulate(200, 100))
    mixing = torch.randn(2, 32)
    seen, speed = torch.tanh(states @ mixing), (1 - torch.tanh(states @ mixing).square()) * (slopes @ mixing)
    model, notebook = Identifier(seen.shape[1]), Notebook(args.out / "equations.tex")
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(args.steps):
        with lap("wait"):
            chosen = torch.randint(len(seen), (args.batch_size,))
            a, b = seen[chosen] + 0.01 * torch.randn(args.batch_size, 32), speed[chosen]
        with lap("compute"):
            loss, rebuilt = model(a, b)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if step % 8 == 0:
            with lap("own"):
                notebook.enter(step, (model.coefficients * model.mask).detach(), loss.item())
        if step % 2000 == 1999:
            model.mask[model.coefficients.detach().abs() < 0.03] = 0
        if step % 100 == 0:
            print(f"{step:6d}: {loss.item():.5f} (rebuilt {rebuilt.item():.5f})", flush=True)
            torch.save(model.state_dict(), args.out / "pendulum.pt")


if __name__ == "__main__":
    main()
