"""Hugging Face Trainer: a small GPT-2 on Python's own help texts, with a byte pair encoding learnt at the start.

The collator turns the passages of a batch to tokens, as one does with a tokenizer of the hub.
"""

import argparse
import random
from collections import Counter
from pathlib import Path

import torch
from pydoc_data.topics import topics
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from stopwatch import lap


class BytePairs:
    """Byte pair encoding over plain bytes, without a split into words."""

    def __init__(self, text: bytes, merges: int):
        self.ranks: dict[tuple[int, int], int] = {}
        codes = list(text)
        for number in range(merges):
            counts = Counter(zip(codes, codes[1:], strict=False))
            pair, often = counts.most_common(1)[0]
            if often < 2:
                break
            self.ranks[pair] = 256 + number
            codes = self.merge(codes, pair, 256 + number)
        self.size = 256 + len(self.ranks) + 1
        self.pad = self.size - 1

    @staticmethod
    def merge(codes, pair, new):
        merged, position, last = [], 0, len(codes) - 1
        while position <= last:
            if position < last and codes[position] == pair[0] and codes[position + 1] == pair[1]:
                merged.append(new)
                position += 2
            else:
                merged.append(codes[position])
                position += 1
        return merged

    def encode(self, text: bytes):
        codes = list(text)
        while len(codes) > 1:
            pair = min(set(zip(codes, codes[1:], strict=False)), key=lambda pair: self.ranks.get(pair, 1 << 30))
            if pair not in self.ranks:
                break
            codes = self.merge(codes, pair, self.ranks[pair])
        return codes


class Passages(Dataset):
    """Random passages of the help texts."""

    def __init__(self, texts, size: int, length: int):
        self.texts = [text for text in texts if len(text) > 2 * size]
        self.sizes = [len(text) for text in self.texts]
        self.size, self.length = size, length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        text = random.choices(self.texts, self.sizes)[0]
        start = random.randrange(len(text) - self.size)
        return text[start : start + self.size]


class Collator:
    def __init__(self, pairs: BytePairs, longest: int):
        self.pairs, self.longest = pairs, longest

    def __call__(self, passages):
        with lap("collate"):
            rows = [self.pairs.encode(passage)[: self.longest] for passage in passages]
        width = max(len(row) for row in rows)
        tokens = torch.full((len(rows), width), self.pairs.pad)
        mask = torch.zeros((len(rows), width), dtype=torch.long)
        for number, row in enumerate(rows):
            tokens[number, : len(row)] = torch.tensor(row)
            mask[number, : len(row)] = 1
        return {"input_ids": tokens, "attention_mask": mask, "labels": tokens.masked_fill(mask == 0, -100)}


class LappedTrainer(Trainer):
    def get_batch_samples(self, *args, **kwargs):
        with lap("wait"):
            return super().get_batch_samples(*args, **kwargs)

    def training_step(self, *args, **kwargs):
        with lap("compute"):
            return super().training_step(*args, **kwargs)


class Keeper(TrainerCallback):
    def __init__(self, out: Path):
        self.out = out

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        self.open = lap("compute")
        self.open.__enter__()

    def on_optimizer_step(self, args, state, control, **kwargs):
        self.open.__exit__(None, None, None)

    def on_log(self, args, state, control, logs=None, **kwargs):
        print(state.global_step, logs, flush=True)

    def on_epoch_end(self, args, state, control, model=None, **kwargs):
        torch.save(model.state_dict(), self.out / "gpt.pt")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/bpe_trainer_collator"))
    parser.add_argument("--epochs", type=float, default=10)
    parser.add_argument("--merges", type=int, default=300)
    parser.add_argument("--passage", type=int, default=1200, help="bytes")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    random.seed(25)
    torch.set_num_threads(1)

    texts = [text.encode() for text in topics.values()]
    pairs = BytePairs(b"".join(texts)[100_000:130_000], options.merges)
    print(f"{pairs.size} tokens, the longest merges come last: {list(pairs.ranks)[-3:]}", flush=True)
    config = GPT2Config(
        vocab_size=pairs.size,
        n_positions=128,
        n_embd=64,
        n_layer=2,
        n_head=4,
        bos_token_id=pairs.pad,
        eos_token_id=pairs.pad,
        pad_token_id=pairs.pad,
    )
    arguments = TrainingArguments(
        output_dir=str(options.out),
        num_train_epochs=options.epochs,
        per_device_train_batch_size=12,
        dataloader_num_workers=2,
        dataloader_persistent_workers=True,
        dataloader_pin_memory=False,
        remove_unused_columns=False,
        learning_rate=1e-3,
        lr_scheduler_type="cosine",
        save_strategy="no",
        report_to=[],
        logging_steps=25,
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = LappedTrainer(
        model=GPT2LMHeadModel(config),
        args=arguments,
        train_dataset=Passages(texts, options.passage, length=960),
        data_collator=Collator(pairs, longest=128),
        callbacks=[Keeper(options.out)],
    )
    trainer.train()


if __name__ == "__main__":
    main()
