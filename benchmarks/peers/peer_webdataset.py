"""Stock webdataset over the same tars, as in its README: shuffle, PIL decode, transform, batches from the worker.

Writing: ShardWriter. One process: its documentation's loop. More: fed by a pool that reads and resizes.
"""

# pyright: basic, reportMissingImports=false, reportMissingModuleSource=false, reportAttributeAccessIssue=false
# pyright: reportCallIssue=false
from contextlib import nullcontext
from multiprocessing import Pool
from pathlib import Path
from typing import Any

import webdataset as wds
from peer_protocol import Epoch, Spec, bytes_under, resized_jpeg, serve, warm
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
    with Pool(processes) if processes > 1 else nullcontext() as pool:
        warm(0)
        if pool is not None:
            pool.map(warm, range(processes * 4), 1)
        yield "ready"
        pictures = map(resized_jpeg, files) if pool is None else pool.imap(resized_jpeg, files, 16)
        with wds.ShardWriter(f"{out}/train-%06d.tar", maxsize=1 << 26, verbose=0) as writer:
            for number, (image, label) in enumerate(pictures):
                writer.write({"__key__": f"{number:08d}", "jpg": image, "cls": label})
        yield bytes_under(out)


if __name__ == "__main__":
    serve(make, write=write)
