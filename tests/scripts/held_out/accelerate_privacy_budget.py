"""Accelerate: a classifier of patients' tables trained with differential privacy. Gradients are clipped for each
patient, noise is added, and a Renyi accountant (Mironov et al., 2019) tells after each step what has been spent."""

import argparse
import json
import math
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.utils.data import DataLoader, TensorDataset

from stopwatch import lap, timed


def log_add(a, b):
    if a == -math.inf or b == -math.inf:
        return max(a, b)
    return max(a, b) + math.log1p(math.exp(-abs(a - b)))


def log_choose(n, k):
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


class Accountant:
    """Renyi differential privacy of the sampled Gaussian mechanism, summed over steps that may differ in their rate."""

    def __init__(self, orders):
        self.orders = orders
        self.spent = dict.fromkeys(orders, 0.0)

    def divergence(self, order, rate, noise):
        total = -math.inf
        for k in range(order + 1):
            term = log_choose(order, k) + k * math.log(rate) + (order - k) * math.log1p(-rate)
            total = log_add(total, term + k * (k - 1) / (2 * noise**2))
        return total / (order - 1)

    def step(self, rate, noise):
        for order in self.orders:
            self.spent[order] += self.divergence(order, rate, noise)

    def epsilon(self, delta):
        return min(
            spent + math.log((order - 1) / order) - (math.log(delta) + math.log(order)) / (order - 1)
            for order, spent in self.spent.items()
        )


def patients(count, columns=40):
    torch.manual_seed(31)
    table = torch.randn(count, columns)
    risk = (table[:, :8] * torch.randn(8)).sum(1) + table[:, 8] * table[:, 9]
    return TensorDataset(table, torch.bucketize(risk, torch.tensor([-2.0, 0.0, 2.0])))


class Ward(nn.Module):
    def __init__(self, columns=40, width=96, kinds=4):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(columns, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, kinds)
        )

    def forward(self, table):
        return self.body(table)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", help="not used: patients are made up")
    parser.add_argument("--out", type=Path, default=Path("runs/accelerate_privacy_budget"))
    parser.add_argument("--steps", type=int, default=40_000)
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--noise", type=float, default=1.1)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    accelerator = Accelerator(cpu=True)
    data = patients(6000)
    loader = DataLoader(data, 64, shuffle=True, drop_last=True, num_workers=0)
    model = Ward()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    weights = dict(model.named_parameters())

    def loss_of(weights, row, label):
        return nn.functional.cross_entropy(functional_call(model, weights, (row[None],)), label[None])

    each = vmap(grad(loss_of), in_dims=(None, 0, 0))
    accountant = Accountant(list(range(2, 193)))
    step = 0
    while step < args.steps:
        for rows, labels in timed(loader, "wait"):
            with lap("compute"):
                gradients = each({name: weight.detach() for name, weight in weights.items()}, rows, labels)
                norms = torch.stack([g.flatten(1).norm(dim=1) for g in gradients.values()]).norm(dim=0)
                factor = (args.clip / (norms + 1e-6)).clamp(max=1)
                for name, weight in weights.items():
                    total = torch.einsum("b,b...->...", factor, gradients[name])
                    weight.grad = (total + args.noise * args.clip * torch.randn_like(total)) / len(rows)
                optimizer.step()
            step += 1
            with lap("own"):
                accountant.step(len(rows) / len(data), args.noise)
                spent = {f"{delta:g}": round(accountant.epsilon(delta), 4) for delta in (1e-4, 1e-5, 1e-6)}
                with open(args.out / "budget.jsonl", "a") as file:
                    file.write(
                        json.dumps({"step": step, "clipped": (factor < 1).float().mean().item(), **spent}) + "\n"
                    )
                if step % 50 == 0:
                    with torch.no_grad():
                        right = (model(rows).argmax(1) == labels).float().mean()
                    accelerator.print(f"step {step}: {right:.0%} right, epsilon {spent['1e-05']:.2f}", flush=True)
                if step % 1000 == 0:
                    accelerator.save_model(model, str(args.out / "ward"))
            if step == args.steps:
                break


if __name__ == "__main__":
    main()
