"""Hugging Face Trainer: which desk wrote the note? Each desk has its own vocabulary. So that the network does not
learn spelling, the collator rewrites notes by rules of the house style, other ones each time."""

import argparse
import random
import re
from contextlib import ExitStack

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments

from stopwatch import lap

DESKS, LENGTH, VOCABULARY = 6, 96, 512
ENDINGS = ["ise", "our", "re", "ogue", "yse", "ence", "elled", "ae"]
AMERICAN = dict(zip(ENDINGS, ["ize", "or", "er", "og", "yze", "ense", "eled", "e"]))


def words(count, rng):
    parts = "col org cent dial anal lic trav medi hon fib cat par off mod arch".split()
    return sorted({"".join(rng.choices(parts, k=rng.choice([2, 2, 3]))) + rng.choice(ENDINGS) for _ in range(count)})


def rules(lexicon):
    """Pattern and replacement for each word: spelling, keeping what follows, with its plural or possessive."""
    table = []
    for word in lexicon:
        ending = next(ending for ending in ENDINGS if word.endswith(ending))
        stem = re.escape(word.removesuffix(ending))
        table.append((rf"(?<!\w)({stem}){ending}(s|d|'s|ing)?(?=[\s,.;:]|$)", rf"\1{AMERICAN[ending]}\2"))
    return table


class Notes(Dataset):
    def __init__(self, lexicon, count, seed=2):
        rng = random.Random(seed)
        shares = [rng.sample(lexicon, len(lexicon) // 5) for _ in range(DESKS)]
        self.items = []
        for number in range(count):
            pool = shares[number % DESKS] + rng.sample(lexicon, len(lexicon) // 4)
            text = " ".join(rng.choice(pool) + rng.choice(["", "", "s", ",", "."]) for _ in range(60))
            self.items.append({"text": text, "label": number % DESKS})

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]


class HouseStyle:
    """Rewrites, and makes numbers of words (by their hash, as fastText does)."""

    def __init__(self, table, each=80):
        self.table, self.each = table, each

    def rewrite(self, text):
        for pattern, replacement in random.sample(self.table, self.each):
            text = re.sub(pattern, replacement, text)
        return text

    def encode(self, text):
        codes = [1 + sum(word.encode()) * 31 % (VOCABULARY - 1) for word in text.split()[:LENGTH]]
        return codes + [0] * (LENGTH - len(codes))

    def __call__(self, samples):
        ids = torch.tensor([self.encode(self.rewrite(sample["text"])) for sample in samples])
        labels = torch.tensor([sample["label"] for sample in samples])
        return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": labels}


class Laps(TrainerCallback):
    def __init__(self):
        self.stack = ExitStack()

    def turn(self, name):
        self.stack.close()
        self.stack.enter_context(lap(name))

    def on_epoch_begin(self, args, state, control, **kwargs):
        self.turn("wait")

    def on_step_begin(self, args, state, control, **kwargs):
        self.turn("compute")

    def on_step_end(self, args, state, control, **kwargs):
        self.turn("own" if control.should_log or control.should_save else "wait")

    def on_log(self, args, state, control, **kwargs):
        self.turn("wait")

    def on_train_end(self, args, state, control, **kwargs):
        self.stack.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", help="not used: the notes are made up")
    parser.add_argument("--out", default="runs/trainer_house_style")
    parser.add_argument("--words", type=int, default=2600)
    parser.add_argument("--max-steps", type=int, default=20_000)
    args = parser.parse_args()
    torch.set_num_threads(1)
    lexicon = words(args.words, random.Random(1))
    config = BertConfig(
        vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=LENGTH, num_labels=DESKS,
    )  # fmt: skip
    settings = TrainingArguments(
        output_dir=args.out, max_steps=args.max_steps, per_device_train_batch_size=12, learning_rate=1e-3,
        warmup_steps=100, logging_steps=50, save_steps=1000, save_total_limit=1, dataloader_num_workers=1,
        dataloader_persistent_workers=True, dataloader_pin_memory=False, remove_unused_columns=False, report_to="none",
        disable_tqdm=True, use_cpu=True,
    )  # fmt: skip
    Trainer(
        model=BertForSequenceClassification(config), args=settings, train_dataset=Notes(lexicon, 3000),
        data_collator=HouseStyle(rules(lexicon)), callbacks=[Laps()],
    ).train()  # fmt: skip


if __name__ == "__main__":
    main()
