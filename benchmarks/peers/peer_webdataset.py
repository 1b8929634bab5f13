"""Stock webdataset over the same tars, as in its README: shuffle, PIL decode, transform, batches from the worker."""

# pyright: basic, reportMissingImports=false, reportMissingModuleSource=false, reportAttributeAccessIssue=false
# pyright: reportCallIssue=false
import webdataset as wds
from peer_protocol import Epoch, Spec, serve
from torchvision import transforms


def make(spec: Spec) -> Epoch:
    steps = [transforms.RandomResizedCrop(spec["px"]), transforms.RandomHorizontalFlip(), transforms.PILToTensor()]
    shards, workers = spec["shards"], spec["workers"]
    dataset = (
        wds.WebDataset(shards, shardshuffle=len(shards), workersplitter=wds.split_by_worker)
        .shuffle(1000)
        .decode("pil")
        .to_tuple("jpg", "cls")
        .map_tuple(transforms.Compose(steps), lambda label: label)
        .batched(spec["batch_size"], partial=False)
    )
    loader = wds.WebLoader(dataset, batch_size=None, shuffle=False, num_workers=workers,
                           persistent_workers=workers > 0)  # fmt: skip
    return lambda: (images for images, _ in loader)


if __name__ == "__main__":
    serve(make)
