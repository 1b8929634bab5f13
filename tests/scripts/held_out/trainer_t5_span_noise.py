"""A tiny T5 learns to fill gaps in Python's own documentation strings: bytes as tokens, spans cut out at random by the
collator (span corruption as in the T5 paper), within the Trainer of transformers."""

import argparse
import ast
import random
import sysconfig
from contextlib import ExitStack
from pathlib import Path

import torch
from datasets import Dataset
from transformers import T5Config, T5ForConditionalGeneration, Trainer, TrainerCallback, TrainingArguments

from stopwatch import lap

PAD, END, SENTINELS = 0, 1, 32
OFFSET = 2
VOCABULARY = OFFSET + 256 + SENTINELS


def docstrings(files):
    for file in files:
        try:
            tree = ast.parse(file.read_text(errors="ignore"))
        except SyntaxError:
            continue
        for node in ast.walk(tree):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and (text := ast.get_docstring(node)):
                if len(text) >= 160:
                    yield {"text": text}


class SpanNoise:
    """Cuts spans out; they are to be written down by the decoder, each behind its sentinel."""

    def __init__(self, length, noise=0.15, span=4):
        self.length, self.noise, self.span = length, noise, span

    def crop(self, text):
        data = text.encode()
        begin = random.randrange(max(len(data) - self.length, 0) + 1)
        return [byte + OFFSET for byte in data[begin : begin + self.length]]

    def corrupt(self, tokens):
        source, target, at, used = [], [], 0, 0
        while at < len(tokens):
            if used < SENTINELS and random.random() < self.noise / self.span:
                size = max(1, round(random.expovariate(1 / self.span)))
                sentinel = OFFSET + 256 + used
                source.append(sentinel)
                target += [sentinel, *tokens[at : at + size]]
                at, used = at + size, used + 1
            else:
                source.append(tokens[at])
                at += 1
        return [*source, END], [*target, END]

    def __call__(self, examples):
        pairs = [self.corrupt(self.crop(example["text"])) for example in examples]
        longest = [max(len(pair[side]) for pair in pairs) for side in (0, 1)]
        sources = [source + [PAD] * (longest[0] - len(source)) for source, _ in pairs]
        targets = [target + [-100] * (longest[1] - len(target)) for _, target in pairs]
        inputs = torch.tensor(sources)
        return {"input_ids": inputs, "attention_mask": (inputs != PAD).long(), "labels": torch.tensor(targets)}


class Laps(TrainerCallback):
    stack = ExitStack()

    def turn(self, name=None):
        self.stack.close()
        if name:
            self.stack.enter_context(lap(name))

    def on_step_begin(self, args, state, control, **kwargs):
        self.turn("compute")

    def on_step_end(self, args, state, control, **kwargs):
        self.turn("wait")

    def on_train_end(self, args, state, control, **kwargs):
        self.turn()


class LossTable(TrainerCallback):
    """The losses as a table for the plot."""

    def __init__(self, file):
        self.file = file

    def on_log(self, args, state, control, model=None, logs=None, **kwargs):
        with self.file.open("a") as file:
            file.write(f"{state.global_step}\t{(logs or {}).get('loss')}\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", help="not used, texts are the standard library's")
    parser.add_argument("--out", type=Path, default=Path("runs/trainer_t5_span_noise"))
    parser.add_argument("--max-steps", type=int, default=5000)
    parser.add_argument("--length", type=int, default=144)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:60]
    data = Dataset.from_list(list(docstrings(files)))
    print(f"{len(data)} docstrings", flush=True)
    noise = SpanNoise(options.length)
    config = T5Config(
        vocab_size=VOCABULARY, d_model=128, d_kv=32, d_ff=384, num_layers=4, num_heads=4, num_decoder_layers=3,
        feed_forward_proj="gated-gelu", pad_token_id=PAD, eos_token_id=END, decoder_start_token_id=PAD,
    )  # fmt: skip
    settings = TrainingArguments(
        output_dir=str(options.out), max_steps=options.max_steps, per_device_train_batch_size=6, learning_rate=1e-3,
        lr_scheduler_type="constant_with_warmup", warmup_steps=50, logging_steps=5, save_steps=200, save_total_limit=1,
        remove_unused_columns=False, report_to="none", disable_tqdm=True, use_cpu=True, dataloader_pin_memory=False,
    )  # fmt: skip
    Trainer(
        model=T5ForConditionalGeneration(config), args=settings, train_dataset=data, data_collator=noise,
        callbacks=[Laps(), LossTable(options.out / "loss.tsv")],
    ).train()  # fmt: skip


if __name__ == "__main__":
    main()
