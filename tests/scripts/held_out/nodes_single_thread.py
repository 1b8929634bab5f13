"""torchdata.nodes in place of a DataLoader: sampler, a thread that opens the photographs, batches, prefetching."""

import argparse
from pathlib import Path

import torch
from PIL import Image
from torch import nn
from torch.utils.data import RandomSampler, default_collate
from torchdata.nodes import Batcher, Loader, Mapper, ParallelMapper, Prefetcher, SamplerWrapper
from torchvision import transforms

from stopwatch import lap, timed


class Opener:
    """From a number to (image, label)."""

    def __init__(self, root: Path, side: int):
        self.files = sorted(root.glob("*/*.JPEG"))
        self.classes = sorted({file.parent.name for file in self.files})
        self.augment = transforms.Compose(
            [
                transforms.Resize(side + 16),
                transforms.RandomCrop(side),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
                transforms.Normalize((0.48, 0.46, 0.41), (0.25, 0.25, 0.25)),
            ]
        )

    def __call__(self, number):
        file = self.files[number]
        with lap("decode"):
            photo = Image.open(file).convert("RGB")
        with lap("transform"):
            return self.augment(photo), self.classes.index(file.parent.name)


def build_loader(opener, batch_size, threads, ahead):
    node = SamplerWrapper(RandomSampler(range(len(opener.files))))
    node = ParallelMapper(node, opener, num_workers=threads, method="thread")
    node = Batcher(node, batch_size, drop_last=True)
    node = Mapper(node, default_collate)
    node = Prefetcher(node, prefetch_factor=ahead)
    return Loader(node)


def build_model(classes):
    body, channels = [], 3
    for width, stride in ((16, 2), (24, 2), (32, 2), (32, 1)):
        body += [nn.Conv2d(channels, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
        channels = width
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/nodes_single_thread"))
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--ahead", type=int, default=3)
    args = parser.parse_args()
    torch.manual_seed(45)
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)

    opener = Opener(args.data / "photos", side=64)
    loader = build_loader(opener, args.batch_size, args.threads, args.ahead)
    model = build_model(len(opener.classes))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    for epoch in range(args.epochs):
        losses = []
        for images, labels in timed(loader, "wait"):
            with lap("compute"):
                loss = nn.functional.cross_entropy(model(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            losses.append(loss.item())
        print(f"epoch {epoch}: {len(losses)} steps, loss {sum(losses) / len(losses):.4f}", flush=True)
        torch.save(model.state_dict(), args.out / "model.pt")


if __name__ == "__main__":
    main()
