"""Hugging Face Trainer: a small BERT reads series of quantised sensor values and tells the machine's state. The
laboratory's notebook wants YAML, so there is a journal beside the checkpoints."""

import argparse
import platform
import time
from collections import deque
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import torch
import yaml
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments

from stopwatch import lap

STATES = ["idle", "cutting", "worn tool", "imbalance", "jam"]


class Series(Dataset):
    def __init__(self, count, length=48, levels=64, seed=0):
        rng = np.random.default_rng(seed)
        time_ = np.arange(length)
        labels = rng.integers(len(STATES), size=count)
        speed = 0.15 + 0.12 * labels[:, None] + 0.02 * rng.normal(size=(count, 1))
        values = np.sin(speed * time_ + rng.uniform(0, 6, (count, 1))) + 0.3 * rng.normal(size=(count, length))
        values += np.where(labels[:, None] == 4, np.linspace(0, 1.5, length), 0)
        edges = np.quantile(values, np.linspace(0, 1, levels + 1)[1:-1])
        self.tokens, self.labels = np.digitize(values, edges), labels

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return {"input_ids": torch.from_numpy(self.tokens[index]), "labels": int(self.labels[index])}


@dataclass
class Entry:
    step: int
    epoch: float
    seconds: float
    rate: float
    norms: dict = field(default_factory=dict)
    note: str = ""


class Journal(TrainerCallback):
    """What happened in the last steps, and in which surroundings; kept complete on disk at any time."""

    def __init__(self, path, last=120):
        self.path, self.entries, self.began = path, deque(maxlen=last), time.time()
        self.head = {"machine": platform.node(), "python": platform.python_version(), "torch": torch.__version__}

    def norms(self, model):
        return {
            name.removeprefix("bert.").removesuffix(".dense.weight"): round(weight.detach().norm().item(), 4)
            for name, weight in model.named_parameters()
            if name.endswith("dense.weight")
        }

    def write(self):
        page = {
            "head": {key: str(value) for key, value in self.head.items()},
            "entries": [asdict(e) for e in self.entries],
        }
        part = self.path.with_suffix(".part")
        part.write_text(yaml.safe_dump(page, sort_keys=False, allow_unicode=True))
        part.replace(self.path)

    def on_step_end(self, args, state, control, model=None, lr_scheduler=None, **kwargs):
        with lap("own"):
            rate = float(lr_scheduler.get_last_lr()[0])
            note = "warm-up" if state.global_step < args.warmup_steps else ""
            seconds = round(time.time() - self.began, 2)
            self.entries.append(Entry(state.global_step, state.epoch, seconds, rate, self.norms(model), note))
            self.write()


class Laps(TrainerCallback):
    def __init__(self, closes=False):
        self.stack, self.closes = Laps.shared, closes

    shared = ExitStack()

    def on_step_begin(self, args, state, control, **kwargs):
        if not self.closes:
            self.stack.close()
            self.stack.enter_context(lap("compute"))

    def on_step_end(self, args, state, control, **kwargs):
        self.stack.close()
        if self.closes:
            self.stack.enter_context(lap("wait"))

    def on_train_end(self, args, state, control, **kwargs):
        self.stack.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", help="not used: series are simulated")
    parser.add_argument("--out", type=Path, default=Path("runs/trainer_yaml_journal"))
    parser.add_argument("--max-steps", type=int, default=8000)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    config = BertConfig(
        vocab_size=64, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128,
        max_position_embeddings=48, num_labels=len(STATES),
    )  # fmt: skip
    settings = TrainingArguments(
        output_dir=str(options.out), max_steps=options.max_steps, per_device_train_batch_size=24, learning_rate=5e-4,
        warmup_steps=100, lr_scheduler_type="cosine", logging_steps=50, save_steps=1000, save_total_limit=1,
        report_to="none", disable_tqdm=True, use_cpu=True, dataloader_num_workers=0, dataloader_pin_memory=False,
    )  # fmt: skip
    callbacks = [Laps(), Journal(options.out / "journal.yaml"), Laps(closes=True)]
    model = BertForSequenceClassification(config)
    Trainer(model=model, args=settings, train_dataset=Series(20_000), callbacks=callbacks).train()


if __name__ == "__main__":
    main()
