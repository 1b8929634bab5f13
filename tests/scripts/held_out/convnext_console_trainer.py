"""Hugging Face Trainer: a tiny ConvNeXt V2. A second terminal (`watch -c cat board.ansi`) shows how its layers fare."""

import argparse
from collections import defaultdict, deque
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from rich.console import Console, Group
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from torch.utils.data import Dataset
from transformers import (
    ConvNextV2Config,
    ConvNextV2ForImageClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from stopwatch import lap

BARS = "▁▂▃▄▅▆▇█"


class Photos(Dataset):
    def __init__(self, root: Path, side: int, every=2):
        files = sorted(root.glob("*/*.JPEG"))[::every]
        self.classes = sorted({file.parent.name for file in files})
        self.rows = [(self.small(file, side), self.classes.index(file.parent.name)) for file in files]

    @staticmethod
    def small(file, side):
        with Image.open(file) as photo:
            photo.draft("RGB", (side, side))
            pixels = np.asarray(photo.convert("RGB").resize((side, side)))
        return torch.from_numpy(pixels.transpose(2, 0, 1).copy())

    def __len__(self):
        return 8 * len(self.rows)

    def __getitem__(self, index):
        pixels, label = self.rows[index % len(self.rows)]
        if torch.rand(()) < 0.5:
            pixels = pixels.flip(2)
        return {"pixel_values": pixels.float() / 127.5 - 1, "labels": label}


class Board(TrainerCallback):
    def __init__(self, path: Path, history=32):
        self.path, self.curves = path, defaultdict(lambda: deque(maxlen=history))
        self.before = {}

    def sparkline(self, values):
        low, high = min(values), max(values)
        return "".join(BARS[int(7 * (value - low) / ((high - low) or 1))] for value in values)

    @torch.no_grad()
    def measure(self, model):
        for name, weight in model.named_parameters():
            old = self.before.get(name)
            moved = 0.0 if old is None else (weight - old).norm().item()
            self.before[name] = weight.detach().clone()
            self.curves[name].append((weight.norm().item(), moved, weight.abs().max().item()))

    def paint(self, state):
        table = Table(title=f"step {state.global_step}", row_styles=["", "dim"], expand=True)
        for head in ("layer", "norm", "since the start", "moved", "lately", "largest"):
            table.add_column(head, justify="left" if head == "layer" else "right", no_wrap=True)
        for name, values in self.curves.items():
            norms, moves, largest = zip(*values)
            colour = "red" if moves[-1] > 0.1 * norms[-1] else "green"
            table.add_row(
                name.removeprefix("convnextv2."), f"{norms[-1]:.3f}", f"[cyan]{self.sparkline(norms)}[/]",
                f"[{colour}]{moves[-1]:.2e}[/]", self.sparkline(moves), f"{largest[-1]:.3f}",
            )  # fmt: skip
        return Panel(Group(table, ProgressBar(total=state.max_steps, completed=state.global_step)))

    def on_step_end(self, args, state, control, model=None, **kwargs):
        with lap("own"):
            self.measure(model)
            with self.path.with_suffix(".part").open("w") as file:
                Console(file=file, force_terminal=True, width=150, color_system="256").print(self.paint(state))
            self.path.with_suffix(".part").replace(self.path)


class TimedTrainer(Trainer):
    def get_batch_samples(self, *args, **kwargs):
        with lap("wait"):
            return super().get_batch_samples(*args, **kwargs)

    def training_step(self, *args, **kwargs):
        with lap("compute"):
            return super().training_step(*args, **kwargs)


class StepLap(TrainerCallback):
    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        self.open = lap("compute")
        self.open.__enter__()

    def on_optimizer_step(self, args, state, control, **kwargs):
        self.open.__exit__(None, None, None)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/convnext_console"))
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    photos = Photos(options.data / "photos", side=48)
    config = ConvNextV2Config(
        hidden_sizes=[12, 24, 32, 48], depths=[2, 2, 2, 2], num_labels=len(photos.classes), image_size=48
    )
    arguments = TrainingArguments(
        output_dir=str(options.out), num_train_epochs=options.epochs, per_device_train_batch_size=16,
        learning_rate=1e-3, save_strategy="no", logging_strategy="epoch", report_to=[], disable_tqdm=True, use_cpu=True,
        dataloader_pin_memory=False,
    )  # fmt: skip
    trainer = TimedTrainer(
        model=ConvNextV2ForImageClassification(config),
        args=arguments,
        train_dataset=photos,
        callbacks=[StepLap(), Board(options.out / "board.ansi")],
    )
    trainer.train()
    trainer.save_model()


if __name__ == "__main__":
    main()
