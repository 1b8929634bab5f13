"""The Hugging Face Trainer with a small GPT-2 that writes pictures, one palette colour after the other."""

import argparse
import random
from contextlib import ExitStack
from pathlib import Path

import torch
from PIL import Image
from stopwatch import lap
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

SIDE, COLOURS = 16, 64


class Paintings(Dataset):
    """Each photo at SIDE x SIDE in COLOURS colours of one palette, row by row, behind a token for its class."""

    def __init__(self, root, most=300):
        files = sorted(root.glob("*/*.[jJ]*"))
        files = random.Random(1).sample(files, min(most, len(files)))
        self.names = sorted({file.parent.name for file in files})
        small = [self.shrink(file) for file in files]
        strip = Image.new("RGB", (SIDE, SIDE * len(small)))
        for n, image in enumerate(small):
            strip.paste(image, (0, SIDE * n))
        palette = strip.quantize(COLOURS)
        self.rows = []
        for image, file in zip(small, files):
            colours = list(image.quantize(COLOURS, palette=palette, dither=Image.Dither.NONE).tobytes())
            self.rows.append((COLOURS + self.names.index(file.parent.name), colours))

    @staticmethod
    def shrink(file):
        with Image.open(file) as photo:
            photo.draft("RGB", (63, 47))
            return photo.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BOX)

    def __len__(self):
        return 4000

    def __getitem__(self, index):
        head, colours = self.rows[index % len(self.rows)]
        if random.random() < 0.5:
            colours = [c for row in range(SIDE) for c in reversed(colours[row * SIDE : (row + 1) * SIDE])]
        return {"tokens": [head, *colours]}


def collate(rows):
    """Tokens of all rows; a tenth of the targets left out, so that no patch is learnt by heart."""
    tokens = torch.tensor([row["tokens"] for row in rows])
    labels = tokens.clone()
    labels[torch.rand(labels.shape) < 0.1] = -100
    return {"input_ids": tokens, "labels": labels}


class Laps(TrainerCallback):
    def __init__(self):
        self.open = ExitStack()

    def turn(self, name):
        self.open.close()
        self.open.enter_context(lap(name))

    def on_step_begin(self, args, state, control, **kwargs):
        self.turn("compute")

    def on_step_end(self, args, state, control, **kwargs):
        self.turn("wait")

    def on_train_end(self, args, state, control, **kwargs):
        self.open.close()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--out", default="runs/trainer_pixel_gpt")
    args = parser.parse_args()
    paintings = Paintings(args.data / "photos")
    config = GPT2Config(
        vocab_size=COLOURS + len(paintings.names),
        n_positions=SIDE * SIDE + 1,
        n_embd=128,
        n_layer=4,
        n_head=4,
        bos_token_id=None,
        eos_token_id=None,
    )
    settings = TrainingArguments(
        output_dir=args.out,
        max_steps=args.steps,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        learning_rate=1e-3,
        lr_scheduler_type="cosine",
        dataloader_num_workers=0,
        remove_unused_columns=False,
        logging_steps=10,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    model = GPT2LMHeadModel(config)
    trainer = Trainer(model=model, args=settings, train_dataset=paintings, data_collator=collate, callbacks=[Laps()])
    trainer.train()
    trainer.save_model()


if __name__ == "__main__":
    main()
