"""Accelerate: a masked language model of field reports. The collate function tokenises and masks on the fly, so that
the masks differ each epoch; gradients are summed over two batches."""

import argparse
import os
import random
from pathlib import Path

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch  # noqa: E402
from accelerate import Accelerator  # noqa: E402
from tokenizers import Tokenizer, models, pre_tokenizers, trainers  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402
from transformers import BertConfig, BertForMaskedLM, get_cosine_schedule_with_warmup  # noqa: E402

from stopwatch import lap, timed  # noqa: E402

SYLLABLES = "ka lo mi ren tus va di sel nor pha que bri ost un dal je wi gro zan te".split()


def write_reports(photos: Path, number=3000, seed=6):
    """Made up sentences about the photographs' names, some 90 words each."""
    rng = random.Random(seed)
    words = ["".join(rng.choices(SYLLABLES, k=rng.randint(1, 4))) for _ in range(2500)]
    weights = [1 / (rank + 5) for rank in range(len(words))]
    folders = sorted(path.name for path in photos.iterdir())
    return [
        f"{rng.choice(folders)} : " + " ".join(rng.choices(words, weights, k=rng.randint(70, 110))) + " ."
        for _ in range(number)
    ]


def make_tokenizer(reports, size):
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer.train_from_iterator(reports[:600], trainers.WordPieceTrainer(vocab_size=size, special_tokens=special))
    return tokenizer


class MaskingCollator:
    def __init__(self, tokenizer, length, share=0.15):
        self.tokenizer, self.length, self.share = tokenizer, length, share
        self.tokenizer.enable_truncation(length)
        self.tokenizer.enable_padding(length=length)

    def __call__(self, reports):
        with lap("collate"):
            ids = torch.tensor([row.ids for row in self.tokenizer.encode_batch(reports)])
            attention = ids.ne(0).long()
            chosen = torch.rand(ids.shape).lt(self.share) & ids.ge(5)
            labels = ids.where(chosen, -100)
            how = torch.rand(ids.shape)
            ids = ids.masked_fill(chosen & how.lt(0.8), 4)
            other = torch.randint(5, self.tokenizer.get_vocab_size(), ids.shape)
            ids = torch.where(chosen & how.ge(0.9), other, ids)
        return {"input_ids": ids, "attention_mask": attention, "labels": labels}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/accelerate_masked_reports"))
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--length", type=int, default=128)
    args = parser.parse_args()
    torch.set_num_threads(1)

    reports = write_reports(args.data / "photos")
    tokenizer = make_tokenizer(reports, 1500)
    loader = DataLoader(
        reports, batch_size=12, shuffle=True, drop_last=True, num_workers=1,
        collate_fn=MaskingCollator(tokenizer, args.length),
    )  # fmt: skip
    config = BertConfig(
        vocab_size=1500, hidden_size=128, num_hidden_layers=4, num_attention_heads=4, intermediate_size=512,
        max_position_embeddings=args.length,
    )  # fmt: skip
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = BertForMaskedLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), 5e-4, weight_decay=0.01)
    schedule = get_cosine_schedule_with_warmup(optimizer, 50, args.epochs * len(loader) // 2)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    model.train()
    for epoch in range(args.epochs):
        for number, batch in enumerate(timed(loader, "wait")):
            with lap("compute"), accelerator.accumulate(model):
                loss = model(**batch).loss
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            if number % 25 == 0:
                accelerator.print(f"epoch {epoch} batch {number}: loss {loss.item():.3f}", flush=True)
    args.out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(args.out / "tokenizer.json"))
    accelerator.unwrap_model(model).save_pretrained(args.out)


if __name__ == "__main__":
    main()
