"""Stock webdataset over the same tars, as in its README: shuffle, PIL decode, transform, batches from the worker."""

# pyright: basic, reportMissingImports=false, reportMissingModuleSource=false, reportAttributeAccessIssue=false
# pyright: reportCallIssue=false
from typing import Any

import webdataset as wds
from peer_protocol import Spec, serve
from torchvision import transforms

loaders: list[Any] = []


def batches(spec: Spec) -> Any:
    if not loaders:
        steps = [
            transforms.RandomResizedCrop(spec["px"]),
            transforms.RandomHorizontalFlip(),
            transforms.PILToTensor(),
        ]
        dataset = (
            wds.WebDataset(spec["shards"], shardshuffle=len(spec["shards"]), workersplitter=wds.split_by_worker)
            .shuffle(1000)
            .decode("pil")
            .to_tuple("jpg", "cls")
            .map_tuple(transforms.Compose(steps), lambda label: label)
            .batched(spec["batch_size"], partial=False)
        )
        loaders.append(
            wds.WebLoader(dataset, batch_size=None, shuffle=False, num_workers=spec["workers"],
                          persistent_workers=spec["workers"] > 0)
        )  # fmt: skip
    return (images for images, _ in loaders[0])


if __name__ == "__main__":
    serve(batches)
