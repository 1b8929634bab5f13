"""torchvision's ImageFolder and DataLoader, uint8 at the end instead of float32. v1: PIL transforms, as every
tutorial has them; v2: decode_image to a tensor, v2 transforms on it."""

# pyright: basic, reportMissingImports=false, reportMissingModuleSource=false, reportAttributeAccessIssue=false
# pyright: reportCallIssue=false
from typing import Any

import torch
from peer_protocol import Epoch, Spec, serve
from torch.utils.data import DataLoader
from torchvision import datasets, io, transforms
from torchvision.transforms import v2


def read(path: str) -> Any:
    return io.decode_image(io.read_file(path), io.ImageReadMode.RGB)


def make(spec: Spec) -> Epoch:
    px, workers = spec["px"], spec["workers"]
    if spec["peer"].startswith("torchvision_v2"):
        steps = v2.Compose([v2.RandomResizedCrop(px, antialias=True), v2.RandomHorizontalFlip()])
        dataset = datasets.ImageFolder(spec["folder"], steps, loader=read)
    else:
        flip = transforms.RandomHorizontalFlip()
        steps = transforms.Compose([transforms.RandomResizedCrop(px), flip, transforms.PILToTensor()])
        dataset = datasets.ImageFolder(spec["folder"], steps)
    loader = DataLoader(dataset, spec["batch_size"], shuffle=True, num_workers=workers, drop_last=True,
                        persistent_workers=workers > 0)  # fmt: skip
    return lambda: (images for images, _ in loader)


if __name__ == "__main__":
    torch.manual_seed(0)
    serve(make)
