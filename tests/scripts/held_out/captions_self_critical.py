"""Hugging Face Trainer: self-critical sequence training of a captioner. The reward is a consensus of n-grams with five
references (as CIDEr has it); the greedy caption's reward is the baseline."""

import argparse
import math
import random
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import torch
from PIL import Image
from torch import nn
from torch.utils.data import Dataset
from torchvision.transforms import functional as tv
from transformers import Trainer, TrainerCallback, TrainingArguments

from stopwatch import lap

WORDS, LENGTH = 120, 16


class Clock(ExitStack):
    def turn(self, name):
        self.close()
        self.enter_context(lap(name))


class Captioned(Dataset):
    """Small pictures with five captions each; every class has favourite words."""

    def __init__(self, root, side=24, seed=12):
        rng = random.Random(seed)
        self.pictures, self.captions = [], []
        for label, folder in enumerate(sorted(root.iterdir())):
            for file in sorted(folder.glob("*.JPEG")):
                image = Image.open(file)
                image.draft("L", (side, side))
                self.pictures.append(tv.to_tensor(image.convert("L").resize((side, side))))
                lows = [rng.choice([label * 8, 0]) for _ in range(5)]
                self.captions.append([[low + int(rng.triangular(0, 40, 4)) for _ in range(LENGTH)] for low in lows])

    def __len__(self):
        return len(self.pictures)

    def __getitem__(self, index):
        return {"pictures": self.pictures[index], "index": index}


class Captioner(nn.Module):
    def __init__(self, side=24, width=96):
        super().__init__()
        self.look = nn.Sequential(nn.Flatten(), nn.Linear(side * side, width), nn.Tanh())
        self.words, self.cell = nn.Embedding(WORDS + 1, width), nn.GRUCell(width, width)
        self.out = nn.Linear(width, WORDS)

    def forward(self, pictures, greedy=False):
        state = self.look(pictures)
        word = torch.full((len(pictures),), WORDS)
        chosen, logs = [], []
        for _ in range(LENGTH):
            state = self.cell(self.words(word), state)
            log = self.out(state).log_softmax(1)
            word = log.argmax(1) if greedy else torch.multinomial(log.exp().detach(), 1)[:, 0]
            chosen.append(word)
            logs.append(log.gather(1, word[:, None])[:, 0])
        return torch.stack(chosen, 1), torch.stack(logs, 1)


class Consensus:
    def __init__(self, captions, longest=4):
        self.captions, self.longest = captions, longest
        self.seen = Counter()
        for references in captions:
            self.seen.update({gram for caption in references for gram in self.grams(caption)})

    def grams(self, words):
        return Counter(tuple(words[i : i + n]) for n in range(1, self.longest + 1) for i in range(len(words) - n + 1))

    def weigh(self, words):
        total = math.log(len(self.captions))
        vector = {gram: n * (total - math.log(max(1, self.seen[gram]))) for gram, n in self.grams(words).items()}
        return vector, math.sqrt(sum(value * value for value in vector.values())) or 1.0

    def score(self, candidate, references):
        mine, norm = self.weigh(candidate)
        score = 0.0
        for reference in references:
            other, length = self.weigh(reference)
            common = sum(min(value, other.get(gram, 0.0)) * other.get(gram, 0.0) for gram, value in mine.items())
            score += common / (norm * length)
        return score / len(references)


class SelfCritical(Trainer):
    def __init__(self, *args, reward, clock, **kwargs):
        super().__init__(*args, **kwargs)
        self.reward, self.clock = reward, clock

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        captions, logs = model(inputs["pictures"])
        with torch.no_grad():
            plain, _ = model(inputs["pictures"], greedy=True)
        self.clock.turn("own")
        references = [self.reward.captions[k] for k in inputs["index"].tolist()]
        sampled = [self.reward.score(*pair) for pair in zip(captions.tolist(), references, strict=True)]
        baseline = [self.reward.score(*pair) for pair in zip(plain.tolist(), references, strict=True)]
        self.clock.turn("compute")
        gain = torch.tensor(sampled) - torch.tensor(baseline)
        loss = -(gain[:, None] * logs).mean()
        return (loss, captions) if return_outputs else loss


class Laps(TrainerCallback):
    def __init__(self, clock):
        self.clock = clock

    def on_step_begin(self, *args, **kwargs):
        self.clock.turn("compute")

    def on_step_end(self, *args, **kwargs):
        self.clock.turn("wait")

    def on_train_end(self, *args, **kwargs):
        self.clock.close()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", default="runs/captions_self_critical")
    parser.add_argument("--epochs", type=int, default=60)
    options = parser.parse_args()
    torch.set_num_threads(1)
    pictures, clock = Captioned(options.data / "photos"), Clock()
    settings = TrainingArguments(
        output_dir=options.out, num_train_epochs=options.epochs, per_device_train_batch_size=48, learning_rate=1e-3,
        remove_unused_columns=False, logging_steps=25, save_strategy="no", report_to="none", disable_tqdm=True,
        use_cpu=True, dataloader_pin_memory=False,
    )  # fmt: skip
    trainer = SelfCritical(
        model=Captioner(), args=settings, train_dataset=pictures, callbacks=[Laps(clock)],
        reward=Consensus(pictures.captions), clock=clock,
    )  # fmt: skip
    trainer.train()
    trainer.save_model()


if __name__ == "__main__":
    main()
