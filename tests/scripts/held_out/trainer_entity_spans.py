"""Tag the people, places, firms and dates in made-up notices with a small DistilBERT and the Hugging Face Trainer.

After each step the spans of the training batch are scored, so that the log shows which kinds are learnt when.
"""

import argparse
import random
from collections import Counter, defaultdict

import torch
from torch.utils.data import Dataset
from transformers import DistilBertConfig, DistilBertForTokenClassification, Trainer, TrainerCallback
from transformers import TrainingArguments

from stopwatch import lap

KINDS = ("PER", "LOC", "ORG", "DAT")
TAGS = ["O"] + [f"{place}-{kind}" for kind in KINDS for place in ("B", "I", "E", "S")]
LENGTH, WORDS, NOTICES = 96, 3000, 1600


class Notices(Dataset):
    """Each kind of entity has its own words; the words between entities are common to all."""

    def __init__(self, seed: int) -> None:
        draw = random.Random(seed)
        self.rows = []
        for _ in range(NOTICES):
            words, tags = [], []
            while len(words) < LENGTH:
                gap = draw.randint(1, 2)
                words += [draw.randrange(10, 1800) for _ in range(gap)]
                tags += [0] * gap
                kind, size = draw.randrange(len(KINDS)), draw.choice((1, 1, 2, 3))
                words += [1800 + kind * 300 + draw.randrange(300) for _ in range(size)]
                first = 1 + 4 * kind
                tags += [first + 3] if size == 1 else [first] + [first + 1] * (size - 2) + [first + 2]
            self.rows.append({"input_ids": torch.tensor(words[:LENGTH]), "labels": torch.tensor(tags[:LENGTH])})

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return self.rows[index]


def decode_spans(tags: list[str]) -> list[tuple[str, int, int]]:
    """The spans (kind, begin, end) in a row of BIOES tags; broken spans are closed where they break."""
    spans, kind, begin = [], None, 0
    for place, tag in enumerate(tags):
        prefix, _, name = tag.partition("-")
        if kind is not None and (prefix in ("B", "S", "O") or name != kind):
            spans.append((kind, begin, place))
            kind = None
        if prefix in ("B", "S") or (prefix in ("I", "E") and kind is None):
            kind, begin = name, place
        if prefix in ("E", "S"):
            spans.append((kind, begin, place + 1))
            kind = None
    if kind is not None:
        spans.append((kind, begin, len(tags)))
    return spans


def align_spans(found: list[tuple[str, int, int]], known: list[tuple[str, int, int]]) -> list[tuple[float, int, int]]:
    """Pair the spans off, the best overlap first, as the MUC scorers do."""
    pairs = []
    for place, (_, begin, end) in enumerate(known):
        for other, (_, found_begin, found_end) in enumerate(found):
            shared = min(end, found_end) - max(begin, found_begin)
            if shared > 0:
                pairs.append((shared / (max(end, found_end) - min(begin, found_begin)), place, other))
    pairs.sort(reverse=True)
    taken_known, taken_found, chosen = set(), set(), []
    for pair in pairs:
        if pair[1] not in taken_known and pair[2] not in taken_found:
            taken_known.add(pair[1])
            taken_found.add(pair[2])
            chosen.append(pair)
    return chosen


class SpanScores:
    """Exact, partial and mistaken matches by kind, and the overlaps whatever the kind."""

    def __init__(self) -> None:
        self.counts: dict[str, Counter] = defaultdict(Counter)
        self.confusions: Counter = Counter()
        self.overlaps: list[float] = []

    def add(self, guessed: list[list[int]], wanted: list[list[int]]) -> None:
        for guessed_row, wanted_row in zip(guessed, wanted, strict=True):
            found = decode_spans([TAGS[tag] for tag in guessed_row])
            known = decode_spans([TAGS[tag] for tag in wanted_row])
            self.confusions.update(zip(wanted_row, guessed_row, strict=True))
            for overlap, place, other in align_spans(found, known):
                self.overlaps.append(overlap)
                if found[other][0] != known[place][0]:
                    self.counts[known[place][0]]["mistaken"] += 1
            for kind in KINDS:
                found_kind = [span for span in found if span[0] == kind]
                for overlap, _, _ in align_spans(found_kind, [span for span in known if span[0] == kind]):
                    self.counts[kind]["exact" if overlap == 1.0 else "partial"] += 1
            for kind, _, _ in known:
                self.counts[kind]["known"] += 1
            for kind, _, _ in found:
                self.counts[kind]["found"] += 1

    def summary(self) -> str:
        parts = []
        for kind in KINDS:
            count = self.counts[kind]
            score = 2 * count["exact"] / max(count["known"] + count["found"], 1)
            parts.append(f"{kind} {score:.2f}")
        wrong = sum(count for (wanted, guessed), count in self.confusions.items() if wanted != guessed)
        overlap = sum(self.overlaps) / max(len(self.overlaps), 1)
        return f"{', '.join(parts)}, overlap {overlap:.2f}, {wrong} tags wrong"


class SpanTrainer(Trainer):
    spans = SpanScores()

    def get_batch_samples(self, *args, **kwargs):
        with lap("wait"):
            return super().get_batch_samples(*args, **kwargs)

    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **kwargs)
        self.guessed = outputs["logits"].detach().argmax(-1)
        return (loss, outputs) if return_outputs else loss

    def training_step(self, model, inputs, *args, **kwargs):
        with lap("compute"):
            loss = super().training_step(model, inputs, *args, **kwargs)
        with lap("own"):
            self.spans.add(self.guessed.tolist(), inputs["labels"].tolist())
        return loss


class OptimizerLaps(TrainerCallback):
    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        self.running = lap("compute")
        self.running.__enter__()

    def on_optimizer_step(self, args, state, control, **kwargs):
        self.running.__exit__(None, None, None)

    def on_epoch_end(self, args, state, control, **kwargs):
        print(f"epoch {state.epoch:.0f}: {SpanTrainer.spans.summary()}", flush=True)
        SpanTrainer.spans = SpanScores()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", help="the data folder (the notices are made up here)")
    parser.add_argument("--epochs", type=int, default=1000)
    options = parser.parse_args()
    config = DistilBertConfig(
        vocab_size=WORDS,
        max_position_embeddings=LENGTH,
        n_layers=1,
        n_heads=2,
        dim=32,
        hidden_dim=64,
        num_labels=len(TAGS),
    )
    settings = TrainingArguments(
        output_dir="runs",
        per_device_train_batch_size=32,
        learning_rate=1e-3,
        num_train_epochs=options.epochs,
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = SpanTrainer(
        DistilBertForTokenClassification(config), settings, train_dataset=Notices(6), callbacks=[OptimizerLaps()]
    )
    trainer.train()


if __name__ == "__main__":
    main()
