"""A byte-level LSTM on source code: streams of two folders, chained, behind a shuffle buffer."""

import argparse
import random
import sysconfig
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import ChainDataset, DataLoader, IterableDataset, get_worker_info

from stopwatch import lap, timed


class SourceFiles(IterableDataset):
    """Windows of `length + 1` bytes of each file of a folder, in order."""

    def __init__(self, folder: Path, pattern: str, length: int):
        self.files = sorted(folder.glob(pattern))
        self.length = length

    def __iter__(self):
        info = get_worker_info()
        files = self.files[info.id :: info.num_workers] if info else list(self.files)
        random.shuffle(files)
        for path in files:
            with lap("read"):
                text = np.frombuffer(path.read_bytes(), np.uint8)
            for start in range(0, len(text) - self.length, self.length):
                yield text[start : start + self.length + 1]


class ShuffleBuffer(IterableDataset):
    def __init__(self, source: IterableDataset, size: int):
        self.source, self.size = source, size

    def __iter__(self):
        buffer = []
        for item in self.source:
            if len(buffer) < self.size:
                buffer.append(item)
                continue
            place = random.randrange(self.size)
            item, buffer[place] = buffer[place], item
            yield torch.from_numpy(item.astype(np.int64))
        random.shuffle(buffer)
        for item in buffer:
            yield torch.from_numpy(item.astype(np.int64))


class ByteLSTM(nn.Module):
    def __init__(self, embedding=96, hidden=192, layers=2):
        super().__init__()
        self.embed = nn.Embedding(256, embedding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True, dropout=0.1)
        self.head = nn.Linear(hidden, 256)

    def forward(self, tokens, state=None):
        output, state = self.lstm(self.embed(tokens), state)
        return self.head(output), state


@torch.no_grad()
def sample(model, prompt=b"def ", length=40):
    model.eval()
    tokens, state, written = torch.tensor([list(prompt)]), None, list(prompt)
    for _ in range(length):
        logits, state = model(tokens, state)
        tokens = torch.multinomial(logits[:, -1].softmax(1), 1)
        written.append(tokens.item())
    model.train()
    return bytes(written).decode("ascii", "replace")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", nargs="?", help="not used: Python's own library is the corpus")
    parser.add_argument("--out", type=Path, default=Path("runs/lstm_source_code"))
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--batch", type=int, default=24)
    parser.add_argument("--length", type=int, default=80)
    parser.add_argument("--workers", type=int, default=1)
    args = parser.parse_args()
    torch.manual_seed(9)
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)

    library = Path(sysconfig.get_paths()["stdlib"])
    streams = ChainDataset(
        [SourceFiles(library, "*.py", args.length), SourceFiles(library, "[a-m]*/*.py", args.length)]
    )
    loader = DataLoader(ShuffleBuffer(streams, 2048), batch_size=args.batch, num_workers=args.workers, drop_last=True)
    model = ByteLSTM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    step = 0
    while step < args.steps:
        for windows in timed(loader, "wait"):
            with lap("compute"):
                logits, _ = model(windows[:, :-1])
                loss = nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
            step += 1
            if step % 25 == 0:
                print(f"step {step}: {loss.item() / np.log(2):.3f} bits a byte", flush=True)
            if step % 200 == 0:
                print(sample(model), flush=True)
            if step == args.steps:
                break
        torch.save(model.state_dict(), args.out / "lstm.pt")


if __name__ == "__main__":
    main()
