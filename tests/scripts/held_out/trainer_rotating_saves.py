"""Hugging Face Trainer: where was it taken? A small network on thumbnails, and an embedding of who took it. The
machine may be taken away at any time, so the Trainer saves often and keeps the last two checkpoints."""

import argparse
import random
from contextlib import ExitStack
from pathlib import Path

import torch
from PIL import Image
from torch import nn
from torch.utils.data import Dataset
from torchvision.transforms.functional import pil_to_tensor
from transformers import Trainer, TrainerCallback, TrainingArguments

from stopwatch import lap


class Thumbnails(Dataset):
    def __init__(self, root: Path, people: int, side=32, seed=77):
        rng = random.Random(seed)
        self.rows = []
        for label, folder in enumerate(sorted(path for path in root.iterdir() if path.is_dir())):
            for file in sorted(folder.glob("*.JPEG"))[:60]:
                image = Image.open(file)
                image.draft("RGB", (side, side))
                pixels = pil_to_tensor(image.convert("RGB").resize((side, side)))
                person = (label + rng.randrange(people // 10) * 10) % people
                self.rows.append({"pixels": pixels, "person": person, "labels": label})

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        row = dict(self.rows[index])
        if random.random() < 0.5:
            row["pixels"] = row["pixels"].flip(2)
        return row


class PlaceAndPerson(nn.Module):
    def __init__(self, people, classes, width=48):
        super().__init__()
        self.person = nn.Embedding(people, width)
        self.look = nn.Sequential(
            nn.Conv2d(3, 24, 3, 2, 1), nn.ReLU(), nn.Conv2d(24, width, 3, 2, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        )
        self.place = nn.Linear(2 * width, classes)

    def forward(self, pixels, person, labels=None):
        scores = self.place(torch.cat([self.look(pixels.float() / 127.5 - 1), self.person(person)], 1))
        loss = None if labels is None else nn.functional.cross_entropy(scores, labels)
        return {"loss": loss, "logits": scores}


class Laps(TrainerCallback):
    """own: from a step's end to the end of saving, where there is something to save; wait: from there to a step."""

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
        self.turn("own" if control.should_save else "wait")

    def on_save(self, args, state, control, **kwargs):
        self.turn("wait")

    def on_train_end(self, args, state, control, **kwargs):
        self.turn()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", default="runs/trainer_rotating_saves")
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--people", type=int, default=100_000)
    parser.add_argument("--save-steps", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(1)

    settings = TrainingArguments(
        output_dir=options.out,
        num_train_epochs=options.epochs,
        per_device_train_batch_size=24,
        learning_rate=1e-3,
        save_strategy="steps",
        save_steps=options.save_steps,
        save_total_limit=2,
        logging_steps=1,
        remove_unused_columns=False,
        dataloader_pin_memory=False,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = Trainer(
        model=PlaceAndPerson(options.people, 10),
        args=settings,
        train_dataset=Thumbnails(options.data / "photos", options.people),
        callbacks=[Laps()],
    )
    trainer.train()
    trainer.save_model()


if __name__ == "__main__":
    main()
