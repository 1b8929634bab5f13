"""The Hugging Face Trainer with a ResNet from a config, on images that are tensors in memory."""

import argparse
from contextlib import ExitStack

import torch
from torch.utils.data import Dataset
from transformers import ResNetConfig, ResNetForImageClassification, Trainer, TrainerCallback, TrainingArguments

from stopwatch import lap


class Blobs(Dataset):
    """Coloured noise, of which the mean colour tells the class."""

    def __init__(self, count=2048, side=96, classes=10, seed=5):
        generator = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(classes, (count,), generator=generator)
        tints = torch.randint(40, 160, (classes, 3, 1, 1), generator=generator)
        noise = torch.randint(0, 90, (count, 3, side, side), generator=generator, dtype=torch.uint8)
        self.images = noise + tints[self.labels].to(torch.uint8)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return {"pixel_values": self.images[index].float() / 255, "labels": self.labels[index]}


class Stopwatch(TrainerCallback):
    laps = ExitStack()

    def on_step_begin(self, args, state, control, **kwargs):
        self.laps.close()
        self.laps.enter_context(lap("compute"))

    def on_step_end(self, args, state, control, **kwargs):
        self.laps.close()
        self.laps.enter_context(lap("wait"))

    def on_train_end(self, args, state, control, **kwargs):
        self.laps.close()


parser = argparse.ArgumentParser()
parser.add_argument("data", help="not read: the images are made here")
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--out", default="runs/transformers_resnet_compute")

if __name__ == "__main__":
    options = parser.parse_args()
    widths = [64, 128, 256, 512]
    config = ResNetConfig(
        embedding_size=64, hidden_sizes=widths, depths=[2, 2, 2, 2], layer_type="basic", num_labels=10
    )
    training_args = TrainingArguments(
        output_dir=options.out,
        num_train_epochs=options.epochs,
        per_device_train_batch_size=32,
        dataloader_num_workers=1,
        dataloader_persistent_workers=True,
        logging_steps=25,
        save_strategy="epoch",
        save_total_limit=1,
        report_to="none",
        use_cpu=True,
    )
    model = ResNetForImageClassification(config)
    trainer = Trainer(model=model, args=training_args, train_dataset=Blobs(), callbacks=[Stopwatch()])
    trainer.train()
