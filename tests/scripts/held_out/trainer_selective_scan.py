"""Hugging Face Trainer: a selective state space model (after Mamba) on the bytes of Python's standard library, kept
in a Hugging Face dataset. The scan over time is written as a loop, which is slow but easy to follow."""

import argparse
import sysconfig
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import torch
from datasets import Dataset
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments

from stopwatch import lap

LENGTH = 64


class Selective(nn.Module):
    def __init__(self, width, inner, states=8):
        super().__init__()
        self.norm, self.states = nn.LayerNorm(width), states
        self.enter, self.leave = nn.Linear(width, 2 * inner), nn.Linear(inner, width)
        self.near = nn.Conv1d(inner, inner, 4, padding=3, groups=inner)
        self.choose, self.pace = nn.Linear(inner, 2 * states), nn.Linear(inner, inner)
        self.rates = nn.Parameter(torch.arange(1.0, states + 1).log().repeat(inner, 1))
        self.skip = nn.Parameter(torch.ones(inner))

    def scan(self, x, pace, into, out):
        decay = torch.exp(-pace[..., None] * self.rates.exp())
        drive = (pace * x)[..., None] * into[:, :, None]
        state, outputs = torch.zeros_like(drive[:, 0]), []
        for step in range(x.shape[1]):
            state = decay[:, step] * state + drive[:, step]
            outputs.append((state * out[:, step, None]).sum(-1))
        return torch.stack(outputs, 1) + self.skip * x

    def forward(self, x):
        inner, gate = self.enter(self.norm(x)).chunk(2, -1)
        inner = nn.functional.silu(self.near(inner.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))
        into, out = self.choose(inner).chunk(2, -1)
        pace = nn.functional.softplus(self.pace(inner) - 3)
        return x + self.leave(self.scan(inner, pace, into, out) * nn.functional.silu(gate))


class Reader(nn.Module):
    def __init__(self, width=96, depth=2):
        super().__init__()
        self.embed = nn.Embedding(128, width)
        self.layers = nn.Sequential(*(Selective(width, 2 * width) for _ in range(depth)), nn.LayerNorm(width))
        self.head = nn.Linear(width, 128)

    def forward(self, input_ids, labels=None):
        logits = self.head(self.layers(self.embed(input_ids)))
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return {"loss": loss, "logits": logits}


def encode(batch):
    rows, labels = [], []
    for text in batch["text"]:
        codes = []
        for letter in text:
            code = ord(letter)
            codes.append(code if 32 <= code < 127 or code == 10 else 31)
        start = int(torch.randint(len(codes) - LENGTH - 1, ()))
        rows.append(torch.tensor(codes[start : start + LENGTH]))
        labels.append(torch.tensor(codes[start + 1 : start + LENGTH + 1]))
    return {"input_ids": rows, "labels": labels}


def passages():
    for file in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:150]:
        text = file.read_text(encoding="utf-8", errors="ignore")
        for start in range(0, len(text) - 1500, 1500):
            yield {"text": text[start : start + 1500]}


class Laps(TrainerCallback):
    """Also counts the bytes that have been seen, and writes them down."""

    def __init__(self, file):
        self.file, self.stack, self.seen = file, ExitStack(), Counter()

    def turn(self, name):
        self.stack.close()
        self.stack.enter_context(lap(name))

    def on_epoch_begin(self, args, state, control, **kwargs):
        self.turn("wait")

    def on_step_begin(self, args, state, control, **kwargs):
        self.turn("compute")

    def on_step_end(self, args, state, control, model=None, **kwargs):
        self.turn("own")
        self.seen.update(model.embed.weight.detach().norm(dim=1).topk(8).indices.tolist())
        spread = {
            name: f"{weight.detach().std().item():.4f}"
            for name, weight in model.named_parameters()
            if weight.dim() > 1
        }
        with self.file.open("a") as file:
            file.write(f"{state.global_step} {spread} {self.seen.most_common(5)}\n")
        self.turn("wait")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", help="not used: texts are the standard library's")
    parser.add_argument("--out", type=Path, default=Path("runs/trainer_selective_scan"))
    parser.add_argument("--max-steps", type=int, default=20_000)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    texts = Dataset.from_list(list(passages())).with_transform(encode)
    settings = TrainingArguments(
        output_dir=str(args.out), max_steps=args.max_steps, per_device_train_batch_size=12, learning_rate=2e-3,
        warmup_steps=100, weight_decay=0.05, logging_steps=20, save_steps=1000, save_total_limit=1, report_to="none",
        disable_tqdm=True, use_cpu=True, dataloader_pin_memory=False, remove_unused_columns=False,
    )  # fmt: skip
    Trainer(model=Reader(), args=settings, train_dataset=texts, callbacks=[Laps(args.out / "reader.txt")]).train()


if __name__ == "__main__":
    main()
