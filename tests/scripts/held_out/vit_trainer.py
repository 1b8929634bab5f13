"""Hugging Face Trainer: a small ViT from scratch, gradient accumulation over two, decoding in two workers."""

import argparse
from pathlib import Path

import torch
from PIL import Image
from torch.utils.data import Dataset
from torchvision import transforms
from transformers import Trainer, TrainerCallback, TrainingArguments, ViTConfig, ViTForImageClassification

from stopwatch import lap


class PhotoFolder(Dataset):
    """Full decode and a strong augmentation for each picture."""

    def __init__(self, root: Path, side: int):
        self.files = sorted(root.glob("*/*.JPEG"))
        self.classes = sorted({path.parent.name for path in self.files})
        self.augment = transforms.Compose(
            [
                transforms.RandomResizedCrop(side, scale=(0.3, 1.0)),
                transforms.RandomHorizontalFlip(),
                transforms.ColorJitter(0.3, 0.3, 0.3),
                transforms.RandomRotation(10),
                transforms.ToTensor(),
                transforms.Normalize([0.5] * 3, [0.5] * 3),
                transforms.RandomErasing(0.2),
            ]
        )

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        path = self.files[index]
        with lap("sample"):
            picture = self.augment(Image.open(path).convert("RGB"))
        return {"pixel_values": picture, "labels": self.classes.index(path.parent.name)}


class WatchedTrainer(Trainer):
    """The Trainer, its waits and its steps under the stopwatch."""

    def get_batch_samples(self, *args, **kwargs):
        with lap("wait"):
            return super().get_batch_samples(*args, **kwargs)

    def training_step(self, *args, **kwargs):
        with lap("compute"):
            return super().training_step(*args, **kwargs)


class EpochLine(TrainerCallback):
    def __init__(self, out: Path):
        self.out = out

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        self.lap = lap("compute")
        self.lap.__enter__()

    def on_optimizer_step(self, args, state, control, **kwargs):
        self.lap.__exit__(None, None, None)

    def on_epoch_end(self, args, state, control, model=None, **kwargs):
        print(f"epoch {state.epoch:.0f}: {state.global_step} updates", flush=True)
        torch.save(model.state_dict(), self.out / "vit.pt")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/vit_trainer"))
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--side", type=int, default=96)
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)

    data = PhotoFolder(options.data / "photos", options.side)
    config = ViTConfig(
        image_size=options.side,
        patch_size=16,
        hidden_size=192,
        num_hidden_layers=9,
        num_attention_heads=3,
        intermediate_size=768,
        num_labels=len(data.classes),
    )
    arguments = TrainingArguments(
        output_dir=str(options.out),
        num_train_epochs=options.epochs,
        per_device_train_batch_size=12,
        gradient_accumulation_steps=2,
        dataloader_num_workers=2,
        dataloader_persistent_workers=True,
        dataloader_pin_memory=False,
        learning_rate=5e-4,
        warmup_steps=50,
        save_strategy="no",
        report_to=[],
        logging_strategy="epoch",
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = WatchedTrainer(
        model=ViTForImageClassification(config),
        args=arguments,
        train_dataset=data,
        callbacks=[EpochLine(options.out)],
    )
    trainer.train()


if __name__ == "__main__":
    main()
