"""Hugging Face Trainer: which things are in a picture? The boxes come as one big table (one row for each box, as in
Open Images), and pandas finds the rows of a picture."""

import argparse
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from PIL import Image
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments, ViTConfig, ViTForImageClassification

from stopwatch import lap

LABELS = 40


def make_table(files, rows, seed=42):
    """What read_csv gives: one row for each box, all pictures mixed, pictures known by their names."""
    rng = np.random.default_rng(seed)
    names = np.array([f"{file.parent.name}/{file.name}" for file in files], dtype=object)
    folders = sorted({file.parent.name for file in files})
    numbers = np.array([folders.index(file.parent.name) for file in files])
    picture = rng.integers(len(names), size=rows)
    x, y = rng.random(rows, dtype=np.float32), rng.random(rows, dtype=np.float32)
    return pd.DataFrame(
        {
            "image_id": names[picture],
            "label": (4 * numbers[picture] + rng.integers(0, 6, size=rows)) % LABELS,
            "confidence": rng.random(rows, dtype=np.float32),
            "x_min": 0.8 * x,
            "y_min": 0.8 * y,
            "x_max": 0.8 * x + 0.2,
            "y_max": 0.8 * y + 0.2,
        }
    )


class BoxedPhotos(Dataset):
    def __init__(self, files, table, side, least=0.97):
        self.files, self.table, self.side, self.least = files, table, side, least

    def __len__(self):
        return len(self.files)

    def annotations_of(self, name):
        boxes = self.table[self.table["image_id"] == name]
        return boxes[boxes["confidence"] >= self.least]

    def photo(self, file):
        image = Image.open(file)
        image.draft("RGB", (2 * self.side, 2 * self.side))
        return image.convert("RGB").resize((self.side, self.side), Image.Resampling.BILINEAR)

    def __getitem__(self, index):
        file = self.files[index]
        with lap("read"):
            boxes = self.annotations_of(f"{file.parent.name}/{file.name}")
        with lap("decode"):
            image = self.photo(file)
        target = torch.zeros(LABELS)
        target[torch.from_numpy(boxes["label"].to_numpy(dtype=np.int64, copy=True))] = 1.0
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 127.5 - 1
        return {"pixel_values": pixels, "labels": target}


class Laps(TrainerCallback):
    """wait: from the end of one step to the start of the next."""

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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", default="runs/trainer_box_table")
    parser.add_argument("--epochs", type=int, default=14)
    parser.add_argument("--rows", type=int, default=600_000)
    options = parser.parse_args()
    torch.set_num_threads(1)

    files = sorted((options.data / "photos").glob("*/*.JPEG"))
    photos = BoxedPhotos(files, make_table(files, options.rows), side=48)
    config = ViTConfig(
        image_size=48,
        patch_size=8,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        num_labels=LABELS,
        problem_type="multi_label_classification",
    )
    settings = TrainingArguments(
        output_dir=options.out,
        num_train_epochs=options.epochs,
        per_device_train_batch_size=32,
        learning_rate=1e-3,
        dataloader_num_workers=2,
        dataloader_persistent_workers=True,
        dataloader_pin_memory=False,
        logging_steps=20,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    model = ViTForImageClassification(config)
    trainer = Trainer(model=model, args=settings, train_dataset=photos, callbacks=[Laps()])
    trainer.train()
    trainer.save_model()


if __name__ == "__main__":
    main()
