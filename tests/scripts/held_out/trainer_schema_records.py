"""Hugging Face Trainer: a small ViT on thumbnails. Runs are audited, so each step leaves a record in a fixed form
that the archive accepts (JSON Lines, checked against the schema before it is written)."""

import argparse
import json
import random
from contextlib import ExitStack
from pathlib import Path

import jsonschema
import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments, ViTConfig, ViTForImageClassification

from stopwatch import lap

NUMBER = {"type": "number", "minimum": -1e6, "maximum": 1e6}
SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "$id": "https://example.org/audit/training-step",
    "type": "object",
    "required": ["run", "step", "epoch", "learning_rate", "tensors"],
    "additionalProperties": False,
    "properties": {
        "run": {"type": "string", "pattern": "^[a-z0-9-]{4,40}$"},
        "step": {"type": "integer", "minimum": 1},
        "epoch": {"type": "number", "minimum": 0},
        "learning_rate": {"oneOf": [{"type": "null"}, {"type": "number", "minimum": 0, "maximum": 1}]},
        "tensors": {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/tensor"}},
    },
    "$defs": {
        "tensor": {
            "type": "object",
            "required": ["name", "shape", "dtype", "mean", "deviation"],
            "additionalProperties": False,
            "properties": {
                "name": {"type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_.]*$"},
                "shape": {"type": "array", "items": {"type": "integer", "minimum": 1}, "maxItems": 5},
                "dtype": {"enum": ["float32", "float16", "bfloat16"]},
                "mean": {"$ref": "#/$defs/number"},
                "deviation": {"anyOf": [{"$ref": "#/$defs/number"}, {"type": "null"}]},
            },
        },
        "number": NUMBER,
    },
}


class Thumbnails(Dataset):
    def __init__(self, root, count, side):
        files = sorted(root.glob("*/*.JPEG"))
        kinds = sorted({file.parent.name for file in files})
        self.items = []
        for file in random.Random(1).sample(files, count):
            photo = Image.open(file)
            photo.draft("RGB", (side, side))
            pixels = np.asarray(photo.convert("RGB").resize((side, side)))
            self.items.append((torch.tensor(pixels).permute(2, 0, 1), kinds.index(file.parent.name)))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        pixels, label = self.items[index]
        return {"pixel_values": pixels.float() / 127.5 - 1, "labels": label}


class Laps(TrainerCallback):
    stack = ExitStack()

    def turn(self, name):
        self.stack.close()
        self.stack.enter_context(lap(name))

    def on_epoch_begin(self, args, state, control, **kwargs):
        self.turn("wait")

    def on_step_begin(self, args, state, control, **kwargs):
        self.turn("compute")

    def on_step_end(self, args, state, control, **kwargs):
        self.turn("own")


class Audit(TrainerCallback):
    def __init__(self, file, run):
        self.file, self.run = file, run

    def tensors(self, model):
        for name, weight in model.named_parameters():
            spread = weight.std().item() if weight.numel() > 1 else None
            yield {"name": name, "shape": list(weight.shape), "dtype": str(weight.dtype).removeprefix("torch."),
                   "mean": weight.mean().item(), "deviation": spread}  # fmt: skip

    @torch.no_grad()
    def on_step_end(self, args, state, control, model=None, lr_scheduler=None, **kwargs):
        record = {"run": self.run, "step": state.global_step, "epoch": state.epoch,
                  "learning_rate": lr_scheduler.get_last_lr()[0], "tensors": list(self.tensors(model))}  # fmt: skip
        jsonschema.validate(record, SCHEMA)
        with self.file.open("a") as file:
            file.write(json.dumps(record) + "\n")
        if self.file.stat().st_size > 20_000_000:
            self.file.rename(self.file.with_suffix(".old.jsonl"))


class Waiting(Laps):
    def on_step_begin(self, args, state, control, **kwargs):
        pass

    on_epoch_begin = on_step_begin

    def on_step_end(self, args, state, control, **kwargs):
        self.turn("wait")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/trainer_schema_records"))
    parser.add_argument("--max-steps", type=int, default=20_000)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    config = ViTConfig(
        image_size=32, patch_size=8, hidden_size=32, num_hidden_layers=4, num_attention_heads=4, intermediate_size=64,
        num_labels=10,
    )  # fmt: skip
    settings = TrainingArguments(
        output_dir=str(args.out), max_steps=args.max_steps, per_device_train_batch_size=8, learning_rate=1e-3,
        lr_scheduler_type="linear", logging_steps=50, save_steps=2000, save_total_limit=1, report_to="none",
        disable_tqdm=True, use_cpu=True, dataloader_pin_memory=False,
    )  # fmt: skip
    Trainer(
        model=ViTForImageClassification(config), args=settings, train_dataset=Thumbnails(args.data / "photos", 800, 32),
        callbacks=[Laps(), Audit(args.out / "audit.jsonl", "vit-thumbnails"), Waiting()],
    ).train()  # fmt: skip


if __name__ == "__main__":
    main()
