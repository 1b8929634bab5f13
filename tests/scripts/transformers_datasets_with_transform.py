"""A Hugging Face dataset of photographs held as bytes in memory, made ready in with_transform, for the Trainer."""

import argparse
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch
from datasets import ClassLabel, Dataset, Features, Image
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments

from stopwatch import lap

TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def rgb_to_lab(image):
    """CIE L*a*b* of every pixel, at the photograph's full size."""
    rgb = np.asarray(image, dtype=np.float64) / 255
    linear = np.where(rgb > 0.04045, ((rgb + 0.055) / 1.055) ** 2.4, rgb / 12.92)
    xyz = linear @ TO_XYZ.T / (0.9505, 1.0, 1.089)
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.stack([116 * f[..., 1] - 16, 500 * (f[..., 0] - f[..., 1]), 200 * (f[..., 1] - f[..., 2])], axis=-1)


def prepare(batch, side=96):
    with lap("transform"):
        labs = [torch.from_numpy(rgb_to_lab(image.convert("RGB"))).permute(2, 0, 1) for image in batch["image"]]
        pixels = [nn.functional.adaptive_avg_pool2d(lab.float() / 100, side) for lab in labs]
        return {"pixel_values": pixels, "labels": batch["label"]}


class LabNet(nn.Module):
    def __init__(self, classes):
        super().__init__()
        convolutions = [nn.Conv2d(3, 24, 5, stride=2), nn.GELU(), nn.Conv2d(24, 48, 3, stride=2), nn.GELU()]
        self.features = nn.Sequential(*convolutions, nn.AdaptiveAvgPool2d(2), nn.Flatten())
        self.head = nn.Linear(4 * 48, classes)

    def forward(self, pixel_values, labels=None):
        logits = self.head(self.features(pixel_values))
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        return {"loss": loss, "logits": logits}


class Stopwatch(TrainerCallback):
    laps = ExitStack()

    def on_step_end(self, args, state, control, **kwargs):
        self.laps.enter_context(lap("wait"))

    def on_step_begin(self, args, state, control, **kwargs):
        self.laps.close()

    on_train_end = on_step_begin


def load(root):
    files = sorted(root.glob("*/*.[jJ]*"))
    names = sorted({file.parent.name for file in files})
    images = [{"bytes": file.read_bytes(), "path": None} for file in files]
    columns = {"image": images, "label": [names.index(file.parent.name) for file in files]}
    return Dataset.from_dict(columns, features=Features({"image": Image(), "label": ClassLabel(names=names)}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--out", default="runs/transformers_datasets_with_transform")
    options = parser.parse_args()
    dataset = load(options.data / "photos")
    training_args = TrainingArguments(
        output_dir=options.out,
        num_train_epochs=options.epochs,
        per_device_train_batch_size=16,
        dataloader_num_workers=1,
        remove_unused_columns=False,
        logging_steps=20,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
    )
    model, train_set = LabNet(dataset.features["label"].num_classes), dataset.with_transform(prepare)
    trainer = Trainer(model=model, args=training_args, train_dataset=train_set, callbacks=[Stopwatch()])
    trainer.train()
