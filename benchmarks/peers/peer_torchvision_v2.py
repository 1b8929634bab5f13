"""torchvision v2: decode_image to a uint8 tensor, v2 transforms on it, DataLoader."""

# pyright: basic, reportMissingImports=false, reportMissingModuleSource=false, reportAttributeAccessIssue=false
# pyright: reportCallIssue=false
from typing import Any

import torch
from peer_protocol import Spec, serve
from torch.utils.data import DataLoader
from torchvision import datasets, io
from torchvision.transforms import v2

loaders: list[Any] = []


def read(path: str) -> Any:
    return io.decode_image(io.read_file(path), io.ImageReadMode.RGB)


def batches(spec: Spec) -> Any:
    if not loaders:
        steps = [v2.RandomResizedCrop(spec["px"], antialias=True), v2.RandomHorizontalFlip()]
        dataset = datasets.ImageFolder(spec["folder"], v2.Compose(steps), loader=read)
        loaders.append(
            DataLoader(dataset, spec["batch_size"], shuffle=True, num_workers=spec["workers"], drop_last=True,
                       persistent_workers=spec["workers"] > 0)
        )  # fmt: skip
    return (images for images, _ in loaders[0])


if __name__ == "__main__":
    torch.manual_seed(0)
    serve(batches)
