"""SimCLR: two views of each photograph, NT-Xent loss. Written on a laptop where worker processes made trouble."""

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder

from stopwatch import lap, timed


class TwoViews:
    def __init__(self, side):
        jitter = transforms.ColorJitter(0.4, 0.4, 0.4, 0.1)
        self.view = transforms.Compose(
            [
                transforms.RandomResizedCrop(side, scale=(0.2, 1.0)),
                transforms.RandomHorizontalFlip(),
                transforms.RandomApply([jitter], p=0.8),
                transforms.RandomGrayscale(p=0.2),
                transforms.ToTensor(),
                transforms.RandomApply([transforms.GaussianBlur(5, (0.1, 2.0))], p=0.5),
            ]
        )

    def __call__(self, image):
        with lap("transform"):
            return self.view(image), self.view(image)


def conv(inputs, outputs):
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, 2, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(True))


class Encoder(nn.Module):
    def __init__(self, width=32, features=64):
        super().__init__()
        self.body = nn.Sequential(conv(3, width), conv(width, 2 * width), conv(2 * width, 4 * width))
        self.project = nn.Sequential(
            nn.Linear(4 * width, 4 * width), nn.ReLU(True), nn.Linear(4 * width, features, bias=False)
        )

    def forward(self, x):
        return F.normalize(self.project(self.body(x).mean((2, 3))), dim=1)


def nt_xent(z1, z2, temperature):
    z = torch.cat([z1, z2])
    similarity = z @ z.T / temperature
    similarity.fill_diagonal_(float("-inf"))
    n = len(z1)
    partner = torch.cat([torch.arange(n, 2 * n), torch.arange(n)])
    return F.cross_entropy(similarity, partner)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/simclr_main_process"))
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--temperature", type=float, default=0.2)
    parser.add_argument("--workers", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(1)
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)

    dataset = ImageFolder(str(args.data / "photos"), TwoViews(64))
    loader = DataLoader(dataset, args.batch_size, shuffle=True, num_workers=args.workers, drop_last=True)
    encoder = Encoder()
    optimizer = torch.optim.Adam(encoder.parameters(), lr=1e-3, weight_decay=1e-6)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)
    for epoch in range(args.epochs):
        meter = []
        for (one, two), _ in timed(loader, "wait"):
            with lap("compute"):
                z1, z2 = encoder(torch.cat([one, two])).chunk(2)
                loss = nt_xent(z1, z2, args.temperature)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            with lap("own"):
                meter.append(loss.item())
            if len(meter) % 20 == 0:
                print(f"epoch {epoch} {len(meter)}/{len(loader)}: {sum(meter) / len(meter):.4f}", flush=True)
        scheduler.step()
        torch.save(encoder.body.state_dict(), args.out / "body.pt")


if __name__ == "__main__":
    main()
