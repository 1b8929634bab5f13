"""Video prediction: a ConvLSTM follows a camera over photographs; truncated backpropagation, four updates a clip."""

import argparse
import random
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from stopwatch import lap, timed
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision.utils import save_image

SIDE, FRAMES, CHUNK = 40, 25, 6


class Pans(Dataset):
    """A window that moves over a photograph with a speed of its own, zooms a little and shakes."""

    def __init__(self, root: Path):
        self.files = sorted(root.glob("*/*.JPEG"))

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        with lap("clip"):
            image = Image.open(self.files[index]).convert("L")
            size = min(image.size) * random.uniform(0.3, 0.5)
            room = image.width - size, image.height - size
            place = np.array([random.uniform(0, most) for most in room])
            speed, zoom = np.random.normal(0, 6, 2), random.uniform(0.985, 1.015)
            clip = np.empty((FRAMES, SIDE, SIDE), np.uint8)
            for k in range(FRAMES):
                x, y = place + np.random.normal(0, 0.7, 2)
                box = (x, y, x + size, y + size)
                frame = image.transform((SIDE, SIDE), Image.Transform.EXTENT, box, Image.Resampling.BILINEAR)
                clip[k] = np.asarray(frame)
                speed = np.where((place + speed < 0) | (place + speed > room), -speed, speed)
                place, size = place + speed, size * zoom
        return torch.from_numpy(clip)


class Cell(nn.Module):
    def __init__(self, inputs, width):
        super().__init__()
        self.gates, self.width = nn.Conv2d(inputs + width, 4 * width, 3, padding=1), width

    def start(self, batch, side):
        return torch.zeros(batch, self.width, side, side), torch.zeros(batch, self.width, side, side)

    def forward(self, x, state):
        h, c = state
        i, f, o, g = self.gates(torch.cat([x, h], 1)).chunk(4, 1)
        c = torch.sigmoid(f + 1) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c


class Predictor(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.one, self.two = Cell(1, width), Cell(width, width)
        self.head = nn.Conv2d(width, 1, 1)

    def start(self, batch):
        return self.one.start(batch, SIDE), self.two.start(batch, SIDE)

    def forward(self, frames, states):
        """The frame after each of these, and the states at the end."""
        one, two = states
        following = []
        for frame in frames.unbind(1):
            one = self.one(frame[:, None], one)
            two = self.two(one[0], two)
            following.append(frame[:, None] + self.head(two[0]))
        return torch.cat(following, 1), (one, two)


def detached(states):
    return tuple(tuple(tensor.detach() for tensor in state) for state in states)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/tbptt_pans"))
    parser.add_argument("--epochs", type=int, default=1)
    args = parser.parse_args()
    torch.manual_seed(7)
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    loader = DataLoader(Pans(args.data / "photos"), batch_size=6, shuffle=True, drop_last=True, num_workers=1)
    model = Predictor()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    clips = 0
    for epoch in range(args.epochs):
        for batch in timed(loader, "wait"):
            states = model.start(len(batch))
            frames = batch.float() / 255
            for start in range(0, FRAMES - 1, CHUNK):
                with lap("compute"):
                    seen, wanted = frames[:, start : start + CHUNK], frames[:, start + 1 : start + CHUNK + 1]
                    guesses, states = model(seen, detached(states))
                    loss = nn.functional.l1_loss(guesses, wanted)
                    optimizer.zero_grad()
                    loss.backward()
                    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
            clips += len(batch)
            if clips % 120 == 0:
                shown = torch.cat([wanted[0], guesses[0].detach().clamp(0, 1)])[:, None]
                save_image(shown, args.out / "last.png", nrow=CHUNK)
                print(f"{clips} clips: {loss.item():.4f}", flush=True)
    torch.save(model.state_dict(), args.out / "pans.pt")


if __name__ == "__main__":
    main()
