"""Which words stand near each other? Skip-gram with negative samples and a large table of hashed words. Runs of this kind
blew up now and then, so the last good state is at hand, and a step that spoils it is taken back."""

import argparse
import copy
import math
import re
import sysconfig
import zlib
from collections import deque
from pathlib import Path

import torch
from torch import nn

from stopwatch import lap, timed

WORD = re.compile(r"[A-Za-z_]{3,}")


def corpus(files, buckets):
    words = []
    for file in files:
        text = file.read_text(encoding="utf-8", errors="ignore")
        words += [zlib.crc32(word.lower().encode()) % buckets for word in WORD.findall(text)]
    return torch.tensor(words)


def pairs(words, batch, reach=4):
    """Endless batches of a word and one of its neighbours."""
    while True:
        centre = torch.randint(reach, len(words) - reach, (batch,))
        offset = torch.randint(1, reach + 1, (batch,)) * (2 * torch.randint(2, (batch,)) - 1)
        yield words[centre], words[centre + offset]


class SkipGram(nn.Module):
    def __init__(self, buckets, width):
        super().__init__()
        self.inner = nn.Embedding(buckets, width, sparse=True)
        self.outer = nn.Embedding(buckets, width, sparse=True)
        nn.init.uniform_(self.inner.weight, -0.5 / width, 0.5 / width)
        nn.init.zeros_(self.outer.weight)

    def forward(self, centre, neighbour, others):
        centre = self.inner(centre)
        near = (centre * self.outer(neighbour)).sum(1)
        far = torch.einsum("bd,bkd->bk", centre, self.outer(others))
        return -(nn.functional.logsigmoid(near) + nn.functional.logsigmoid(-far).sum(1)).mean()


class SafetyNet:
    def __init__(self, model, optimizer, tolerance=1.6):
        self.model, self.optimizer, self.tolerance = model, optimizer, tolerance
        self.losses, self.undone = deque(maxlen=50), 0
        self.keep()

    def keep(self):
        self.good = {
            "model": copy.deepcopy(self.model.state_dict()),
            "optimizer": copy.deepcopy(self.optimizer.state_dict()),
        }

    def restore(self):
        self.model.load_state_dict(self.good["model"])
        self.optimizer.load_state_dict(copy.deepcopy(self.good["optimizer"]))
        self.undone += 1

    def check(self, loss):
        usual = sum(self.losses) / len(self.losses) if self.losses else loss
        if not math.isfinite(loss) or loss > self.tolerance * usual:
            self.restore()
            return False
        self.losses.append(loss)
        self.keep()
        return True


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", help="not used: words are those of the standard library")
    parser.add_argument("--out", type=Path, default=Path("runs/rollback_embeddings"))
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--buckets", type=int, default=60_000)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--batch", type=int, default=512)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(13)
    torch.set_num_threads(1)
    words = corpus(sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")), args.buckets)
    model = SkipGram(args.buckets, args.width)
    optimizer = torch.optim.SparseAdam(model.parameters(), lr=2e-3)
    net, total = SafetyNet(model, optimizer), 0.0
    for step, (centre, neighbour) in enumerate(timed(pairs(words, args.batch), "wait"), start=1):
        with lap("compute"):
            others = words[torch.randint(len(words), (len(centre), 8))]
            loss = model(centre, neighbour, others)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with lap("own"):
            net.check(loss.item())
            total += loss.item()
            if step % 100 == 0:
                print(f"step {step}: loss {total / 100:.4f}, {net.undone} undone", flush=True)
                total = 0.0
            if step % 2000 == 0:
                torch.save(model.inner.weight.detach(), args.out / "words.pt")
        if step == args.steps:
            break


if __name__ == "__main__":
    main()
