"""Energy-based model of photographs in the small: a network gives each image an energy, samples are found by Langevin
dynamics from earlier ones (a replay buffer), and the energy of real images goes down while that of samples goes up."""

import argparse
import json
import random
from pathlib import Path

import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms.functional import to_tensor
from torchvision.utils import save_image

from stopwatch import lap, timed


class Photos(Dataset):
    """Whole photographs, evened out, and a square of each at a random place and of a random size."""

    def __init__(self, root, side):
        self.files, self.side = sorted(root.glob("*/*.JPEG")), side

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        photo = Image.open(self.files[index]).convert("RGB")
        edge = random.randint(min(photo.size) // 2, min(photo.size))
        left, top = random.randint(0, photo.width - edge), random.randint(0, photo.height - edge)
        square = photo.crop((left, top, left + edge, top + edge)).resize((2 * self.side, 2 * self.side))
        square = ImageEnhance.Color(ImageOps.autocontrast(square, cutoff=1)).enhance(random.uniform(0.7, 1.2))
        return to_tensor(ImageOps.fit(square, (self.side, self.side), Image.Resampling.LANCZOS)) * 2 - 1


class Buffer:
    """Samples of earlier steps; one in twenty begins as noise again."""

    def __init__(self, side, size=2000):
        self.size, self.side = size, side
        self.samples = [self.noise() for _ in range(64)]

    def noise(self):
        return torch.rand(3, self.side, self.side) * 2 - 1

    def take(self, count):
        drawn = random.choices(self.samples, k=count)
        return torch.stack([self.noise() if random.random() < 0.05 else sample for sample in drawn])

    def put(self, samples):
        self.samples.extend(samples.unbind())
        random.shuffle(self.samples)
        del self.samples[self.size :]


class Energy(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1), nn.SiLU(),
            nn.Conv2d(width, 2 * width, 4, stride=2, padding=1), nn.SiLU(),
            nn.Conv2d(2 * width, 2 * width, 3, padding=1), nn.SiLU(),
            nn.Conv2d(2 * width, 4 * width, 4, stride=2, padding=1), nn.SiLU(), nn.Flatten(),
            nn.Linear(4 * width * 64, 1),
        )  # fmt: skip

    def forward(self, images):
        return self.layers(images).squeeze(1)


def langevin(energy, samples, rounds, pace=8.0, noise=0.005):
    energy.requires_grad_(False)
    for _ in range(rounds):
        samples = (samples + noise * torch.randn_like(samples)).requires_grad_()
        (slope,) = torch.autograd.grad(energy(samples).sum(), samples)
        samples = (samples - pace * slope.clamp(-0.03, 0.03)).clamp(-1, 1).detach()
    energy.requires_grad_(True)
    return samples


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/energy_langevin"))
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=8)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    loader = DataLoader(Photos(args.data / "photos", 32), 12, shuffle=True, num_workers=1, drop_last=True)
    energy, buffer, step = Energy(), Buffer(32), 0
    optimizer = torch.optim.Adam(energy.parameters(), lr=1e-4, betas=(0.0, 0.999))
    for epoch in range(args.epochs):
        for images in timed(loader, "wait"):
            with lap("wait"):
                start = buffer.take(len(images))
                images = images + 0.01 * torch.randn_like(images)
            with lap("compute"):
                samples = langevin(energy, start, args.rounds)
                real, made = energy(torch.cat([images, samples])).chunk(2)
                loss = real.mean() - made.mean() + 0.1 * (real**2 + made**2).mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(energy.parameters(), 0.1)
                optimizer.step()
            with lap("own"):
                step += 1
                buffer.put(samples)
                entry = {"step": step, "loss": loss.item(), "real": real.mean().item(), "made": made.mean().item()}
                entry["gradients"] = {name: weight.grad.norm().item() for name, weight in energy.named_parameters()}
                with (args.out / "energies.jsonl").open("a") as file:
                    file.write(json.dumps(entry) + "\n")
                if step % 20 == 0:
                    print(f"{epoch}/{step}: real {entry['real']:.3f}, made {entry['made']:.3f}", flush=True)
                    save_image(torch.stack(buffer.samples[:36]) / 2 + 0.5, args.out / "samples.png", nrow=6)
        with lap("own"):
            torch.save(energy.state_dict(), args.out / "energy.pt")


if __name__ == "__main__":
    main()
