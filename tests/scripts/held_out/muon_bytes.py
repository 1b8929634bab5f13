"""A byte-level language model of Python's standard library, trained by Muon (orthogonalised momentum) for matrices and
AdamW for everything else. Text is a Hugging Face dataset."""

import argparse
import math
import sysconfig
from pathlib import Path

import torch
from datasets import Dataset, disable_caching, disable_progress_bars
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from stopwatch import lap, timed


def chunks(length, most):
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    text = b"\n".join(file.read_bytes() for file in files)
    rows = [list(text[at : at + length + 1]) for at in range(0, min(len(text) - length - 1, most * length), length)]
    return Dataset.from_dict({"bytes": rows}).with_format("torch")


def orthogonal(matrix, rounds=5, a=3.4445, b=-4.7750, c=2.0315):
    """Newton and Schulz: nearest (semi-)orthogonal matrix, roughly."""
    x = matrix / (matrix.norm() + 1e-7)
    tall = x.shape[0] > x.shape[1]
    x = x.T if tall else x
    for _ in range(rounds):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if tall else x


class Muon(torch.optim.Optimizer):
    def __init__(self, params, lr=0.02, momentum=0.95, weight_decay=0.01):
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for weight in group["params"]:
                state = self.state[weight]
                buffer = state.setdefault("momentum", torch.zeros_like(weight))
                buffer.lerp_(weight.grad, 1 - group["momentum"])
                update = orthogonal(weight.grad.lerp(buffer, group["momentum"]))
                scale = max(1, weight.shape[0] / weight.shape[1]) ** 0.5
                weight.mul_(1 - group["lr"] * group["weight_decay"]).add_(update, alpha=-group["lr"] * scale)


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.qkv, self.mix = (
            heads,
            nn.Linear(width, 3 * width, bias=False),
            nn.Linear(width, width, bias=False),
        )
        self.up, self.down = nn.Linear(width, 3 * width, bias=False), nn.Linear(3 * width, width, bias=False)
        self.a, self.b = nn.RMSNorm(width), nn.RMSNorm(width)

    def forward(self, x):
        q, k, v = self.qkv(self.a(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.mix(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.relu(self.up(self.b(x))).square())


class ByteModel(nn.Module):
    def __init__(self, length, width=256, depth=3, heads=4):
        super().__init__()
        self.embed, self.place = nn.Embedding(256, width), nn.Parameter(0.02 * torch.randn(length, width))
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(depth))
        self.head = nn.Linear(width, 256)

    def forward(self, x):
        h = self.embed(x) + self.place
        for layer in self.layers:
            h = layer(h)
        return self.head(h)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", help="not used")
    parser.add_argument("--out", type=Path, default=Path("runs/muon_bytes"))
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=4)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    disable_caching()
    disable_progress_bars()
    torch.set_num_threads(1)
    loader = DataLoader(chunks(args.length, 4000), args.batch_size, shuffle=True, drop_last=True)
    model = ByteModel(args.length)
    matrices = [weight for weight in model.layers.parameters() if weight.ndim == 2]
    rest = [weight for weight in model.parameters() if not any(weight is other for other in matrices)]
    optimizers = [Muon(matrices), torch.optim.AdamW(rest, lr=2e-3)]
    with (args.out / "bits.txt").open("w") as log:
        for epoch in range(args.epochs):
            for step, batch in enumerate(timed(loader, "wait")):
                with lap("compute"):
                    logits = model(batch["bytes"][:, :-1])
                    loss = F.cross_entropy(logits.flatten(0, 1), batch["bytes"][:, 1:].flatten())
                    loss.backward()
                    for optimizer in optimizers:
                        optimizer.step()
                        optimizer.zero_grad()
                with lap("own"):
                    bits = loss.item() / math.log(2)
                    print(f"{epoch} {step} {bits:.4f}", file=log, flush=True)
                if step % 50 == 0:
                    print(f"epoch {epoch} step {step}: {bits:.3f} bits a byte", flush=True)
            torch.save(model.state_dict(), args.out / "bytes.pt")


if __name__ == "__main__":
    main()
