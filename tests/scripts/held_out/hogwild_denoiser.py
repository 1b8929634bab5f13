"""Hogwild: two processes train one denoiser in shared memory without locks; the parent listens and keeps the best."""

import argparse
from pathlib import Path

import numpy as np
import torch
import torch.multiprocessing as mp
from PIL import Image
from stopwatch import lap, timed
from torch import nn
from torch.utils.data import DataLoader, Dataset

SIDE = 48


def thumbnails(photos: Path, each=60):
    found = []
    for folder in sorted(p for p in photos.iterdir() if p.is_dir()):
        for file in sorted(folder.iterdir())[:each]:
            image = Image.open(file)
            image.draft("RGB", (2 * SIDE, 2 * SIDE))
            found.append(np.asarray(image.convert("RGB").resize((SIDE + 16, SIDE + 16))))
    return torch.from_numpy(np.stack(found)).permute(0, 3, 1, 2).contiguous()


class Grainy(Dataset):
    """A crop and the same with shot noise and a few dead pixels."""

    def __init__(self, pictures):
        self.pictures = pictures

    def __len__(self):
        return len(self.pictures)

    def __getitem__(self, index):
        y, x = torch.randint(0, 17, (2,)).tolist()
        clean = self.pictures[index, :, y : y + SIDE, x : x + SIDE].float() / 255
        noisy = clean + 0.15 * clean.sqrt() * torch.randn_like(clean)
        noisy[:, torch.rand(SIDE, SIDE) < 0.01] = 0
        return noisy, clean


class DnCNN(nn.Module):
    def __init__(self, width=32, depth=6):
        super().__init__()
        layers = [nn.Conv2d(3, width, 3, padding=1), nn.ReLU()]
        for _ in range(depth - 2):
            layers += [nn.Conv2d(width, width, 3, padding=1), nn.GroupNorm(4, width), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Conv2d(width, 3, 3, padding=1))

    def forward(self, noisy):
        return noisy - self.layers(noisy)


def train(rank, model, pictures, epochs, news):
    """One of the processes: its own order, noise and optimizer, but the weights of all."""
    torch.set_num_threads(1)
    torch.manual_seed(100 + rank)
    loader = DataLoader(Grainy(pictures), batch_size=12, shuffle=True, drop_last=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.8)
    step = 0
    for epoch in range(epochs):
        total = 0.0
        for noisy, clean in timed(loader, "wait"):
            with lap("compute"):
                loss = nn.functional.mse_loss(model(noisy), clean)
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_value_(model.parameters(), 0.1)
                optimizer.step()
                total += loss.item()
            step += 1
            if step % 10 == 0:
                news.put((rank, epoch, step, total / 10))
                total = 0.0
    news.put((rank, None, step, 0.0))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/hogwild_denoiser"))
    parser.add_argument("--epochs", type=int, default=14)
    parser.add_argument("--processes", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    pictures = thumbnails(args.data / "photos").share_memory_()
    model = DnCNN().share_memory()
    context = mp.get_context("fork")
    news = context.SimpleQueue()
    crew = [
        context.Process(target=train, args=(rank, model, pictures, args.epochs, news), daemon=True)
        for rank in range(args.processes)
    ]
    for process in crew:
        process.start()
    at_work, best = len(crew), float("inf")
    while at_work:
        rank, epoch, step, loss = news.get()
        if epoch is None:
            at_work -= 1
            continue
        print(f"process {rank}, epoch {epoch}, step {step}: {loss:.5f}", flush=True)
        if loss < best:
            best = loss
            torch.save(model.state_dict(), args.out / "best.pt")
    for process in crew:
        process.join()


if __name__ == "__main__":
    main()
