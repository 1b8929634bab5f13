"fastai: phones in speech, frame by frame. Frames flicker; what counts is the error of the segments after smoothing."

import argparse
import math
from contextlib import ExitStack
from pathlib import Path

import torch
from fastai.callback.core import Callback
from fastai.callback.progress import ProgressCallback
from fastai.callback.schedule import *  # noqa: F403
from fastai.data.core import DataLoaders
from fastai.data.load import DataLoader
from fastai.learner import Learner
from torch import nn

from stopwatch import lap

PHONES, BANDS, FRAMES = 20, 32, 90


def utterances(count):
    "Formants of made-up phones, each held for a while, under noise"
    torch.manual_seed(6)
    formants = torch.rand(PHONES, 3) * BANDS
    band = torch.arange(BANDS)
    shapes = torch.exp(-((band[None, :, None] - formants[:, None]) ** 2) / 6).sum(2)
    items = []
    for _ in range(count):
        labels = []
        while len(labels) < FRAMES:
            labels += [int(torch.randint(PHONES, ()))] * int(torch.randint(4, 12, ()))
        labels = torch.tensor(labels[:FRAMES])
        items.append((shapes[labels] * (0.5 + torch.rand(())) + 0.6 * torch.randn(FRAMES, BANDS), labels))
    return items


class Frames(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv1d(BANDS, width, 5, padding=2), nn.BatchNorm1d(width), nn.ReLU())
        self.wide = nn.Sequential(nn.Conv1d(width, width, 5, padding=4, dilation=2), nn.BatchNorm1d(width), nn.ReLU())
        self.head = nn.Conv1d(width, PHONES, 1)

    def forward(self, x):
        x = self.conv(x.transpose(1, 2))
        return self.head(x + self.wide(x))


class Laps(Callback):
    order, stack = 60, ExitStack()

    def turn(self, name=None):
        self.stack.close()
        if name and self.training:
            self.stack.enter_context(lap(name))

    def before_batch(self):
        self.turn("compute")

    def after_step(self):
        self.turn("own")

    def after_batch(self):
        self.turn("wait")

    def after_train(self):
        self.turn()


class Segments(Callback):
    "Share of segments that are missed after the most likely path with a price for each change"

    order = 65

    def __init__(self, file, stay=0.85):
        self.file = file
        self.keep, self.change = math.log(stay), math.log((1 - stay) / (PHONES - 1))

    def before_fit(self):
        self.stream = self.file.open("w", buffering=1)

    def viterbi(self, frames):
        best, back = list(frames[0]), []
        for frame in frames[1:]:
            following, origin = [], []
            for state, score in enumerate(frame):
                top, source = -math.inf, 0
                for before, value in enumerate(best):
                    value += self.keep if before == state else self.change
                    if value > top:
                        top, source = value, before
                following.append(top + score)
                origin.append(source)
            best = following
            back.append(origin)
        state = max(range(PHONES), key=best.__getitem__)
        path = [state]
        for origin in reversed(back):
            state = origin[state]
            path.append(state)
        return path[::-1]

    def missed(self, path, labels):
        starts = [0] + [k for k in range(1, FRAMES) if labels[k] != labels[k - 1]] + [FRAMES]
        bad = 0
        for start, end in zip(starts, starts[1:]):
            bad += 2 * sum(path[k] == labels[k] for k in range(start, end)) < end - start
        return bad / (len(starts) - 1)

    def after_step(self):
        if not self.training:
            return
        chances = self.pred.detach().log_softmax(1).transpose(1, 2).tolist()
        rates = [self.missed(self.viterbi(frames), labels) for frames, labels in zip(chances, self.yb[0].tolist())]
        self.stream.write(f"{self.train_iter}\t{self.loss.item():.4f}\t{sum(rates) / len(rates):.4f}\n")

    def after_fit(self):
        self.stream.close()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", help="not used: speech is made up")
    parser.add_argument("--out", type=Path, default=Path("runs/fastai_phone_segments"))
    parser.add_argument("--epochs", type=int, default=100)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    items = utterances(2600)
    train = DataLoader(items[100:], bs=16, shuffle=True, drop_last=True, num_workers=0)
    valid = DataLoader(items[:100], bs=50, num_workers=0)
    learner = Learner(
        DataLoaders(train, valid, device=torch.device("cpu")), Frames(), nn.CrossEntropyLoss(), path=args.out,
        cbs=[Laps(), Segments(args.out / "segments.tsv")],
    )  # fmt: skip
    learner.remove_cb(ProgressCallback)
    learner.fit_one_cycle(args.epochs, 3e-3)
    learner.save("phones")


if __name__ == "__main__":
    main()
