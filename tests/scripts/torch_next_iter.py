"""Train for a number of steps, not of epochs: a random batch is drawn for each step."""

import argparse
from pathlib import Path

import torch
from stopwatch import lap
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets, transforms


def make_loader(root, batch_size):
    transform = transforms.Compose(
        [
            transforms.Resize(96),
            transforms.CenterCrop(80),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
        ]
    )
    return DataLoader(datasets.ImageFolder(root, transform), batch_size=batch_size, shuffle=True, num_workers=2)


def make_model():
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(256, 10),
    )


def train(model, loader, optimizer, steps, log_every=50):
    history = []
    for step in range(1, steps + 1):
        with lap("wait"):
            images, labels = next(iter(loader))
        with lap("compute"):
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        history.append(loss.item())
        if step % log_every == 0:
            print(f"step {step}/{steps}: loss {sum(history[-log_every:]) / log_every:.4f}", flush=True)
    return history


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--out", type=Path, default=Path("runs/torch_next_iter"))
    args = parser.parse_args()

    torch.set_num_threads(1)  # the model is small
    loader = make_loader(args.data / "photos", args.batch_size)
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    history = train(model, loader, optimizer, args.steps)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "loss.txt").write_text("\n".join(f"{loss:.5f}" for loss in history))


if __name__ == "__main__":
    main()
