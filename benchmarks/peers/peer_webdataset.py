"""Stock webdataset over the same tars, as in its README: shuffle, PIL decode, transform, batches from the worker.

Writing: ShardWriter. One process: its documentation's loop. More: fed by a pool that reads and resizes.
"""

# pyright: basic, reportMissingImports=false, reportMissingModuleSource=false, reportAttributeAccessIssue=false
# pyright: reportCallIssue=false
from pathlib import Path
from typing import Any

import webdataset as wds
from peer_protocol import Epoch, Spec, resizing, serve
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


def write(files: list[Any], out: str, processes: int) -> Any:
    Path(out).mkdir()
    with resizing(processes) as resize:
        yield "ready"
        with wds.ShardWriter(f"{out}/train-%06d.tar", maxsize=1 << 26, verbose=0) as writer:
            for number, (image, label) in enumerate(resize(files)):
                writer.write({"__key__": f"{number:08d}", "jpg": image, "cls": label})
        yield "end"


if __name__ == "__main__":
    serve(make, write=write)
