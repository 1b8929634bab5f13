"""A small diffusion model of thumbnails: noise prediction, averaged weights, and a DDIM preview now and then."""

import argparse
import copy
import math
from pathlib import Path

import torch
from PIL import Image
from stopwatch import lap, timed
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import functional as tv
from torchvision.utils import save_image


class Thumbnails(Dataset):
    """All photographs at a small side, kept in memory as tensors of bytes."""

    def __init__(self, root, side):
        self.pictures = []
        for file in sorted(root.glob("*/*.JPEG")):
            image = Image.open(file)
            image.draft("RGB", (side, side))
            self.pictures.append(tv.pil_to_tensor(image.convert("RGB").resize((side, side))))

    def __len__(self):
        return len(self.pictures)

    def __getitem__(self, index):
        picture = self.pictures[index]
        return picture.flip(2) if torch.rand(()) < 0.5 else picture


class Block(nn.Module):
    def __init__(self, inputs, outputs, times):
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.time = nn.Linear(times, outputs)
        self.norm = nn.GroupNorm(8, outputs)

    def forward(self, x, t):
        x = nn.functional.silu(self.norm(self.first(x) + self.time(t)[:, :, None, None]))
        return nn.functional.silu(self.second(x))


class NoiseNet(nn.Module):
    def __init__(self, width=32, times=64):
        super().__init__()
        self.times = times
        self.down, self.deep = Block(3, width, times), Block(width, 2 * width, times)
        self.up, self.last = Block(3 * width, width, times), nn.Conv2d(width, 3, 1)

    def forward(self, x, t):
        rates = torch.exp(torch.arange(self.times // 2) * (-math.log(1e4) / (self.times // 2)))
        angle = t[:, None].float() * rates
        t = torch.cat([angle.sin(), angle.cos()], 1)
        high = self.down(x, t)
        low = self.deep(nn.functional.avg_pool2d(high, 2), t)
        low = nn.functional.interpolate(low, scale_factor=2)
        return self.last(self.up(torch.cat([high, low], 1), t))


class Diffusion:
    def __init__(self, out, steps=500):
        self.out, self.net = out, NoiseNet()
        self.average = copy.deepcopy(self.net).requires_grad_(False)
        self.kept = torch.cumprod(1 - torch.linspace(1e-4, 0.02, steps), 0)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), 2e-4)

    def loss(self, pictures):
        x = pictures.float() / 127.5 - 1
        t = torch.randint(len(self.kept), (len(x),))
        noise = torch.randn_like(x)
        a = self.kept[t][:, None, None, None]
        return nn.functional.mse_loss(self.net(a.sqrt() * x + (1 - a).sqrt() * noise, t), noise)

    def step(self, pictures):
        loss = self.loss(pictures)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        self.optimizer.step()
        for kept, new in zip(self.average.parameters(), self.net.parameters(), strict=True):
            kept.lerp_(new.detach(), 0.01)
        return loss.item()

    @torch.no_grad()
    def sample(self, number, side, steps=10):
        x = torch.randn(number, 3, side, side)
        times = torch.linspace(len(self.kept) - 1, 0, steps).long()
        for now, then in zip(times, [*times[1:], None], strict=True):
            a = self.kept[now]
            noise = self.average(x, now.expand(number))
            clean = ((x - (1 - a).sqrt() * noise) / a.sqrt()).clamp(-1, 1)
            b = self.kept[then] if then is not None else torch.tensor(1.0)
            x = b.sqrt() * clean + (1 - b).sqrt() * noise
        return x

    def fit(self, loader, epochs, side, every=40):
        def endless():
            for _ in range(epochs):
                yield from loader

        for number, pictures in enumerate(timed(endless(), "wait"), 1):
            with lap("compute"):
                loss = self.step(pictures)
            if number % every == 0:
                with lap("own"):
                    save_image(self.sample(6, side), self.out / "preview.png", normalize=True)
                print(f"step {number}: loss {loss:.4f}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/ddim_preview_clouds"))
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--side", type=int, default=32)
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    loader = DataLoader(Thumbnails(args.data / "photos", args.side), 24, shuffle=True, drop_last=True)
    diffusion = Diffusion(args.out)
    diffusion.fit(loader, args.epochs, args.side)
    torch.save(diffusion.average.state_dict(), args.out / "average.pt")


if __name__ == "__main__":
    main()
