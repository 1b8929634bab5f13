"""Hugging Face Trainer: wav2vec 2.0 from scratch on made-up bird songs: spans of frames are hidden, and the network
has to tell the right quantised frame from a number of wrong ones."""

import argparse
import random
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments, Wav2Vec2FeatureExtractor
from transformers.models.wav2vec2 import Wav2Vec2Config, Wav2Vec2ForPreTraining

from stopwatch import lap

RATE, LENGTH = 8000, 8000


class Songs(Dataset):
    def __init__(self, count, species=24, seed=5):
        rng = np.random.default_rng(seed)
        self.motifs = rng.uniform([600, -3000, 0.05, 5], [3000, 3000, 0.2, 60], (species, 6, 4))
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        wave, at, motifs = np.zeros(LENGTH + RATE, np.float32), 0, self.motifs[index % len(self.motifs)]
        while at < LENGTH:
            pitch, slide, seconds, trill = random.choice(motifs)
            times = np.arange(int(seconds * RATE)) / RATE
            phase = (
                2 * np.pi * (pitch * times + slide * times**2 / 2 + 20 * np.sin(2 * np.pi * trill * times) / trill)
            )
            wave[at : at + len(times)] += np.hanning(len(times)) * np.sin(phase)
            at += len(times) + random.randrange(RATE // 20)
        wave[1200:] += 0.3 * wave[:-1200]
        wind = np.convolve(np.random.normal(0, 0.1, LENGTH), np.ones(16) / 16, "same")
        return {"input_values": wave[:LENGTH] + wind.astype(np.float32)}


class HideSpans:
    def __init__(self, model, chance=0.08, span=5, wrong=20):
        self.extractor = Wav2Vec2FeatureExtractor(1, RATE)
        self.frames = int(model._get_feat_extract_output_lengths(LENGTH))
        self.chance, self.span, self.wrong = chance, span, wrong

    def __call__(self, samples):
        waves = [sample["input_values"] for sample in samples]
        values = self.extractor(waves, sampling_rate=RATE, return_tensors="pt").input_values
        hidden = np.zeros((len(waves), self.frames), bool)
        negatives = np.zeros((*hidden.shape, self.wrong), np.int64)
        for row in range(len(waves)):
            for start in range(self.frames):
                if random.random() < self.chance:
                    hidden[row, start : start + self.span] = True
            hidden[row, : 2 * self.span : self.span] = True
            for spot in (spots := np.flatnonzero(hidden[row])):
                negatives[row, spot] = row * self.frames + np.random.choice(spots[spots != spot], self.wrong)
        hidden, negatives = torch.from_numpy(hidden), torch.from_numpy(negatives)
        return {"input_values": values, "mask_time_indices": hidden, "sampled_negative_indices": negatives}


class Laps(TrainerCallback):
    def __init__(self, name, stack):
        self.name, self.stack = name, stack

    def turn(self, name):
        self.stack.close()
        self.stack.enter_context(lap(name))

    def on_epoch_begin(self, *args, **kwargs):
        self.turn("wait")

    def on_step_begin(self, *args, **kwargs):
        self.turn("compute")

    def on_step_end(self, args, state, control, **kwargs):
        self.turn(self.name)


class AfterWork(Laps):
    def on_step_begin(self, args, state, control, **kwargs):
        pass

    on_epoch_begin = on_step_begin


class Temperature(TrainerCallback):
    def __init__(self, file):
        self.file = file

    @torch.no_grad()
    def on_step_end(self, args, state, control, model=None, **kwargs):
        model.set_gumbel_temperature(max(2.0 * 0.9995**state.global_step, 0.5))
        norms = [f"{row.norm().item():.3f}" for row in model.quantizer.codevectors[0]]
        with self.file.open("a") as file:
            print(state.global_step, *norms, sep="\t", file=file)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", help="not used: the songs are made up")
    parser.add_argument("--out", type=Path, default=Path("runs/trainer_wav2vec_birds"))
    parser.add_argument("--max-steps", type=int, default=5000)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    config = Wav2Vec2Config(
        hidden_size=96, num_hidden_layers=4, num_attention_heads=4, intermediate_size=256, conv_dim=(64,) * 5,
        conv_stride=(5, 2, 2, 2, 2), conv_kernel=(10, 3, 3, 3, 2), num_conv_pos_embeddings=32,
        num_conv_pos_embedding_groups=4, num_codevectors_per_group=32, num_codevector_groups=2, codevector_dim=64,
        proj_codevector_dim=64, num_negatives=20, mask_time_prob=0.05,
    )  # fmt: skip
    model = Wav2Vec2ForPreTraining(config)
    settings = TrainingArguments(
        output_dir=str(args.out), max_steps=args.max_steps, per_device_train_batch_size=8, learning_rate=5e-4,
        warmup_steps=200, logging_steps=10, save_steps=500, save_total_limit=1, report_to="none", disable_tqdm=True,
        use_cpu=True, remove_unused_columns=False, dataloader_num_workers=1, dataloader_pin_memory=False,
    )  # fmt: skip
    stack = ExitStack()
    Trainer(
        model=model, args=settings, train_dataset=Songs(4000), data_collator=HideSpans(model),
        callbacks=[Laps("own", stack), Temperature(args.out / "codes.tsv"), AfterWork("wait", stack)],
    ).train()  # fmt: skip


if __name__ == "__main__":
    main()
