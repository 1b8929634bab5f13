"""Reads serial numbers by a CRNN and CTC; some lines of each batch go through a beam search to watch the errors."""

import argparse
import math
import random
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stopwatch import lap, timed

CHARACTERS = "0123456789ABCDEFGHJKLMNPQRSTUVWXYZ-"  # 0 is the blank, so the first has number 1
HEIGHT, WIDTH = 24, 192
NEVER = -math.inf


class Plates(Dataset):
    """Serial numbers drawn on strips of photographs, made once."""

    def __init__(self, root: Path, count=2000, backgrounds=200):
        rng = random.Random(14)
        files = sorted(root.glob("*/*.*"))
        strips = []
        for path in rng.sample(files, min(backgrounds, len(files))):
            image = Image.open(path)
            image.draft("L", (WIDTH, WIDTH))
            strips.append(image.convert("L").resize((WIDTH, HEIGHT)).point(lambda value: value // 3))
        self.images, self.texts = [], []
        for _ in range(count):
            text = "".join(rng.choice(CHARACTERS) for _ in range(rng.randint(12, 20)))
            strip = rng.choice(strips).copy()
            ImageDraw.Draw(strip).text((rng.randint(2, 12), rng.randint(2, 10)), text, fill=rng.randint(170, 255))
            self.images.append(torch.from_numpy(np.array(strip))[None])
            self.texts.append(text)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.images[index], self.texts[index]


def collate(samples):
    images, texts = zip(*samples, strict=True)
    codes = torch.tensor([CHARACTERS.index(character) + 1 for text in texts for character in text])
    return torch.stack(images), codes, torch.tensor([len(text) for text in texts]), texts


class CRNN(nn.Module):
    def __init__(self, hidden=64):
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(1, 12, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(12, 32, 3, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.gru = nn.GRU(32 * HEIGHT // 4, hidden, bidirectional=True)
        self.head = nn.Linear(2 * hidden, len(CHARACTERS) + 1)

    def forward(self, images):
        columns = self.convolutions(images).flatten(1, 2).permute(2, 0, 1)
        return self.head(self.gru(columns)[0]).log_softmax(2)  # time, batch, classes


def log_add(a, b):
    if a == NEVER:
        return b
    if b == NEVER:
        return a
    if a < b:
        a, b = b, a
    return a + math.log1p(math.exp(b - a))


def prefix_beam_search(rows, width=8):
    """Hannun et al. (2014), without a language model. Each prefix has the chances to end in a blank and not to."""
    beams = [((), (0.0, NEVER))]
    for row in rows:
        candidates = defaultdict(lambda: (NEVER, NEVER))
        for prefix, (blank, other) in beams:
            both = log_add(blank, other)
            for symbol, chance in enumerate(row):
                if symbol == 0:
                    a, b = candidates[prefix]
                    candidates[prefix] = (log_add(a, both + chance), b)
                    continue
                longer = (*prefix, symbol)
                if prefix and symbol == prefix[-1]:
                    a, b = candidates[prefix]
                    candidates[prefix] = (a, log_add(b, other + chance))
                    a, b = candidates[longer]
                    candidates[longer] = (a, log_add(b, blank + chance))
                else:
                    a, b = candidates[longer]
                    candidates[longer] = (a, log_add(b, both + chance))
        beams = sorted(candidates.items(), key=lambda item: log_add(*item[1]), reverse=True)[:width]
    return "".join(CHARACTERS[symbol - 1] for symbol in beams[0][0])


def edits(a, b):
    previous = list(range(len(b) + 1))
    for i, x in enumerate(a, start=1):
        current = [i]
        for j, y in enumerate(b, start=1):
            current.append(min(previous[j] + 1, current[-1] + 1, previous[j - 1] + (x != y)))
        previous = current
    return previous[-1]


def error_rate(log_probs, texts, lines):
    guesses = [prefix_beam_search(rows) for rows in log_probs[:, :lines].transpose(0, 1).tolist()]
    wrong = sum(edits(guess, text) for guess, text in zip(guesses, texts, strict=False))
    return wrong / sum(len(text) for text in texts[:lines])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/ctc_plates"))
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--watch", type=int, default=8, help="lines of each batch that are decoded")
    args = parser.parse_args()
    torch.manual_seed(14)
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)

    loader = DataLoader(
        Plates(args.data / "photos"), args.batch_size, shuffle=True, collate_fn=collate, drop_last=True
    )
    model = CRNN()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(args.epochs):
        for step, (images, codes, lengths, texts) in enumerate(timed(loader, "wait")):
            with lap("compute"):
                log_probs = model(images.float().div_(255))
                steps = torch.full((len(images),), len(log_probs))
                loss = nn.functional.ctc_loss(log_probs, codes, steps, lengths, zero_infinity=True)
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 5.0)
                optimizer.step()
            with lap("own"):
                wrong = error_rate(log_probs.detach(), texts, args.watch)
            if step % 20 == 0:
                print(f"epoch {epoch} step {step}: loss {loss.item():.3f}, {wrong:.1%} wrong", flush=True)
        torch.save(model.state_dict(), args.out / "crnn.pt")


if __name__ == "__main__":
    main()
