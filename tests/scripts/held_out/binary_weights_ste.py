"""XNOR-Net in small: weights and activations are signs; gradients pass through them by our own autograd Functions."""

import argparse
import random
from pathlib import Path

import torch
from PIL import Image
from torch import nn
from torch.autograd import Function
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from stopwatch import lap, timed


class SignOfWeights(Function):
    """sign(w) times the mean of |w| of each filter; straight through where |w| <= 1."""

    @staticmethod
    def forward(ctx, weight):
        scale = weight.abs().mean((1, 2, 3), keepdim=True)
        ctx.save_for_backward(weight, scale)
        return weight.sign() * scale

    @staticmethod
    def backward(ctx, gradient):
        weight, scale = ctx.saved_tensors
        inside = (weight.abs() <= 1).to(gradient.dtype)
        return gradient * (inside * scale + 1 / weight[0].numel())


class SignOfActivations(Function):
    """sign(x), with the slope of a parabola near zero (Bi-Real Net)."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.where(x >= 0, 1.0, -1.0)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * (2 - 2 * x.abs()).clamp(min=0)


class BinaryConv(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.norm = nn.BatchNorm2d(inputs)
        self.weight = nn.Parameter(0.05 * torch.randn(outputs, inputs, 3, 3))
        self.stride = stride

    def forward(self, x):
        signs = SignOfActivations.apply(self.norm(x))
        return nn.functional.conv2d(signs, SignOfWeights.apply(self.weight), stride=self.stride, padding=1)


class Block(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.first, self.second = BinaryConv(inputs, outputs, stride), BinaryConv(outputs, outputs, 1)
        same = stride == 1 and inputs == outputs
        self.skip = nn.Identity() if same else nn.Sequential(nn.AvgPool2d(stride), nn.Conv2d(inputs, outputs, 1))

    def forward(self, x):
        x = self.skip(x) + self.first(x)
        return x + self.second(x)


def small_photo(path):
    image = Image.open(path)
    image.draft("RGB", (80, 80))
    return image.convert("RGB")


def flips(model, before):
    """How many signs have changed since the last look, in thousandths; `before` is brought up to date."""
    changed = total = 0
    for name, weight in model.named_parameters():
        if weight.dim() == 4 and name in before:
            signs = weight.detach() >= 0
            changed += int((signs != before[name]).sum())
            total += signs.numel()
            before[name] = signs
    return 1000 * changed / total


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/binary_weights_ste"))
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    random.seed(47)
    torch.manual_seed(47)
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)

    transform = v2.Compose(
        [
            v2.Resize(72),
            v2.RandomCrop(64),
            v2.RandomHorizontalFlip(),
            v2.PILToTensor(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize([0.5] * 3, [0.25] * 3),
        ]
    )
    photos = ImageFolder(args.data / "photos", transform, loader=small_photo)
    loader = DataLoader(
        photos, args.batch_size, shuffle=True, drop_last=True, num_workers=args.workers, persistent_workers=True
    )
    model = nn.Sequential(
        nn.Conv2d(3, 32, 5, stride=2, padding=2),
        Block(32, 32, 1),
        Block(32, 64, 2),
        Block(64, 128, 2),
        nn.BatchNorm2d(128),
        nn.PReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(128, len(photos.classes)),
    )
    binary = [module.weight for module in model.modules() if isinstance(module, BinaryConv)]
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    signs = {
        f"{name}.weight": module.weight.detach() >= 0
        for name, module in model.named_modules()
        if isinstance(module, BinaryConv)
    }
    for epoch in range(args.epochs):
        for step, (images, labels) in enumerate(timed(loader, "wait")):
            with lap("compute"):
                loss = nn.functional.cross_entropy(model(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                with torch.no_grad():
                    for weight in binary:
                        weight.clamp_(-1.2, 1.2)
            if step % 20 == 0:
                with lap("own"):
                    turned = flips(model, signs)
                print(f"epoch {epoch} step {step}: loss {loss.item():.4f}, {turned:.2f} per mille turned", flush=True)
        torch.save(model.state_dict(), args.out / "binary.pt")


if __name__ == "__main__":
    main()
