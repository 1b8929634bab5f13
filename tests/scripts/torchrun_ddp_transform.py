"""Two gloo ranks of DistributedDataParallel on photographs (torchrun --nproc-per-node 2), with a slow transform."""

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from torchvision import datasets, transforms

from stopwatch import lap, timed


class ElasticWarp:
    """Burns the CPU time that a heavy augmentation in Python takes: `seconds` for each photograph."""

    def __init__(self, seconds=0.018):
        self.seconds = seconds

    def __call__(self, image):
        with lap("transform"):
            until = time.thread_time() + self.seconds
            total = 0
            while time.thread_time() < until:
                total += sum(range(100))
            return image


def make_loader(root, batch_size, rank, world):
    crop = transforms.RandomResizedCrop(96, scale=(0.4, 1.0))
    transform = transforms.Compose([crop, transforms.RandomHorizontalFlip(), ElasticWarp(), transforms.ToTensor()])
    dataset = datasets.ImageFolder(root, transform)
    sampler = DistributedSampler(dataset, num_replicas=world, rank=rank, shuffle=True, drop_last=True)
    loader = DataLoader(
        dataset, batch_size=batch_size, sampler=sampler, num_workers=1, persistent_workers=True, drop_last=True
    )
    return loader, sampler, len(dataset.classes)


def make_model(classes):
    layers, width = [], 3
    for after in (16, 32, 64):
        layers += [nn.Conv2d(width, after, 3, stride=2, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
        width = after
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes))


def train(args):
    dist.init_process_group(backend="gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    loader, sampler, classes = make_loader(args.data / "photos", args.batch_size, rank, world)
    model = DistributedDataParallel(make_model(classes))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        model.train()
        running = 0.0
        for images, labels in timed(loader, "wait"):
            with lap("compute"):
                loss = criterion(model(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            running += loss.item()
        if rank == 0:
            print(f"epoch {epoch + 1}: mean loss {running / len(loader):.4f}", flush=True)
    if rank == 0:
        os.makedirs(args.out, exist_ok=True)
        torch.save(model.module.state_dict(), os.path.join(args.out, "final.pt"))
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--out", default="runs/torchrun_ddp_transform")
    train(parser.parse_args())
