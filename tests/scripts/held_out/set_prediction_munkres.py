"""The palette of a photograph as a set of colours. Each guess is matched with one true colour before the loss."""

import argparse
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stopwatch import lap, timed


class Palettes(Dataset):
    """Small photographs and the colours that a median cut finds in them."""

    def __init__(self, root: Path, colours: int, side=48, every=2):
        self.samples = []
        for path in sorted(root.glob("*/*.*"))[::every]:
            image = Image.open(path)
            image.draft("RGB", (side, side))
            image = image.convert("RGB").resize((side, side), Image.Resampling.BOX)
            palette = np.array(image.quantize(colours).getpalette(), np.float32).reshape(-1, 3)[:colours]
            palette = np.resize(palette, (colours, 3)) / 255
            self.samples.append((np.asarray(image).transpose(2, 0, 1).copy(), palette))

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        image, palette = self.samples[index]
        if torch.rand(()) < 0.5:
            image = image[:, :, ::-1].copy()
        return torch.from_numpy(image), torch.from_numpy(palette)


class SetDecoder(nn.Module):
    def __init__(self, queries, width=48):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 8, stride=8)
        self.position = nn.Parameter(0.02 * torch.randn(36, width))
        self.queries = nn.Parameter(torch.randn(queries, width))
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.feed = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, 3)
        )

    def forward(self, images):
        memory = self.patches(images.float() / 255).flatten(2).transpose(1, 2) + self.position
        queries = self.queries.expand(len(images), -1, -1)
        answers, _ = self.attention(queries, memory, memory, need_weights=False)
        return torch.sigmoid(self.feed(queries + answers))


def munkres(costs):
    """Kuhn and Munkres with potentials: the column of each row, so that the costs are least."""
    size = len(costs)
    infinite = float("inf")
    row_potential, column_potential = [0.0] * (size + 1), [0.0] * (size + 1)
    row_of, before = [0] * (size + 1), [0] * (size + 1)
    for row in range(1, size + 1):
        row_of[0], column = row, 0
        least, used = [infinite] * (size + 1), [False] * (size + 1)
        while True:
            used[column] = True
            this, delta, following = row_of[column], infinite, 0
            line, potential = costs[this - 1], row_potential[this]
            for other in range(1, size + 1):
                if used[other]:
                    continue
                reduced = line[other - 1] - potential - column_potential[other]
                if reduced < least[other]:
                    least[other], before[other] = reduced, column
                if least[other] < delta:
                    delta, following = least[other], other
            for other in range(size + 1):
                if used[other]:
                    row_potential[row_of[other]] += delta
                    column_potential[other] -= delta
                else:
                    least[other] -= delta
            column = following
            if row_of[column] == 0:
                break
        while column:
            row_of[column] = row_of[before[column]]
            column = before[column]
    columns = [0] * size
    for column in range(1, size + 1):
        columns[row_of[column] - 1] = column - 1
    return columns


def match(costs):
    return torch.tensor([munkres(table) for table in costs.tolist()])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/set_prediction_munkres"))
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=24)
    parser.add_argument("--colours", type=int, default=32)
    args = parser.parse_args()
    torch.manual_seed(30)
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)

    palettes = Palettes(args.data / "photos", args.colours)
    loader = DataLoader(palettes, args.batch_size, shuffle=True, drop_last=True)
    model = SetDecoder(args.colours)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        total = 0.0
        for step, (images, colours) in enumerate(timed(loader, "wait"), start=1):
            with lap("compute"):
                guesses = model(images)
                costs = torch.cdist(guesses.detach(), colours, p=1)
            with lap("own"):
                columns = match(costs)
            with lap("compute"):
                wanted = colours.gather(1, columns[:, :, None].expand(-1, -1, 3))
                loss = nn.functional.smooth_l1_loss(guesses, wanted, beta=0.05)
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
            total += loss.item()
            if step % 20 == 0:
                print(f"epoch {epoch} step {step}/{len(loader)}: {total / step:.5f}", flush=True)
        torch.save(model.state_dict(), args.out / "decoder.pt")


if __name__ == "__main__":
    main()
