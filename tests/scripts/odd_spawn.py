"""Two ranks by torch.multiprocessing.spawn: ResNet-18 under DistributedDataParallel on images held in memory."""

import argparse
import os
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from stopwatch import lap, timed
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler
from torchvision.models import resnet18


def setup(rank, world_size, rendezvous):
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world_size)
    torch.set_num_threads(1)


def make_dataset(n=1024, size=64, classes=10):
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(classes, (n,), generator=generator)
    images = torch.rand(n, 3, size, size, generator=generator) + labels.view(-1, 1, 1, 1) / classes
    return TensorDataset(images, labels)


def train(rank, world_size, args, rendezvous):
    setup(rank, world_size, rendezvous)
    dataset = make_dataset()
    sampler = DistributedSampler(dataset, num_replicas=world_size, rank=rank, shuffle=True)
    loader = DataLoader(dataset, batch_size=args.batch_size, sampler=sampler)
    model = DistributedDataParallel(resnet18(num_classes=10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    loss_fn = torch.nn.CrossEntropyLoss()
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        start = time.perf_counter()
        for images, labels in timed(loader, "wait"):
            with lap("compute"):
                optimizer.zero_grad(set_to_none=True)
                loss = loss_fn(model(images), labels)
                loss.backward()
                optimizer.step()
        if rank == 0:
            print(f"Epoch {epoch} | loss {loss.item():.4f} | {time.perf_counter() - start:.1f} s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="DDP on the CPU")
    parser.add_argument("data", help="not used: the images are made in memory")
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--world-size", type=int, default=2)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rendezvous = os.path.join(folder, "rendezvous")
        mp.spawn(train, args=(args.world_size, args, rendezvous), nprocs=args.world_size, join=True)
