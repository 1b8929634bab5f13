"""The Hugging Face Trainer with a small ViT and a torch Dataset whose __getitem__ undistorts each photograph."""

import argparse
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments, ViTConfig, ViTForImageClassification

from stopwatch import lap


class LensCorrection:
    """Undoes a barrel distortion, with the map of the pixels worked out for each photograph."""

    def __init__(self, k1=-0.12, k2=0.03):
        self.k1, self.k2 = k1, k2

    def __call__(self, image):
        pixels = np.asarray(image)
        height, width = pixels.shape[:2]
        ys, xs = np.mgrid[0:height, 0:width].astype(np.float64)
        u, v = (xs - width / 2) / width, (ys - height / 2) / width
        r2 = u**2 + v**2
        scale = 1 + self.k1 * r2 + self.k2 * r2**2
        columns = np.clip(u * scale * width + width / 2, 0, width - 1).round().astype(int)
        rows = np.clip(v * scale * width + height / 2, 0, height - 1).round().astype(int)
        return Image.fromarray(pixels[rows, columns])


class Photos(Dataset):
    def __init__(self, root, side):
        self.files = sorted(Path(root).glob("*/*.[jJ]*"))
        self.labels = {name: i for i, name in enumerate(sorted({file.parent.name for file in self.files}))}
        self.correct = LensCorrection()
        self.side = side

    def __len__(self):
        return len(self.files)

    def __getitem__(self, i):
        file = self.files[i]
        with lap("decode"):
            image = Image.open(file).convert("RGB")
        with lap("transform"):
            image = self.correct(image).resize((self.side, self.side), Image.Resampling.BILINEAR)
            pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 127.5 - 1
        return {"pixel_values": pixels, "labels": self.labels[file.parent.name]}


class Stopwatch(TrainerCallback):
    """`wait` runs from the end of a step to the start of the next, when the Trainer has its batch."""

    laps = ExitStack()

    def on_step_end(self, args, state, control, **kwargs):
        self.laps.enter_context(lap("wait"))

    def on_step_begin(self, args, state, control, **kwargs):
        self.laps.close()

    on_train_end = on_step_begin


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--out", default="runs/transformers_vit_transform")
    options = parser.parse_args()
    shape = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 128}
    config = ViTConfig(image_size=64, patch_size=8, num_labels=10, **shape)
    training_args = TrainingArguments(
        output_dir=options.out,
        num_train_epochs=options.epochs,
        per_device_train_batch_size=32,
        learning_rate=5e-4,
        logging_steps=10,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
    )
    photos = Photos(options.data / "photos", config.image_size)
    model = ViTForImageClassification(config)
    trainer = Trainer(model=model, args=training_args, train_dataset=photos, callbacks=[Stopwatch()])
    trainer.train()
    trainer.save_model()
