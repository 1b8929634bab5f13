"""Lightning: a biaffine dependency parser (after Dozat and Manning) for sentences of a toy language with projective
trees. Attachment scores are reported for whole trees, as decoded by Eisner's algorithm, not for single arcs."""

import argparse
import random
from contextlib import ExitStack
from pathlib import Path

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader

from stopwatch import lap

WORDS, KINDS = 240, 6


def sentence(rng, length):
    """Words and their heads; word 0 is the root. A head's kind says which kinds of words stand where beside it."""
    heads, kinds = [0] * (length + 1), [0] * (length + 1)

    def grow(first, last, head):
        if first > last:
            return
        middle = rng.randint(first, last)
        heads[middle] = head
        kinds[middle] = (kinds[head] * 2 + (middle < head) + rng.choice([1, 1, 1, 2])) % KINDS
        grow(first, middle - 1, middle)
        grow(middle + 1, last, middle)

    grow(1, length, 0)
    words = [0] + [1 + kind * (WORDS // KINDS) + rng.randrange(WORDS // KINDS) for kind in kinds[1:]]
    return torch.tensor(words), torch.tensor(heads)


def treebank(count, length=13, seed=4):
    rng = random.Random(seed)
    return [sentence(rng, length) for _ in range(count)]


def eisner(scores):
    """The best projective tree. scores[h][m] is for head h of word m; returns the head of each word."""
    n = len(scores)
    whole = [[[(0.0, ())] * 2 for _ in range(n)] for _ in range(n)]
    half = [[[(0.0, ())] * 2 for _ in range(n)] for _ in range(n)]

    def join(pairs):
        return max(((a[0] + b[0], a[1] + b[1]) for a, b in pairs), key=lambda span: span[0])

    for width in range(1, n):
        for i in range(n - width):
            j = i + width
            score, arcs = join((whole[i][k][1], whole[k + 1][j][0]) for k in range(i, j))
            half[i][j] = [(score + scores[j][i], (*arcs, (j, i))), (score + scores[i][j], (*arcs, (i, j)))]
            left = join((whole[i][k][0], half[k][j][0]) for k in range(i, j))
            right = join((half[i][k][1], whole[k][j][1]) for k in range(i + 1, j + 1))
            whole[i][j] = [left, right]
    heads = [0] * n
    for head, word in whole[0][n - 1][1][1]:
        heads[word] = head
    return heads


class Parser(L.LightningModule):
    def __init__(self, width=48):
        super().__init__()
        self.embed = nn.Embedding(WORDS + 1, width)
        self.read = nn.LSTM(width, width, batch_first=True, bidirectional=True)
        self.head, self.word = nn.Linear(2 * width, width), nn.Linear(2 * width, width)
        self.arc = nn.Parameter(torch.randn(width + 1, width) / width**0.5)

    def forward(self, words):
        states = self.read(self.embed(words))[0]
        head, word = self.head(states).relu(), self.word(states).relu()
        head = torch.cat([head, torch.ones_like(head[..., :1])], 2)
        return head @ self.arc @ word.transpose(1, 2)

    def training_step(self, batch, index):
        words, heads = batch
        scores = self(words)
        loss = nn.functional.cross_entropy(scores[:, :, 1:], heads[:, 1:])
        self.log("arc_loss", loss)
        return {"loss": loss, "scores": scores.detach()}

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=2e-3, betas=(0.9, 0.9))


class Laps(L.Callback):
    stack = ExitStack()

    def __init__(self, end):
        self.end = end

    def turn(self, name):
        self.stack.close()
        self.stack.enter_context(lap(name))

    def on_train_epoch_start(self, trainer, module):
        self.turn("wait")

    def on_train_batch_start(self, trainer, module, batch, index):
        self.turn("compute")

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        self.turn(self.end)

    def on_train_epoch_end(self, trainer, module):
        self.stack.close()


class TreeScores(L.Callback):
    """Unlabelled attachment score and share of whole trees that are right."""

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        right = whole = 0
        for scores, heads in zip(outputs["scores"].tolist(), batch[1].tolist()):
            guess = eisner(scores)
            hits = sum(a == b for a, b in zip(guess[1:], heads[1:]))
            right += hits / (len(heads) - 1)
            whole += hits == len(heads) - 1
        module.log_dict({"uas": right / len(batch[1]), "trees": whole / len(batch[1])}, prog_bar=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", help="not used: the treebank is made up")
    parser.add_argument("--out", type=Path, default=Path("runs/lightning_dependency_trees"))
    parser.add_argument("--epochs", type=int, default=400)
    args = parser.parse_args()
    torch.set_num_threads(1)
    loader = DataLoader(treebank(4000), 16, shuffle=True, drop_last=True)
    trainer = L.Trainer(
        max_epochs=args.epochs, accelerator="cpu", default_root_dir=args.out, enable_progress_bar=False,
        callbacks=[Laps("own"), TreeScores(), Laps("wait")], enable_model_summary=False, log_every_n_steps=50,
    )  # fmt: skip
    trainer.fit(Parser(), loader)


if __name__ == "__main__":
    main()
