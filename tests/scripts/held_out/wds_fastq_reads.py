"""WebDataset: which organism does a sequencing read come from? Shards hold chunks of FASTQ, gzipped as the machine
writes them. Reads are trimmed by quality, and counts of canonical words of five bases go through a small network."""

import argparse
import gzip
from collections import Counter
from itertools import product
from pathlib import Path

import numpy as np
import torch
import webdataset as wds
from torch import nn

from stopwatch import lap, timed

BASES = "ACGT"
OTHER = {"A": "T", "C": "G", "G": "C", "T": "A"}


def reverse(word):
    return "".join(OTHER[base] for base in reversed(word))


WORDS = {}
for letters in product(BASES, repeat=5):
    word = "".join(letters)
    WORDS.setdefault(word, WORDS.get(reverse(word), len(set(WORDS.values()))))
SIZE = len(set(WORDS.values()))


def sequence(folder, organisms, chunks, each=100, length=250):
    """Made-up genomes, and reads of them with errors where quality is low."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(8)
    letters = np.frombuffer(BASES.encode(), np.uint8)
    genomes = [letters[rng.choice(4, 40_000, p=rng.dirichlet([6] * 4))] for _ in range(organisms)]
    with wds.ShardWriter(str(folder / "lane-%02d.tar"), maxcount=20, verbose=0) as sink:
        for number in range(chunks):
            lines = []
            for read in range(each):
                source = int(rng.integers(organisms))
                start = int(rng.integers(40_000 - length))
                bases = genomes[source][start : start + length].copy()
                quality = np.clip(38 - np.arange(length) / 12 + rng.normal(0, 3, length), 2, 40).astype(np.uint8)
                wrong = rng.random(length) < 10 ** (-quality / 10)
                bases[wrong] = letters[rng.integers(4, size=int(wrong.sum()))]
                lines += [f"@{number}:{read} organism={source}", bases.tobytes().decode(), "+",
                          (quality + 33).tobytes().decode()]  # fmt: skip
            sink.write({"__key__": f"{number:05d}", "fastq.gz": "\n".join(lines).encode()})


def trim(bases, quality, window=8, least=20):
    """Cuts a read where the mean quality of a window falls below the least."""
    scores = [ord(letter) - 33 for letter in quality]
    for start in range(len(scores) - window + 1):
        if sum(scores[start : start + window]) < least * window:
            return bases[:start]
    return bases


def reads(samples):
    for sample in samples:
        lines = gzip.decompress(sample["fastq.gz"]).decode().split("\n")
        for k in range(0, len(lines) - 3, 4):
            label = int(lines[k].rpartition("=")[2])
            bases = trim(lines[k + 1], lines[k + 3])
            if len(bases) < 60:
                continue
            counts = Counter(WORDS[bases[at : at + 5]] for at in range(len(bases) - 4))
            vector = torch.zeros(SIZE)
            for word, count in counts.items():
                vector[word] = count
            yield vector / vector.sum() * SIZE, label


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", help="not used: reads are made up")
    parser.add_argument("--out", type=Path, default=Path("runs/wds_fastq_reads"))
    parser.add_argument("--steps", type=int, default=50_000)
    parser.add_argument("--organisms", type=int, default=12)
    args = parser.parse_args()
    torch.set_num_threads(1)
    sequence(args.out / "lanes", args.organisms, chunks=120)
    lanes = sorted(str(path) for path in (args.out / "lanes").glob("*.tar"))
    stream = wds.WebDataset(lanes, shardshuffle=len(lanes), nodesplitter=None, empty_check=False).repeat()
    stream = stream.compose(reads).shuffle(800, initial=100).batched(48, partial=False)
    loader = wds.WebLoader(stream, batch_size=None, num_workers=1, prefetch_factor=4)
    model = nn.Sequential(
        nn.Linear(SIZE, 192), nn.LayerNorm(192), nn.GELU(), nn.Dropout(0.2),
        nn.Linear(192, 192), nn.GELU(), nn.Linear(192, args.organisms),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.02)
    right = seen = 0
    for step, (counts, labels) in enumerate(timed(loader, "wait")):
        with lap("compute"):
            labels = torch.as_tensor(labels)
            scores = model(counts)
            loss = nn.functional.cross_entropy(scores, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with lap("own"):
            right += int((scores.argmax(1) == labels).sum())
            seen += len(labels)
            if step % 100 == 0:
                print(f"step {step}: loss {loss.item():.4f}, {right / seen:.1%} right", flush=True)
                right = seen = 0
            if step % 1000 == 999:
                torch.save(model.state_dict(), args.out / "reads.pt")
        if step == args.steps:
            break


if __name__ == "__main__":
    main()
