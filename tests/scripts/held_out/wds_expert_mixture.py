"""WebDataset: texts in shards (one gzipped JSON of lines for each), a byte transformer with a mixture of experts. Each
token goes to the best of its experts; their loads are evened out by a loss and written down."""

import argparse
import gzip
import json
import sysconfig
from collections import Counter
from pathlib import Path

import torch
import webdataset as wds
from torch import nn

from stopwatch import lap, timed


def write_shards(folder, files):
    folder.mkdir(parents=True, exist_ok=True)
    with wds.ShardWriter(str(folder / "texts-%02d.tar"), maxcount=25, verbose=0) as sink:
        for number, file in enumerate(files):
            lines = file.read_text(encoding="utf-8", errors="ignore").splitlines()
            sink.write({"__key__": f"{number:05d}", "pack": gzip.compress(json.dumps({"lines": lines}).encode())})


def windows(samples, length):
    """Texts of lines, glued together and cut."""
    for sample in samples:
        lines = json.loads(gzip.decompress(sample["pack"]))["lines"]
        row = []
        for line in lines:
            indent = len(line) - len(line.lstrip(" "))
            row.extend([min(indent // 4, 8) + 1])
            for byte in line.strip().encode():
                row.append(byte if 32 <= byte < 128 else 31)
            while len(row) > length:
                yield torch.tensor(row[: length + 1])
                row = row[length:]


class Experts(nn.Module):
    def __init__(self, width, count):
        super().__init__()
        self.gate = nn.Linear(width, count, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(count)
        )

    def forward(self, x):
        flat = x.flatten(0, 1)
        weights, chosen = self.gate(flat).softmax(1).max(1)
        out = torch.zeros_like(flat)
        for k, expert in enumerate(self.experts):
            rows = (chosen == k).nonzero().squeeze(1)
            if len(rows):
                out = out.index_add(0, rows, weights[rows, None] * expert(flat[rows]))
        share = nn.functional.one_hot(chosen, len(self.experts)).float().mean(0)
        balance = len(self.experts) * (share * self.gate(flat).softmax(1).mean(0)).sum()
        return out.view_as(x), balance, chosen


class Layer(nn.Module):
    def __init__(self, width, heads, experts):
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.experts = Experts(width, experts)

    def forward(self, x, mask):
        y = self.first(x)
        x = x + self.attention(y, y, y, attn_mask=mask, need_weights=False)[0]
        y, balance, chosen = self.experts(self.second(x))
        return x + y, balance, chosen


class Writer(nn.Module):
    def __init__(self, width=128, depth=4, heads=4, experts=6, length=128):
        super().__init__()
        self.embed, self.place = nn.Embedding(128, width), nn.Parameter(0.02 * torch.randn(length, width))
        self.layers = nn.ModuleList(Layer(width, heads, experts) for _ in range(depth))
        self.head = nn.Linear(width, 128)
        self.register_buffer("mask", torch.full((length, length), float("-inf")).triu(1))

    def forward(self, tokens):
        x, balances, routes = self.embed(tokens) + self.place, [], []
        for layer in self.layers:
            x, balance, chosen = layer(x, self.mask)
            balances.append(balance)
            routes.append(chosen)
        return self.head(x), torch.stack(balances).mean(), torch.stack(routes)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", help="not used: texts are the standard library's")
    parser.add_argument("--out", type=Path, default=Path("runs/wds_expert_mixture"))
    parser.add_argument("--steps", type=int, default=20_000)
    args = parser.parse_args()
    write_shards(args.out / "shards", sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:150])
    shards = sorted(str(path) for path in (args.out / "shards").glob("*.tar"))
    stream = wds.WebDataset(shards, shardshuffle=len(shards), empty_check=False).repeat()
    stream = stream.compose(lambda samples: windows(samples, 128)).shuffle(500, initial=100)
    stream = stream.batched(10, collation_fn=torch.stack, partial=False)
    loader = wds.WebLoader(stream, batch_size=None, num_workers=0)
    model, used = Writer(), Counter()
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, weight_decay=0.05)
    for step, rows in enumerate(timed(loader, "wait")):
        with lap("compute"):
            logits, balance, routes = model(rows[:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
            optimizer.zero_grad()
            (loss + 0.01 * balance).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        with lap("own"):
            for depth, chosen in enumerate(routes.tolist()):
                used.update((depth, expert) for expert in chosen)
            if step % 20 == 0:
                loads = {f"{depth}/{expert}": count for (depth, expert), count in sorted(used.items())}
                (args.out / "loads.json").write_text(json.dumps(loads))
                print(f"step {step}: loss {loss.item():.4f}, balance {balance.item():.3f}", flush=True)
                used.clear()
            if step % 500 == 499:
                torch.save(model.state_dict(), args.out / "writer.pt")
        if step == args.steps:
            break


if __name__ == "__main__":
    main()
