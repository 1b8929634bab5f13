"""Hugging Face Trainer: which place is on the photograph? The collator calls the image processor of CLIP on all
photographs of a batch, as the model cards show it; gradients are summed over two batches."""

import argparse
from contextlib import ExitStack
from pathlib import Path

import torch
from PIL import Image
from torch.utils.data import Dataset
from transformers import (
    CLIPImageProcessor,
    ResNetConfig,
    ResNetForImageClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from stopwatch import lap


class Album(Dataset):
    """Whole photographs, opened once and kept, since there are few of them."""

    def __init__(self, root: Path, each: int):
        self.folders = sorted(path for path in root.iterdir() if path.is_dir())
        self.rows = []
        for label, folder in enumerate(self.folders):
            for file in sorted(folder.glob("*.JPEG"))[:each]:
                self.rows.append({"image": Image.open(file).convert("RGB"), "label": label})

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


class ProcessorCollator:
    def __init__(self, processor):
        self.processor = processor

    def __call__(self, rows):
        with lap("collate"):
            batch = self.processor(images=[row["image"] for row in rows], return_tensors="pt")
        return {"pixel_values": batch["pixel_values"], "labels": torch.tensor([row["label"] for row in rows])}


class Laps(TrainerCallback):
    """wait: from the end of one step to the start of the next."""

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


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", default="runs/trainer_processor_collator")
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--side", type=int, default=64)
    options = parser.parse_args()
    torch.set_num_threads(1)

    album = Album(options.data / "photos", each=24)
    processor = CLIPImageProcessor(
        size={"shortest_edge": options.side}, crop_size={"height": options.side, "width": options.side}
    )
    config = ResNetConfig(
        embedding_size=8,
        hidden_sizes=[8, 16, 32],
        depths=[1, 1, 1],
        layer_type="basic",
        num_labels=len(album.folders),
    )
    settings = TrainingArguments(
        output_dir=options.out,
        num_train_epochs=options.epochs,
        per_device_train_batch_size=12,
        gradient_accumulation_steps=2,
        learning_rate=2e-3,
        lr_scheduler_type="cosine",
        warmup_steps=20,
        remove_unused_columns=False,
        dataloader_pin_memory=False,
        logging_steps=20,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = Trainer(
        model=ResNetForImageClassification(config),
        args=settings,
        train_dataset=album,
        data_collator=ProcessorCollator(processor),
        callbacks=[Laps()],
    )
    trainer.train()
    trainer.save_model()
    processor.save_pretrained(options.out)


if __name__ == "__main__":
    main()
