"""Classifies range-Doppler maps of a short-range radar (gestures), straight from the archives as the laboratory keeps
them: one .tar.xz for each recording session."""

import argparse
import io
import tarfile
from pathlib import Path

import numpy as np
import torch
import webdataset as wds
from torch import nn

from stopwatch import lap, timed

GESTURES = ["swipe", "push", "circle", "pinch", "none"]
SHAPE = (8, 64, 128)  # antennas, Doppler, range


def recording(rng, label):
    """An echo that moves by gesture, over thermal noise; ADC counts of 1/16 dB."""
    antennas, doppler, distance = np.ogrid[: SHAPE[0], : SHAPE[1], : SHAPE[2]]
    speed = 16 + (label - 2) * 4 + rng.normal() + 0.3 * antennas
    away = rng.uniform(20, 110)
    echo = 30 * np.exp(-((doppler - speed) ** 2) / 6 - (distance - away) ** 2 / (20 + 15 * label))
    return np.round(16 * (echo + rng.normal(0, 2.5, SHAPE))).astype(np.float32) / 16


def pack_sessions(folder, sessions, each):
    files = []
    for session in range(sessions):
        rng = np.random.default_rng(session)
        path = folder / f"session-{session:02d}.tar.xz"
        with tarfile.open(path, "w:xz", preset=0) as archive:
            for number in range(each):
                label = int(rng.integers(len(GESTURES)))
                buffer = io.BytesIO()
                np.save(buffer, recording(rng, label))
                for name, content in (("npy", buffer.getvalue()), ("cls", str(label).encode())):
                    member = tarfile.TarInfo(f"{session:02d}{number:05d}.{name}")
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))
        files.append(str(path))
    return files


def normalised(maps):
    maps = torch.from_numpy(maps)
    return (maps - maps.mean()) / (maps.std() + 1e-3)


class GestureNet(nn.Module):
    def __init__(self, antennas, width=12):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(antennas, width, 5, stride=(2, 4), padding=2), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width * 2, 3, stride=2, padding=1), nn.BatchNorm2d(width * 2), nn.ReLU(),
            nn.Conv2d(width * 2, width * 4, 3, stride=2, padding=1), nn.ReLU(),
        )  # fmt: skip
        self.head = nn.Linear(width * 4, len(GESTURES))

    def forward(self, maps):
        return self.head(self.features(maps).amax((2, 3)))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", help="not used, recordings are simulated")
    parser.add_argument("--out", type=Path, default=Path("runs/wds_xz_radar"))
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--batch", type=int, default=16)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(77)
    torch.set_num_threads(1)

    sessions = pack_sessions(args.out, sessions=4, each=24)
    data = (
        wds.WebDataset(sessions, resampled=True, shardshuffle=False)
        .shuffle(40, initial=8)
        .decode()
        .to_tuple("npy", "cls")
        .map_tuple(normalised, int)
        .batched(args.batch)
    )
    loader = wds.WebLoader(data, batch_size=None, num_workers=2, prefetch_factor=3).with_epoch(args.steps)
    net = GestureNet(SHAPE[0])
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)
    correct = seen = 0
    for step, (maps, labels) in enumerate(timed(loader, "wait"), 1):
        with lap("compute"):
            labels = torch.as_tensor(labels)
            scores = net(maps)
            loss = nn.functional.cross_entropy(scores, labels)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            schedule.step()
        with lap("own"):
            correct += (scores.argmax(1) == labels).sum().item()
            seen += len(labels)
            if step % 40 == 0:
                print(f"{step:6d}  loss {loss.item():.3f}  right {correct / seen:.3f}", flush=True)
                correct = seen = 0
            if step % 400 == 0:
                torch.save(net.state_dict(), args.out / "gestures.pt")


if __name__ == "__main__":
    main()
