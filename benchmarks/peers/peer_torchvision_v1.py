"""torchvision's ImageFolder and DataLoader as every tutorial has them, uint8 at the end instead of float32."""

# pyright: basic, reportMissingImports=false, reportMissingModuleSource=false, reportAttributeAccessIssue=false
# pyright: reportCallIssue=false
from typing import Any

import torch
from peer_protocol import Spec, serve
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

loaders: list[Any] = []


def batches(spec: Spec) -> Any:
    if not loaders:
        steps = [
            transforms.RandomResizedCrop(spec["px"]),
            transforms.RandomHorizontalFlip(),
            transforms.PILToTensor(),
        ]
        dataset = datasets.ImageFolder(spec["folder"], transforms.Compose(steps))
        loaders.append(
            DataLoader(dataset, spec["batch_size"], shuffle=True, num_workers=spec["workers"], drop_last=True,
                       persistent_workers=spec["workers"] > 0)
        )  # fmt: skip
    return (images for images, _ in loaders[0])


if __name__ == "__main__":
    torch.manual_seed(0)
    serve(batches)
