"""Ignite: optical flow by rounds of refinement (a small RAFT): all pairs of places are compared once, and a recurrent
cell looks up what it needs and corrects its guess. Pairs are photographs and bent copies of them."""

import argparse
import random
from contextlib import ExitStack
from pathlib import Path

import cv2
import numpy as np
import torch
from ignite.engine import Engine, Events
from ignite.handlers import ModelCheckpoint, ProgressBar
from ignite.metrics import RunningAverage
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stopwatch import lap


class BentPairs(Dataset):
    def __init__(self, root, side):
        self.files, self.side = sorted(root.glob("*/*.JPEG")), side

    def __len__(self):
        return len(self.files)

    def field(self):
        """A smooth displacement: a coarse one made large, a turn and a zoom."""
        coarse = np.random.normal(0, 2.0, (4, 4, 2)).astype(np.float32)
        flow = cv2.resize(coarse, (self.side, self.side), interpolation=cv2.INTER_CUBIC)
        grid = np.stack(np.meshgrid(*[np.arange(self.side, dtype=np.float32)] * 2), 2)
        middle = grid - self.side / 2
        angle, zoom = random.uniform(-0.06, 0.06), random.uniform(-0.05, 0.05)
        flow += zoom * middle + angle * middle[:, :, ::-1] * np.float32([-1, 1])
        return flow + np.float32([random.uniform(-3, 3), random.uniform(-3, 3)]), grid

    def __getitem__(self, index):
        photo = cv2.imread(str(self.files[index]), cv2.IMREAD_REDUCED_COLOR_2)
        photo = cv2.resize(photo, (self.side + 16, self.side + 16), interpolation=cv2.INTER_AREA)
        y, x = random.randint(0, 16), random.randint(0, 16)
        second = photo[y : y + self.side, x : x + self.side]
        flow, grid = self.field()
        first = cv2.remap(second, grid + flow, None, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT)
        second = cv2.GaussianBlur(cv2.convertScaleAbs(second, alpha=random.uniform(0.8, 1.2)), (3, 3), 0.6)
        pair = np.stack([first, second]).transpose(0, 3, 1, 2)
        return torch.from_numpy(np.ascontiguousarray(pair)), torch.from_numpy(flow.transpose(2, 0, 1).copy())


class Refiner(nn.Module):
    def __init__(self, width=32, reach=3, rounds=5):
        super().__init__()
        self.reach, self.rounds = reach, rounds
        self.features = nn.Sequential(
            nn.Conv2d(3, width, 7, 2, 3), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1), nn.ReLU(),
            nn.Conv2d(width, width, 3, 2, 1),
        )  # fmt: skip
        looks = (2 * reach + 1) ** 2
        self.mix = nn.Conv2d(looks + 2 + width, width, 3, padding=1)
        self.gate, self.fresh = nn.Conv2d(2 * width, width, 3, padding=1), nn.Conv2d(2 * width, width, 3, padding=1)
        self.change = nn.Conv2d(width, 2, 3, padding=1)
        around = torch.arange(-reach, reach + 1).float()
        window = torch.stack(torch.meshgrid(around, around, indexing="xy"), 2)
        self.register_buffer("window", window.view(1, looks, 1, 2))

    def look_up(self, costs, flow):
        b, _, h, w = flow.shape
        grid = torch.stack(torch.meshgrid(torch.arange(w), torch.arange(h), indexing="xy"), 2).view(1, 1, h * w, 2)
        spots = grid + flow.flatten(2).transpose(1, 2)[:, None] + self.window
        spots = (2 * spots / torch.tensor([w - 1, h - 1]) - 1).transpose(1, 2).reshape(b * h * w, 1, -1, 2)
        seen = nn.functional.grid_sample(costs.view(b * h * w, 1, h, w), spots, align_corners=True)
        return seen.view(b, h * w, -1).transpose(1, 2).view(b, -1, h, w)

    def forward(self, pair):
        first, second = (self.features(picture.float() / 127.5 - 1) for picture in pair.unbind(1))
        costs = torch.einsum("bchw,bcyx->bhwyx", first, second) / first.shape[1] ** 0.5
        flow, state, guesses = first.new_zeros(len(first), 2, *first.shape[2:]), first.tanh(), []
        for _ in range(self.rounds):
            x = torch.relu(self.mix(torch.cat([self.look_up(costs, flow.detach()), flow, first], 1)))
            gate = self.gate(torch.cat([state, x], 1)).sigmoid()
            state = (1 - gate) * state + gate * self.fresh(torch.cat([state, x], 1)).tanh()
            flow = flow.detach() + self.change(state)
            guesses.append(4 * nn.functional.interpolate(flow, scale_factor=4, mode="bilinear"))
        return guesses


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/ignite_refined_flow"))
    parser.add_argument("--epochs", type=int, default=50)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    cv2.setNumThreads(1)
    loader = DataLoader(BentPairs(args.data / "photos", 64), 8, shuffle=True, num_workers=1, drop_last=True)
    model = Refiner()
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-4, weight_decay=1e-4)

    def update(engine, batch):
        with lap("compute"):
            pair, flow = batch
            guesses = model(pair)
            losses = [(guess - flow).abs().mean() for guess in guesses]
            loss = sum(0.8 ** (len(losses) - k) * part for k, part in enumerate(losses, 1))
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        with lap("own"):
            return {"loss": loss.item(), "rounds": [part.item() for part in losses]}

    trainer, waiting = Engine(update), ExitStack()
    RunningAverage(output_transform=lambda out: out["loss"]).attach(trainer, "loss")
    trainer.add_event_handler(Events.GET_BATCH_STARTED, lambda: waiting.enter_context(lap("wait")))
    trainer.add_event_handler(Events.GET_BATCH_COMPLETED, waiting.close)
    ProgressBar(mininterval=2).attach(trainer, ["loss"])

    @trainer.on(Events.ITERATION_COMPLETED)
    def write(engine):
        with lap("own"), open(args.out / "rounds.tsv", "a") as file:
            rounds = [f"{part:.3f}" for part in engine.state.output["rounds"]]
            print(engine.state.iteration, *rounds, sep="\t", file=file)

    saver = ModelCheckpoint(args.out, "flow", n_saved=1, require_empty=False)
    trainer.add_event_handler(Events.EPOCH_COMPLETED, saver, {"model": model})
    trainer.run(loader, max_epochs=args.epochs)


if __name__ == "__main__":
    main()
