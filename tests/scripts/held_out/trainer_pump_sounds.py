"""Hugging Face Trainer: is the pump about to fail? A stream of sounds, and an auditory filter bank on the fly."""

import argparse
from contextlib import ExitStack
from pathlib import Path

import datasets
import numpy as np
import torch
from PIL import Image
from scipy import signal
from transformers import ASTConfig, ASTForAudioClassification, Trainer, TrainerCallback, TrainingArguments

from stopwatch import lap

RATE, LENGTH, BANDS, FRAMES = 8000, 16000, 40, 128


def recordings(photos: Path, each=64):
    """Hum, its harmonics, and a knock whose rhythm is a row of a photograph."""
    times = np.arange(LENGTH) / RATE
    waves, labels = [], []
    for label, folder in enumerate(sorted(p for p in photos.iterdir() if p.is_dir())):
        hum = sum(np.sin(2 * np.pi * (90 + 11 * label) * k * times) / k for k in (1, 2, 3, 5))
        for file in sorted(folder.iterdir())[:each]:
            image = Image.open(file)
            image.draft("L", (64, 64))
            row = np.asarray(image.convert("L").resize((50, 1)), np.float64)[0] / 255
            knocks = np.repeat(row, LENGTH // 50) * np.sin(2 * np.pi * (400 + 150 * label) * times)
            waves.append((3000 * hum + 6000 * knocks).astype(np.int16))
            labels.append(label)
    return datasets.Dataset.from_dict({"wave": np.stack(waves), "labels": labels})


class FilterBank:
    """Gammatone filters one by one, then their envelopes: what the ear is said to do."""

    def __init__(self):
        centres = np.geomspace(80, 3600, BANDS)
        self.filters = [signal.gammatone(centre, "iir", fs=RATE) for centre in centres]

    def gammatone(self, wave):
        bands = np.empty((BANDS, FRAMES), np.float32)
        for k, (b, a) in enumerate(self.filters):
            heard = np.abs(signal.lfilter(b, a, wave))
            bands[k] = heard.reshape(FRAMES, -1).mean(1)
        return np.log1p(bands)

    def __call__(self, example):
        with lap("features"):
            wave = np.array(example["wave"], np.float64)
            wave = np.roll(wave, np.random.randint(LENGTH)) + np.random.normal(0, 800, LENGTH)
            bands = self.gammatone(wave)
            bands = (bands - bands.mean()) / (bands.std() + 1e-6)
        return {"input_values": np.ascontiguousarray(bands.T), "labels": example["labels"]}


class Laps(TrainerCallback):
    """wait: from the end of one step to the start of the next."""

    def __init__(self):
        self.open = ExitStack()

    def turn(self, name):
        self.open.close()
        self.open.enter_context(lap(name))

    def on_train_begin(self, args, state, control, **kwargs):
        self.turn("wait")

    def on_step_begin(self, args, state, control, **kwargs):
        self.turn("compute")

    def on_step_end(self, args, state, control, **kwargs):
        self.turn("wait")

    def on_train_end(self, args, state, control, **kwargs):
        self.open.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", default="runs/trainer_pump_sounds")
    parser.add_argument("--epochs", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(1)

    sounds = recordings(options.data / "photos")
    stream = sounds.to_iterable_dataset().shuffle(seed=5, buffer_size=200).map(FilterBank(), remove_columns=["wave"])
    config = ASTConfig(
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        patch_size=8,
        frequency_stride=8,
        time_stride=8,
        max_length=FRAMES,
        num_mel_bins=BANDS,
        num_labels=10,
    )
    settings = TrainingArguments(
        output_dir=options.out,
        max_steps=options.epochs * len(sounds) // 16,
        per_device_train_batch_size=16,
        learning_rate=5e-4,
        dataloader_num_workers=2,
        dataloader_pin_memory=False,
        logging_steps=20,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    model = ASTForAudioClassification(config)
    trainer = Trainer(model=model, args=settings, train_dataset=stream, callbacks=[Laps()])
    trainer.train()
    trainer.save_model()


if __name__ == "__main__":
    main()
