"""Which part of the standard library does a snippet come from? fastText's idea (bags of hashed character n-grams) in
PyTorch and Ignite."""

import argparse
import random
import sysconfig
import zlib
from contextlib import ExitStack
from pathlib import Path

import torch
from ignite.engine import Events, create_supervised_trainer
from ignite.handlers import ModelCheckpoint
from ignite.metrics import RunningAverage
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stopwatch import lap

PARTS = ["asyncio", "concurrent", "email", "http", "json", "logging", "multiprocessing", "unittest", "xml", "urllib"]


class Snippets(Dataset):
    def __init__(self, length, characters=420):
        library = Path(sysconfig.get_paths()["stdlib"])
        self.texts = []
        for part in PARTS:
            files = sorted((library / part).rglob("*.py"))
            self.texts.append("\n".join(file.read_text(errors="ignore") for file in files if "test" not in file.name))
        self.length, self.characters = length, characters

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        label = index % len(PARTS)
        text = self.texts[label]
        begin = random.randrange(len(text) - self.characters)
        return text[begin : begin + self.characters], label


def as_lists(samples):
    texts, labels = zip(*samples)
    return list(texts), torch.tensor(labels)


class Ngrams:
    """Numbers of the hashed n-grams of a text, words' borders marked as in fastText."""

    def __init__(self, buckets, smallest=3, largest=5):
        self.buckets, self.sizes = buckets, range(smallest, largest + 1)

    def of(self, text):
        numbers = []
        for word in text.split():
            marked = f"<{word}>".encode()
            for size in self.sizes:
                for at in range(len(marked) - size + 1):
                    numbers.append(zlib.crc32(marked[at : at + size]) % self.buckets)
        return numbers or [0]


class Bag(nn.Module):
    def __init__(self, buckets, width=48):
        super().__init__()
        self.bag = nn.EmbeddingBag(buckets, width, mode="mean", sparse=True)
        self.head = nn.Sequential(nn.Linear(width, 64), nn.Tanh(), nn.Dropout(0.2), nn.Linear(64, len(PARTS)))

    def forward(self, batch):
        return self.head(self.bag(*batch))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", help="not used, the text is Python's own")
    parser.add_argument("--out", default="runs/ignite_prepare_snippets")
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--buckets", type=int, default=1 << 16)
    parser.add_argument("--workers", type=int, default=1)
    args = parser.parse_args()
    random.seed(5)

    snippets = Snippets(64 * 120)
    loader = DataLoader(
        snippets, 64, shuffle=True, num_workers=args.workers, collate_fn=as_lists, persistent_workers=True
    )
    ngrams, model, laps = Ngrams(args.buckets), Bag(args.buckets), ExitStack()
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0)

    def prepare(batch, device=None, non_blocking=False):
        texts, labels = batch
        with lap("wait"):
            numbers, offsets = [], []
            for text in texts:
                offsets.append(len(numbers))
                numbers += ngrams.of(text)
            inputs = torch.tensor(numbers, device=device), torch.tensor(offsets, device=device)
        laps.enter_context(lap("compute"))
        return inputs, labels.to(device)

    trainer = create_supervised_trainer(model, optimizer, nn.CrossEntropyLoss(), prepare_batch=prepare)
    trainer.add_event_handler(Events.GET_BATCH_STARTED, lambda: laps.enter_context(lap("wait")))
    trainer.add_event_handler(Events.GET_BATCH_COMPLETED, laps.close)
    trainer.add_event_handler(Events.ITERATION_COMPLETED, laps.close)
    RunningAverage(output_transform=lambda loss: loss).attach(trainer, "loss")

    @trainer.on(Events.ITERATION_COMPLETED(every=60))
    def tell(engine):
        print(
            f"{engine.state.epoch:3d} {engine.state.iteration:6d}  loss {engine.state.metrics['loss']:.4f}",
            flush=True,
        )

    @trainer.on(Events.EPOCH_COMPLETED)
    def slower(engine):
        for group in optimizer.param_groups:
            group["lr"] *= 0.97

    keep = ModelCheckpoint(args.out, "snippets", n_saved=1, require_empty=False)
    trainer.add_event_handler(Events.EPOCH_COMPLETED(every=5), keep, {"model": model})
    trainer.run(loader, max_epochs=args.epochs)


if __name__ == "__main__":
    main()
