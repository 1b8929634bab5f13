"""Offline reinforcement learning from recorded games: a camera follows a moving window over photographs.

The replay memory keeps every frame compressed, as large ones must, and draws by priority.
"""

import argparse
import copy
import lzma
import random
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

from stopwatch import lap

SIDE, STACK, MOVES = 96, 4, [(0, 0), (-8, 0), (8, 0), (0, -8), (0, 8)]
FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 1}]


class Replay:
    """Frames as LZMA, transitions as rows; a transition is drawn by how wrong its value was last time."""

    def __init__(self):
        self.frames, self.actions, self.rewards, self.ends = [], [], [], []
        self.priority = None

    def record(self, frame, action, reward, end):
        self.frames.append(lzma.compress(frame.tobytes(), lzma.FORMAT_RAW, filters=FILTERS))
        self.actions.append(action)
        self.rewards.append(reward)
        self.ends.append(end)

    def close(self):
        self.priority = np.ones(len(self.frames), np.float64)
        self.priority[:STACK] = 0
        self.priority[-1] = 0

    def unpack(self, index):
        raw = lzma.decompress(self.frames[index], lzma.FORMAT_RAW, filters=FILTERS)
        return np.frombuffer(raw, np.uint8).reshape(SIDE, SIDE)

    def sample(self, size):
        chance = self.priority / self.priority.sum()
        rows = np.random.choice(len(chance), size, p=chance)
        states = np.empty((size, STACK + 1, SIDE, SIDE), np.float32)
        for at, row in enumerate(rows):
            for back in range(STACK + 1):
                states[at, STACK - back] = self.unpack(row + 1 - back)
        states = torch.from_numpy(states) / 127.5 - 1
        columns = (torch.tensor(np.asarray(column)[rows]) for column in (self.actions, self.rewards, self.ends))
        return rows, states, *columns


def play(files, games, length=50):
    replay, rng = Replay(), random.Random(4)
    for file in rng.sample(files, games):
        image = Image.open(file)
        image.draft("L", (250, 188))
        photo = np.asarray(image.convert("L").resize((250, 188)))
        y, x = rng.randrange(188 - SIDE), rng.randrange(250 - SIDE)
        for turn in range(length):
            action = rng.randrange(len(MOVES))
            y = min(max(y + MOVES[action][0], 0), 188 - SIDE)
            x = min(max(x + MOVES[action][1], 0), 250 - SIDE)
            view = photo[y : y + SIDE, x : x + SIDE]
            replay.record(view, action, float(view.std()) / 64, turn == length - 1)
    replay.close()
    return replay


class Values(nn.Module):
    """Duelling heads on three convolutions."""

    def __init__(self, width=16):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(STACK, width, 8, stride=4), nn.ReLU(),
            nn.Conv2d(width, 2 * width, 4, stride=2), nn.ReLU(),
            nn.Conv2d(2 * width, 2 * width, 3), nn.ReLU(), nn.Flatten(),
            nn.LazyLinear(128), nn.ReLU(),
        )  # fmt: skip
        self.state, self.gain = nn.Linear(128, 1), nn.Linear(128, len(MOVES))

    def forward(self, views):
        code = self.trunk(views)
        gain = self.gain(code)
        return self.state(code) + gain - gain.mean(1, keepdim=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/replay_compressed_frames"))
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--batch-size", type=int, default=32)
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    replay = play(sorted((args.data / "photos").glob("*/*.JPEG")), games=20)
    print(f"{len(replay.frames)} frames, {sum(map(len, replay.frames)) / 1e6:.1f} MB", flush=True)

    online = Values()
    online(torch.zeros(1, STACK, SIDE, SIDE))
    target = copy.deepcopy(online).requires_grad_(False)
    optimizer = torch.optim.Adam(online.parameters(), lr=2e-4)
    for step in range(args.steps):
        with lap("wait"):
            rows, states, actions, rewards, ends = replay.sample(args.batch_size)
        with lap("compute"):
            with torch.no_grad():
                best = online(states[:, 1:]).argmax(1, keepdim=True)
                later = target(states[:, 1:]).gather(1, best).squeeze(1)
                aim = rewards.float() + 0.97 * later * ~ends
            guess = online(states[:, :-1]).gather(1, actions[:, None]).squeeze(1)
            loss = nn.functional.smooth_l1_loss(guess, aim)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
        with lap("own"):
            replay.priority[rows] = (guess - aim).detach().abs().numpy() + 0.01
            if step % 100 == 0:
                target.load_state_dict(online.state_dict())
                print(f"step {step}: loss {loss.item():.4f}", flush=True)
    torch.save(online.state_dict(), args.out / "values.pt")


if __name__ == "__main__":
    main()
