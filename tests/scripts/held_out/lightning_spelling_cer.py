"""Lightning: a small convolutional corrector of typing errors, followed by its character and word error rates."""

import argparse
import re
import sysconfig
from contextlib import ExitStack
from pathlib import Path

import lightning as L
import torch
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from stopwatch import lap
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

ALPHABET = " abcdefghijklmnopqrstuvwxyz"
WIDTH = 56


def phrases(count):
    """Phrases out of the standard library's comments, cut to WIDTH characters."""
    found = []
    for file in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        for line in file.read_text(errors="ignore").splitlines():
            words = re.sub(r"[^a-z ]+", " ", line.lower()).split()
            text = " ".join(words)
            if len(text) >= 30:
                found.append(text[:WIDTH].ljust(WIDTH))
    return found[:count]


def numbers(texts):
    return torch.tensor([[ALPHABET.index(letter) for letter in text] for text in texts])


class Typist:
    """Collates clean phrases; some letters are mistyped, some swapped with the next one."""

    def __init__(self, rate=0.12):
        self.rate = rate

    def __call__(self, samples):
        clean = torch.stack([sample[0] for sample in samples])
        wrong = torch.where(torch.rand(clean.shape) < self.rate, torch.randint(len(ALPHABET), clean.shape), clean)
        swapped = torch.rand(len(clean)) < 0.5
        wrong[swapped, 5:7] = wrong[swapped, 5:7].flip(1)
        return wrong, clean


def edits(guess, truth):
    """Levenshtein distance of two sequences."""
    row = list(range(len(truth) + 1))
    for i, left in enumerate(guess, 1):
        previous, row = row, [i]
        for j, right in enumerate(truth, 1):
            row.append(min(previous[j] + 1, row[-1] + 1, previous[j - 1] + (left != right)))
    return row[-1]


def error_rates(guesses, truths):
    letters = sum(edits(guess, truth) for guess, truth in zip(guesses, truths))
    words = sum(edits(guess.split(), truth.split()) for guess, truth in zip(guesses, truths))
    return letters / sum(map(len, truths)), words / sum(len(truth.split()) for truth in truths)


class Corrector(L.LightningModule):
    def __init__(self, width=40, depth=2):
        super().__init__()
        self.save_hyperparameters()
        self.letters = nn.Embedding(len(ALPHABET), width)
        self.blocks = nn.ModuleList(nn.Conv1d(width, width, 7, padding=3) for _ in range(depth))
        self.out = nn.Conv1d(width, len(ALPHABET), 1)
        self.laps = ExitStack()

    def forward(self, typed):
        x = self.letters(typed).transpose(1, 2)
        for block in self.blocks:
            x = x + torch.relu(block(x))
        return self.out(x)

    def on_train_batch_start(self, batch, batch_idx):
        self.laps.close()
        self.laps.enter_context(lap("compute"))

    def training_step(self, batch, batch_idx):
        typed, clean = batch
        scores = self(typed)
        loss = nn.functional.cross_entropy(scores, clean)
        self.log("loss", loss)
        return {"loss": loss, "guess": scores.detach().argmax(1)}

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.laps.close()
        with lap("own"):
            guesses = ["".join(ALPHABET[n] for n in line).rstrip() for line in outputs["guess"].tolist()]
            truths = ["".join(ALPHABET[n] for n in line).rstrip() for line in batch[1].tolist()]
            cer, wer = error_rates(guesses, truths)
            self.log_dict({"cer": cer, "wer": wer})
        self.laps.enter_context(lap("wait"))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=3e-3)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.97)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("data", help="not used")
    parser.add_argument("--out", default="runs/lightning_spelling_cer")
    parser.add_argument("--epochs", type=int, default=100)
    options = parser.parse_args()
    L.seed_everything(8)
    torch.set_num_threads(1)
    train = TensorDataset(numbers(phrases(6400)))
    loader = DataLoader(train, 96, shuffle=True, collate_fn=Typist(), num_workers=1, persistent_workers=True)
    logger = CSVLogger(options.out)
    callbacks = [LearningRateMonitor(), ModelCheckpoint(monitor="cer", save_top_k=2, filename="{epoch}-{cer:.3f}")]
    trainer = L.Trainer(
        accelerator="cpu", max_epochs=options.epochs, logger=logger, callbacks=callbacks, log_every_n_steps=20,
        default_root_dir=options.out, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Corrector(), loader)
