"""Quantisation-aware training: where is the middle of what is brightest, and how large is it? Weights and activations
are rounded to eight bits in the forward pass. Written for a small camera that has nothing but integers."""

import argparse
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset, WeightedRandomSampler
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

from stopwatch import lap, timed


class BrightThings(Dataset):
    """Photographs in memory; the targets are worked out from them: middle, width and height of what is bright."""

    def __init__(self, files, side=72):
        self.images, self.targets = [], []
        for file in files:
            image = Image.open(file)
            image.draft("RGB", (side, side))
            pixels = np.asarray(image.convert("RGB").resize((side, side)))
            grey = pixels.mean(2)
            y, x = np.nonzero(grey >= np.quantile(grey, 0.9))
            self.images.append(torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1))))
            self.targets.append(torch.tensor([x.mean(), y.mean(), x.std(), y.std()], dtype=torch.float32) / side)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image, target = self.images[index], self.targets[index]
        if torch.rand(()) < 0.5:
            image, target = image.flip(2), target * torch.tensor([-1.0, 1, 1, 1]) + torch.tensor([1.0, 0, 0, 0])
        return image.float() / 127.5 - 1, target

    def weights(self):
        """Rare sizes come more often."""
        sizes = torch.stack(self.targets)[:, 2:].sum(1)
        counts = torch.histc(sizes, 12, 0, 1)
        return 1 / counts[(sizes * 12).long().clamp(0, 11)]


class Rounded(nn.Module):
    """Rounds to eight bits by a range that follows what has been seen; gradients pass."""

    def __init__(self, follow=0.05):
        super().__init__()
        self.follow, self.low, self.high = follow, 0.0, 0.0

    def forward(self, x):
        if self.training:
            low, high = (value.item() for value in torch.aminmax(x.detach()))
            self.low += self.follow * (min(low, 0.0) - self.low)
            self.high += self.follow * (max(high, 0.0) - self.high)
        scale = max((self.high - self.low) / 255, 1e-8)
        zero = min(255, max(0, round(-self.low / scale)))
        return torch.fake_quantize_per_tensor_affine(x, scale, zero, 0, 255)


class QuantConv(nn.Conv2d):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.weight_range, self.output_range = Rounded(), Rounded()

    def forward(self, x):
        y = nn.functional.conv2d(x, self.weight_range(self.weight), self.bias, self.stride, self.padding)
        return self.output_range(torch.relu(y))


def make_model(width=32):
    trunk = [QuantConv(3, width, 3, stride=2, padding=1)]
    for before, after, stride in [(1, 1, 1), (1, 2, 2), (2, 2, 1), (2, 3, 2), (3, 3, 1)]:
        trunk.append(QuantConv(before * width, after * width, 3, stride=stride, padding=1))
    return nn.Sequential(*trunk, nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Linear(27 * width, 4))


@torch.no_grad()
def error(model, loader):
    model.eval()
    total = sum((model(images) - targets).abs().mean().item() for images, targets in loader)
    model.train()
    return total / len(loader)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/qat_landmarks"))
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--accumulate", type=int, default=2)
    args = parser.parse_args()
    torch.manual_seed(82)
    torch.set_num_threads(1)
    files = sorted((args.data / "photos").glob("*/*.JPEG"))[::4]
    things = BrightThings(files)
    order = torch.randperm(len(things)).tolist()
    train, held_out = Subset(things, order[32:]), Subset(things, order[:32])
    sampler = WeightedRandomSampler(things.weights()[order[32:]], 24 * args.steps)
    loader = DataLoader(train, batch_size=24, sampler=sampler, drop_last=True)
    check = DataLoader(held_out, batch_size=16)
    model, board = make_model(), SummaryWriter(str(args.out))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    bar = tqdm(timed(loader, "wait"), total=args.steps)
    for step, (images, targets) in enumerate(bar, 1):
        with lap("compute"):
            loss = nn.functional.smooth_l1_loss(model(images), targets, beta=0.05)
            (loss / args.accumulate).backward()
            if step % args.accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()
        with lap("own"):
            convs = [layer for layer in model if isinstance(layer, QuantConv)]
            ranges = {f"{k}": conv.output_range.high for k, conv in enumerate(convs)}
            board.add_scalar("loss", loss.item(), step)
            board.add_scalars("range", ranges, step)
            bar.set_postfix(loss=f"{loss.item():.4f}", widest=f"{max(ranges.values()):.2f}")
            if step % 60 == 0:
                board.add_scalar("held out", error(model, check), step)
                torch.save(model.state_dict(), args.out / "landmarks.pt")
    board.close()


if __name__ == "__main__":
    main()
