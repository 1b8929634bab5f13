"""A fast style network by Accelerate: an endless stream of photos, losses on random VGG features, previews as PNG."""

import argparse
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from PIL import Image
from stopwatch import lap
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader
from torchvision import datasets, transforms
from torchvision.models import vgg11


def stream(loader):
    """Photos for ever, whatever an epoch is."""
    while True:
        for images, _ in loader:
            yield images


class StyleNet(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.down = nn.Sequential(self.layer(3, width, 1), self.layer(width, width * 2, 2))
        self.middle = nn.ModuleList(self.layer(width * 2, width * 2, 1) for _ in range(3))
        self.up = nn.Sequential(nn.Upsample(scale_factor=2), self.layer(width * 2, width, 1))
        self.last = nn.Conv2d(width, 3, 5, padding=2)

    @staticmethod
    def layer(before, after, stride):
        convolution = nn.Conv2d(before, after, 3, stride, padding=1, padding_mode="reflect")
        return nn.Sequential(convolution, nn.InstanceNorm2d(after, affine=True), nn.ReLU())

    def forward(self, x):
        x = self.down(x)
        for layer in self.middle:
            x = x + layer(x)
        return torch.sigmoid(self.last(self.up(x)))


class Features(nn.Module):
    def __init__(self, taps=(1, 4, 9)):
        super().__init__()
        self.layers = vgg11(weights=None).features[: max(taps) + 1].requires_grad_(False).eval()
        self.taps = taps

    def forward(self, x):
        found = []
        for n, layer in enumerate(self.layers):
            x = layer(x)
            if n in self.taps:
                found.append(x)
        return found


def gram(x):
    flat = x.flatten(2)
    return flat @ flat.transpose(1, 2) / flat[0].numel()


def preview(before, after, path):
    """Photos above, paintings below."""
    rows = [torch.cat(list(images.detach()[:6]), dim=2) for images in (before, after)]
    pixels = (torch.cat(rows, dim=1).permute(1, 2, 0).numpy() * 255).astype(np.uint8)
    Image.fromarray(pixels).save(path, optimize=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--side", type=int, default=96)
    parser.add_argument("--out", type=Path, default=Path("runs/accelerate_style_stream"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)

    look = transforms.Compose([transforms.Resize(args.side), transforms.RandomCrop(args.side), transforms.ToTensor()])
    photos = datasets.ImageFolder(str(args.data / "photos"), look)
    loader = DataLoader(photos, batch_size=8, shuffle=True, drop_last=True, num_workers=1, persistent_workers=True)
    accelerator = Accelerator(cpu=True)
    net, features = StyleNet(), Features()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    net, optimizer, loader = accelerator.prepare(net, optimizer, loader)

    source = stream(loader)
    with torch.no_grad():
        wanted = [gram(level[:1]) for level in features(next(source))]
    step = 0
    while step < args.steps:
        with lap("wait"):
            images = next(source)
        with lap("compute"):
            painted = net(images)
            levels = features(painted)
            with torch.no_grad():
                content = features(images)[-1]
            style = sum(
                F.mse_loss(gram(level), aim.expand(len(images), -1, -1)) for level, aim in zip(levels, wanted)
            )
            loss = F.mse_loss(levels[-1], content) + 50 * style
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
        step += 1
        if step % 10 == 0:
            with lap("own"):
                preview(images, painted, args.out / f"preview_{step // 10 % 10}.png")
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
