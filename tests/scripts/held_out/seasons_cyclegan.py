"""Unpaired translation between two halves of a photo collection: CycleGAN with a pool of earlier fakes."""

import argparse
import json
import random
from pathlib import Path

import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms as T

from stopwatch import lap, timed


class Domain(Dataset):
    def __init__(self, folders, size):
        self.files = [file for folder in folders for file in sorted(folder.glob("*.JPEG"))]
        shape = [
            T.Resize(int(size * 1.12), T.InterpolationMode.BICUBIC),
            T.RandomPerspective(0.2),
            T.RandomCrop(size),
        ]
        colour = [T.ColorJitter(0.2, 0.2, 0.2, 0.05), T.ToTensor(), T.Normalize([0.5] * 3, [0.5] * 3)]
        self.transform = T.Compose(shape + colour)

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        with lap("sample"):
            return self.transform(Image.open(self.files[index]).convert("RGB"))


class ImagePool:
    def __init__(self, most=50):
        self.most, self.images = most, []

    def query(self, batch):
        chosen = []
        for image in batch.detach().clone():
            if len(self.images) < self.most:
                self.images.append(image)
            elif random.random() < 0.5:
                place = random.randrange(self.most)
                self.images[place], image = image, self.images[place]
            chosen.append(image)
        return torch.stack(chosen)


def norm_conv(before, after, kernel=3, stride=1):
    conv = nn.Conv2d(before, after, kernel, stride, kernel // 2, padding_mode="reflect")
    return [conv, nn.InstanceNorm2d(after), nn.ReLU(True)]


class Residual(nn.Sequential):
    def forward(self, x):
        return x + super().forward(x)


def generator(width=24, blocks=3):
    layers = norm_conv(3, width, 7) + norm_conv(width, 2 * width, 3, 2) + norm_conv(2 * width, 4 * width, 3, 2)
    layers += [
        Residual(*norm_conv(4 * width, 4 * width), *norm_conv(4 * width, 4 * width)[:-1]) for _ in range(blocks)
    ]
    for before, after in ((4 * width, 2 * width), (2 * width, width)):
        layers += [nn.ConvTranspose2d(before, after, 4, 2, 1), nn.InstanceNorm2d(after), nn.ReLU(True)]
    return nn.Sequential(*layers, nn.Conv2d(width, 3, 7, padding=3), nn.Tanh())


def discriminator(width=32):
    return nn.Sequential(
        nn.Conv2d(3, width, 4, 2, 1), nn.LeakyReLU(0.2, True), nn.Conv2d(width, 2 * width, 4, 2, 1),
        nn.InstanceNorm2d(2 * width), nn.LeakyReLU(0.2, True), nn.Conv2d(2 * width, 1, 4, 1, 1),
    )  # fmt: skip


class CycleGAN:
    def __init__(self, out: Path):
        self.to_b, self.to_a, self.judge_a, self.judge_b = generator(), generator(), discriminator(), discriminator()
        self.optimizer = torch.optim.Adam([*self.to_a.parameters(), *self.to_b.parameters()], 2e-4, (0.5, 0.999))
        judges = [*self.judge_a.parameters(), *self.judge_b.parameters()]
        self.judge_optimizer = torch.optim.Adam(judges, 2e-4, (0.5, 0.999))
        self.pool_a, self.pool_b, self.journal = ImagePool(), ImagePool(), (out / "losses.jsonl").open("a")

    def against(self, logits, real):
        return (logits - float(real)).square().mean()

    def step(self, a, b):
        fake_b, fake_a = self.to_b(a), self.to_a(b)
        cycle = (self.to_a(fake_b) - a).abs().mean() + (self.to_b(fake_a) - b).abs().mean()
        same = (self.to_b(b) - b).abs().mean() + (self.to_a(a) - a).abs().mean()
        fool = self.against(self.judge_b(fake_b), True) + self.against(self.judge_a(fake_a), True)
        self.optimizer.zero_grad()
        (fool + 10 * cycle + 5 * same).backward()
        self.optimizer.step()
        judged = self.against(self.judge_a(a), True) + self.against(self.judge_a(self.pool_a.query(fake_a)), False)
        judged += self.against(self.judge_b(b), True) + self.against(self.judge_b(self.pool_b.query(fake_b)), False)
        self.judge_optimizer.zero_grad()
        judged.backward()
        self.judge_optimizer.step()
        return {"cycle": cycle.item(), "same": same.item(), "fool": fool.item(), "judged": judged.item()}

    def fit(self, loader_a, loader_b, epochs, out):
        for epoch in range(epochs):
            pairs = zip(loader_a, loader_b)
            for number, (a, b) in enumerate(timed(pairs, "wait")):
                with lap("compute"):
                    losses = self.step(a, b)
                with lap("own"):
                    self.journal.write(json.dumps({"epoch": epoch, "step": number, **losses}) + "\n")
                    self.journal.flush()
            print(f"epoch {epoch}: {losses}", flush=True)
            torch.save({"to_a": self.to_a.state_dict(), "to_b": self.to_b.state_dict()}, out / "generators.pt")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/cyclegan"))
    parser.add_argument("--epochs", type=int, default=20)
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    folders = sorted(folder for folder in (args.data / "photos").iterdir() if folder.is_dir())
    loaders = [
        DataLoader(Domain(half, 64), 4, shuffle=True, num_workers=1, persistent_workers=True, drop_last=True)
        for half in (folders[::2], folders[1::2])
    ]
    CycleGAN(args.out).fit(*loaders, args.epochs, args.out)


if __name__ == "__main__":
    main()
