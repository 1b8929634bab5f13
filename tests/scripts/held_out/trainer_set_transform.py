"""Hugging Face Trainer on an image folder as a dataset, transformed on the fly, as guides show it."""

import argparse
import os
from contextlib import ExitStack
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch  # noqa: E402
from datasets import ClassLabel, Dataset, Features, Image  # noqa: E402
from torchvision import transforms  # noqa: E402
from transformers import (  # noqa: E402
    ResNetConfig,
    ResNetForImageClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from stopwatch import lap  # noqa: E402


class Laps(TrainerCallback):
    """wait: from the end of one step to the start of the next; compute: the step."""

    def __init__(self):
        self.open = ExitStack()

    def turn(self, name=None):
        self.open.close()
        if name:
            self.open.enter_context(lap(name))

    def on_epoch_begin(self, args, state, control, **kwargs):
        self.turn("wait")

    def on_step_begin(self, args, state, control, **kwargs):
        self.turn("compute")

    def on_step_end(self, args, state, control, **kwargs):
        self.turn("wait")

    def on_epoch_end(self, args, state, control, **kwargs):
        self.turn()


class Augment:
    """For `set_transform`: takes a dict of lists, gives a dict of lists."""

    def __init__(self, side):
        self.steps = transforms.Compose([
            transforms.RandomResizedCrop(side, scale=(0.3, 1.0)),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        ])  # fmt: skip

    def __call__(self, rows):
        pixels = [self.steps(image.convert("RGB")) for image in rows["image"]]
        return {"pixel_values": pixels, "labels": rows["label"]}


def collate(rows):
    return {
        "pixel_values": torch.stack([row["pixel_values"] for row in rows]),
        "labels": torch.tensor([row["labels"] for row in rows]),
    }


def folder_dataset(photos: Path):
    files = sorted(photos.glob("*/*.JPEG"))
    names = sorted({file.parent.name for file in files})
    features = Features({"image": Image(), "label": ClassLabel(names=names)})
    rows = {"image": [str(file) for file in files], "label": [names.index(file.parent.name) for file in files]}
    return Dataset.from_dict(rows, features=features), names


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", default="runs/trainer_set_transform")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--side", type=int, default=64)
    options = parser.parse_args()
    torch.set_num_threads(1)

    photos, names = folder_dataset(options.data / "photos")
    photos.set_transform(Augment(options.side))
    config = ResNetConfig(
        embedding_size=16, hidden_sizes=[16, 32, 64], depths=[1, 1, 1], layer_type="basic", num_labels=len(names)
    )
    settings = TrainingArguments(
        output_dir=options.out,
        num_train_epochs=options.epochs,
        per_device_train_batch_size=24,
        learning_rate=2e-3,
        warmup_steps=20,
        remove_unused_columns=False,
        dataloader_pin_memory=False,
        logging_steps=25,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = Trainer(
        model=ResNetForImageClassification(config),
        args=settings,
        train_dataset=photos,
        data_collator=collate,
        callbacks=[Laps()],
    )
    trainer.train()
    trainer.save_model()


if __name__ == "__main__":
    main()
