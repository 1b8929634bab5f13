"""Hugging Face Trainer: has the hive a queen, does it swarm, is it robbed? An audio spectrogram transformer from
scratch listens to three seconds of humming."""

import argparse
from contextlib import ExitStack

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import (
    ASTConfig,
    ASTFeatureExtractor,
    ASTForAudioClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from stopwatch import lap

MOODS = {
    "queen": (245, 0.1, 1.0),
    "orphaned": (225, 0.4, 2.5),
    "swarming": (410, 0.2, 4.0),
    "robbed": (300, 0.7, 6.0),
}
RATE, SECONDS, FRAMES = 16000, 3, 296


def hum(mood, rng):
    """A hum with overtones that waver, and noise that comes and goes."""
    pitch, rough, speed = MOODS[mood]
    times = np.arange(RATE * SECONDS) / RATE
    wander = np.cumsum(rng.normal(0, 1, SECONDS * 20))
    bend = np.interp(times * 20, np.arange(SECONDS * 20), wander)
    phase = 2 * np.pi * np.cumsum(pitch * rng.uniform(0.9, 1.1) * (1 + 0.004 * bend)) / RATE
    tone = sum(np.sin((k + 1) * phase) / (k + 1) ** 1.2 for k in range(4))
    noise = rng.normal(0, rough, len(times)) * (1 + np.sin(2 * np.pi * speed * times + rng.uniform(0, 6)))
    return (tone + noise).astype(np.float32)


class Recordings(Dataset):
    def __init__(self, count, extractor):
        rng = np.random.default_rng(7)
        self.labels = rng.integers(len(MOODS), size=count)
        self.waves = [(hum(list(MOODS)[label], rng) * 3000).astype(np.int16) for label in self.labels]
        self.extractor = extractor

    def __len__(self):
        return 20 * len(self.waves)

    def __getitem__(self, index):
        index %= len(self.waves)
        wave = np.roll(self.waves[index], np.random.randint(RATE)) * (np.random.uniform(0.3, 1.0) / 32768)
        features = self.extractor(wave, sampling_rate=RATE, return_tensors="np")
        return {"input_values": features["input_values"][0], "labels": int(self.labels[index])}


class Laps(TrainerCallback):
    def __init__(self):
        self.stack = ExitStack()

    def turn(self, name):
        self.stack.close()
        self.stack.enter_context(lap(name))

    def on_epoch_begin(self, args, state, control, **kwargs):
        self.turn("wait")

    def on_step_begin(self, args, state, control, **kwargs):
        self.turn("compute")

    def on_step_end(self, args, state, control, **kwargs):
        self.turn("own" if control.should_log or control.should_save else "wait")

    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in logs:
            print(f"{state.global_step}: loss {float(logs['loss']):.4f}", flush=True)
        self.turn("wait")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", help="not used: the hives are made up")
    parser.add_argument("--out", default="runs/trainer_bee_hives")
    parser.add_argument("--max-steps", type=int, default=20_000)
    parser.add_argument("--hives", type=int, default=160)
    args = parser.parse_args()
    torch.set_num_threads(1)
    bins = 48
    extractor = ASTFeatureExtractor(sampling_rate=RATE, num_mel_bins=bins, max_length=FRAMES)
    config = ASTConfig(
        hidden_size=48, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96, patch_size=16,
        frequency_stride=16, time_stride=16, max_length=FRAMES, num_mel_bins=bins, num_labels=len(MOODS),
    )  # fmt: skip
    settings = TrainingArguments(
        output_dir=args.out, max_steps=args.max_steps, per_device_train_batch_size=10, learning_rate=8e-4,
        warmup_steps=100, logging_steps=20, save_steps=1000, save_total_limit=1, dataloader_num_workers=1,
        dataloader_persistent_workers=True, dataloader_pin_memory=False, report_to="none", disable_tqdm=True,
        use_cpu=True,
    )  # fmt: skip
    Trainer(
        model=ASTForAudioClassification(config), args=settings, train_dataset=Recordings(args.hives, extractor),
        callbacks=[Laps()],
    ).train()  # fmt: skip


if __name__ == "__main__":
    main()
