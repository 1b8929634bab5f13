"""Amplitude mixing in the collate function, with numpy's FFT; one worker about as fast as the network."""

import argparse
import functools
import os

import numpy as np
import torch
from PIL import Image
from stopwatch import lap, timed
from torch import nn, optim
from torch.utils.data import DataLoader, Dataset


class Photos(Dataset):
    """The photographs as arrays, kept small in memory."""

    def __init__(self, root, side):
        self.arrays, self.labels = [], []
        for label, name in enumerate(sorted(os.listdir(root))):
            for file in sorted(os.listdir(os.path.join(root, name)))[:100]:
                image = Image.open(os.path.join(root, name, file))
                image.draft("RGB", (side, side))
                self.arrays.append(np.array(image.convert("RGB").resize((side, side))))
                self.labels.append(label)

    def __len__(self):
        return len(self.arrays)

    def __getitem__(self, i):
        return self.arrays[i], self.labels[i]


def amplitude_mix(samples, strength):
    """Each photo keeps its phases, its amplitudes are mixed with those of another of the batch."""
    with lap("collate"):
        images = np.stack([image for image, _ in samples]).astype(np.float64) / 255
        partners = np.random.permutation(len(images))
        shares = np.random.uniform(0, strength, size=(len(images), 1, 1, 1))
        spectra = np.fft.fft2(images, axes=(1, 2))
        amplitude, phase = np.abs(spectra), np.angle(spectra)
        amplitude = (1 - shares) * amplitude + shares * amplitude[partners]
        mixed = np.fft.ifft2(amplitude * np.exp(1j * phase), axes=(1, 2)).real
        mixed = np.clip(mixed, 0, 1).astype(np.float32).transpose(0, 3, 1, 2)
        return torch.from_numpy(np.ascontiguousarray(mixed)), torch.tensor([label for _, label in samples])


def conv(a, b, stride):
    return nn.Sequential(nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.BatchNorm2d(b), nn.LeakyReLU(0.1))


class Net(nn.Module):
    def __init__(self, width, classes):
        super().__init__()
        self.layers = nn.Sequential(conv(3, width, 2), conv(width, 2 * width, 2), conv(2 * width, 4 * width, 2))
        self.fc = nn.Linear(4 * width, classes)

    def forward(self, x):
        return self.fc(self.layers(x).mean((2, 3)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--out", default="runs/fourier_collate_close")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--width", type=int, default=28)
    parser.add_argument("--side", type=int, default=96)
    parser.add_argument("--workers", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(1)

    photos = Photos(os.path.join(args.data, "photos"), args.side)
    loader = DataLoader(
        photos,
        batch_size=32,
        shuffle=True,
        drop_last=True,
        num_workers=args.workers,
        persistent_workers=True,
        collate_fn=functools.partial(amplitude_mix, strength=0.6),
    )
    model = Net(args.width, 10)
    optimizer = optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    scheduler = optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
    for epoch in range(args.epochs):
        for images, labels in timed(loader, "wait"):
            with lap("compute"):
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(images), labels)
                loss.backward()
                optimizer.step()
        scheduler.step()
        print(f"epoch {epoch + 1}: loss {loss.item():.4f}, lr {scheduler.get_last_lr()[0]:.3g}", flush=True)
    os.makedirs(args.out, exist_ok=True)
    torch.save(model.state_dict(), os.path.join(args.out, "net.pth"))


if __name__ == "__main__":
    main()
