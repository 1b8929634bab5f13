"""Word recognition in the wild: words on pieces of photographs, one classifier for each place of a letter.

What the network reads is set right by a lexicon, as in the papers ("full lexicon"), so both accuracies can be followed.
"""

import argparse
import difflib
import re
from contextlib import contextmanager
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stopwatch import lap, timed

LETTERS = " abcdefghijklmnopqrstuvwxyz"
PLACES = 10


def lexicon(most=800):
    words = re.findall(r"[a-z]{4,10}", " ".join(topics.values()).lower())
    return sorted(set(words), key=lambda word: (-len(word), word))[::2][:most]


class SceneWords(Dataset):
    def __init__(self, photos: Path, words, height=32, width=128):
        self.words, self.size = words, (width, height)
        font = ImageFont.load_default(19)
        grounds = []
        for file in sorted(photos.glob("*/*.JPEG"))[::20]:
            ground = Image.open(file)
            ground.draft("L", (width * 2, height * 4))
            grounds.append(ground.convert("L").resize((width * 2, height * 4)))
        self.pictures = np.stack(
            [self.draw(word, grounds[n % len(grounds)], font, n) for n, word in enumerate(words)]
        )

    def draw(self, word, ground, font, number):
        rng = np.random.default_rng(number)
        left, top = int(rng.integers(self.size[0])), int(rng.integers(3 * self.size[1]))
        picture = ground.crop((left, top, left + self.size[0], top + self.size[1]))
        ink = 255 if np.asarray(picture).mean() < 128 else 0
        ImageDraw.Draw(picture).text((int(rng.integers(2, 10)), int(rng.integers(2, 7))), word, fill=ink, font=font)
        return np.asarray(picture)

    def __len__(self):
        return 6 * len(self.words)

    def __getitem__(self, index):
        index %= len(self.words)
        noisy = self.pictures[index] + np.random.normal(0, 6, self.pictures[index].shape)
        target = torch.tensor([LETTERS.index(letter) for letter in self.words[index].ljust(PLACES)])
        return torch.from_numpy(noisy.astype(np.float32))[None] / 255, target


class Proof:
    """Holds what was read in one step; when the step is over it is compared with the lexicon."""

    def __init__(self, words, path: Path):
        self.words, self.file = words, path.open("w")
        self.plain = self.corrected = self.seen = 0

    def spell(self, codes):
        return ["".join(LETTERS[code] for code in row).strip() for row in codes.tolist()]

    def nearest(self, text):
        found = difflib.get_close_matches(text, self.words, n=1, cutoff=0.4)
        return found[0] if found else text

    @contextmanager
    def reading(self, step):
        sheet = {}
        yield sheet
        with lap("own"):
            for text, truth in zip(self.spell(sheet["read"]), self.spell(sheet["truth"])):
                better = self.nearest(text)
                self.plain += text == truth
                self.corrected += better == truth
                self.seen += 1
                if better != truth:
                    self.file.write(f"{step}\t{truth}\t{text}\t{better}\n")


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        layers, before = [], 1
        for after, stride in ((16, 2), (32, 2), (64, 2), (64, (2, 1))):
            layers += [nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU(True)]
            before = after
        self.body = nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 2 * 16, 256), nn.ReLU(True))
        self.places = nn.Linear(256, PLACES * len(LETTERS))

    def forward(self, pictures):
        return self.places(self.body(pictures)).unflatten(1, (PLACES, len(LETTERS)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/scene_words"))
    parser.add_argument("--epochs", type=int, default=30)
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    words = lexicon()
    data = SceneWords(args.data / "photos", words)
    loader = DataLoader(data, batch_size=32, shuffle=True, num_workers=1, persistent_workers=True)
    model, proof, step = Reader(), Proof(words, args.out / "misread.tsv"), 0
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for epoch in range(args.epochs):
        proof.plain = proof.corrected = proof.seen = 0
        for pictures, targets in timed(loader, "wait"):
            with proof.reading(step) as sheet, lap("compute"):
                logits = model(pictures)
                loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                sheet.update(read=logits.argmax(2), truth=targets)
            step += 1
        rates = f"plain {proof.plain / proof.seen:.1%}, with the lexicon {proof.corrected / proof.seen:.1%}"
        print(f"epoch {epoch}: loss {loss.item():.3f}, words {rates}", flush=True)
        torch.save(model.state_dict(), args.out / "reader.pt")


if __name__ == "__main__":
    main()
