"""Paint photos from their edges with a conditional GAN; doodles from a second loader must convince the critic too.

Two loaders feed one loop: edges with the photo they come from, and doodles that have no photo.
"""

import argparse
import random
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from stopwatch import lap, timed

SIDE, BATCH, PHOTOS = 96, 8, 240


class EdgesAndPhotos(Dataset):
    """Bilateral smoothing at full size, Canny with thresholds drawn at random, then a random square of both."""

    def __init__(self, folder: Path) -> None:
        listed = sorted(folder.glob("*/*.JPEG"))
        self.paths = listed[:: max(1, len(listed) // PHOTOS)][:PHOTOS]

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        photo = cv2.imread(str(self.paths[index]), cv2.IMREAD_COLOR)
        photo = cv2.resize(photo, (256, 192), interpolation=cv2.INTER_AREA)
        grey = cv2.cvtColor(cv2.bilateralFilter(photo, 5, 50, 50), cv2.COLOR_BGR2GRAY)
        low = random.randint(40, 90)
        edges = cv2.Canny(grey, low, low * 2.5)
        y, x = random.randint(0, 192 - SIDE), random.randint(0, 256 - SIDE)
        edges, photo = edges[y : y + SIDE, x : x + SIDE], photo[y : y + SIDE, x : x + SIDE, ::-1]
        drawn = torch.from_numpy(edges.astype(np.float32) / 255)[None]
        return drawn, torch.from_numpy(photo.astype(np.float32).transpose(2, 0, 1) / 127.5 - 1)


class Doodles(IterableDataset):
    """Endless wavy lines, drawn with OpenCV."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            sheet = np.zeros((SIDE, SIDE), np.uint8)
            for _ in range(random.randint(4, 9)):
                start = np.random.uniform(0, SIDE, 2)
                line = start + np.cumsum(np.random.normal(0, 4, (40, 2)), 0)
                cv2.polylines(sheet, [line.astype(np.int32)], False, 255, 1, cv2.LINE_AA)
            yield torch.from_numpy(sheet.astype(np.float32) / 255)[None]


def down(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 4, 2, 1), nn.InstanceNorm2d(outputs), nn.LeakyReLU(0.2))


def up(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.ConvTranspose2d(inputs, outputs, 4, 2, 1), nn.InstanceNorm2d(outputs), nn.ReLU())


class Painter(nn.Module):
    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, width, 3, padding=1)
        self.downs = nn.ModuleList([down(width, width * 2), down(width * 2, width * 4), down(width * 4, width * 4)])
        self.ups = nn.ModuleList([up(width * 4, width * 4), up(width * 8, width * 2), up(width * 4, width)])
        self.last = nn.Conv2d(width * 2, 3, 3, padding=1)

    def forward(self, edges: torch.Tensor) -> torch.Tensor:
        kept = [self.first(edges)]
        for stage in self.downs:
            kept.append(stage(kept[-1]))
        painted = kept.pop()
        for stage in self.ups:
            painted = torch.cat([stage(painted), kept.pop()], 1)
        return self.last(painted).tanh()


def make_critic(width: int = 48) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(4, width, 4, 2, 1),
        nn.LeakyReLU(0.2),
        down(width, width * 2),
        down(width * 2, width * 4),
        nn.Conv2d(width * 4, 1, 3, padding=1),
    )


def verdict(critic: nn.Module, edges: torch.Tensor, images: torch.Tensor, real: bool) -> torch.Tensor:
    return (critic(torch.cat([edges, images], 1)) - float(real)).square().mean()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--epochs", type=int, default=500)
    options = parser.parse_args()
    torch.manual_seed(21)
    cv2.setNumThreads(1)
    pairs = DataLoader(
        EdgesAndPhotos(options.data / "photos"),
        batch_size=BATCH,
        shuffle=True,
        num_workers=1,
        drop_last=True,
        persistent_workers=True,
    )
    doodles = timed(DataLoader(Doodles(), batch_size=BATCH, num_workers=1), "wait")
    painter, critic = Painter(), make_critic()
    painter_optimizer = torch.optim.Adam(painter.parameters(), 2e-4, betas=(0.5, 0.999))
    critic_optimizer = torch.optim.Adam(critic.parameters(), 2e-4, betas=(0.5, 0.999))
    for epoch in range(options.epochs):
        history = []
        for edges, photos in timed(pairs, "wait"):
            sheets = next(doodles)
            with lap("compute"):
                painted, imagined = painter(edges), painter(sheets)
                critic_loss = verdict(critic, edges, photos, True)
                critic_loss = critic_loss + 0.5 * verdict(critic, edges, painted.detach(), False)
                critic_loss = critic_loss + 0.5 * verdict(critic, sheets, imagined.detach(), False)
                critic_optimizer.zero_grad()
                critic_loss.backward()
                critic_optimizer.step()
                likeness = (painted - photos).abs().mean()
                painter_loss = verdict(critic, edges, painted, True) + verdict(critic, sheets, imagined, True)
                painter_optimizer.zero_grad()
                (painter_loss + 20 * likeness).backward()
                painter_optimizer.step()
            with lap("own"):
                history.append((critic_loss.item(), painter_loss.item(), likeness.item()))
                if len(history) % 10 == 0:
                    sheet = torch.cat([photos[0], painted[0].detach(), imagined[0].detach()], 2)
                    pixels = ((sheet.permute(1, 2, 0).numpy() + 1) * 127.5).astype(np.uint8)
                    cv2.imwrite("preview.jpg", pixels[..., ::-1])
        means = np.mean(history, 0)
        print(f"epoch {epoch}: critic {means[0]:.3f}, painter {means[1]:.3f}, likeness {means[2]:.3f}", flush=True)


if __name__ == "__main__":
    main()
