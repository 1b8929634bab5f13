"""WebDataset: shards streamed from a bucket over a line of so many megabytes a second for each connection.

Here the bucket is a folder and the line is imitated, so the script also runs without the network.
"""

import argparse
import io
import time
from pathlib import Path
from urllib.parse import urlparse

import cv2
import numpy as np
import torch
import webdataset as wds
from torch import nn

from stopwatch import lap, timed


class Connection(io.RawIOBase):
    """Bytes of one object, as fast as the line gives them."""

    def __init__(self, path: str, rate: float, first_byte: float):
        self.file = open(path, "rb", buffering=0)  # noqa: SIM115
        self.rate = rate
        self.due = time.monotonic() + first_byte

    def readable(self):
        return True

    def readinto(self, buffer):
        with lap("read"):
            count = self.file.readinto(buffer)
            self.due = max(self.due, time.monotonic()) + count / self.rate
            time.sleep(max(0.0, self.due - time.monotonic()))
        return count

    def close(self):
        if not self.closed:
            self.file.close()
        super().close()


def register(rate: float, first_byte=0.05):
    def open_bucket(url, mode="rb", bufsize=8192, **options):
        return io.BufferedReader(Connection(urlparse(url).path, rate, first_byte), 1 << 15)

    wds.gopen_schemes["bucket"] = open_bucket


def upload(root: Path, bucket: Path, shards=8, each=110):
    """Once: photographs of all classes into tar files, as they are."""
    bucket.mkdir(parents=True, exist_ok=True)
    if len(list(bucket.glob("*.tar"))) == shards:
        return
    folders = sorted(path for path in root.iterdir() if path.is_dir())
    items = [(path, label) for label, folder in enumerate(folders) for path in sorted(folder.iterdir())]
    order = np.random.default_rng(23).permutation(len(items))
    for shard in range(shards):
        with wds.TarWriter(str(bucket / f"photos-{shard:04d}.tar")) as tar:
            for number in order[shard * each : (shard + 1) * each]:
                path, label = items[number]
                tar.write({"__key__": f"{number:06d}", "jpg": path.read_bytes(), "cls": label})


def to_array(blob):
    image = cv2.imdecode(np.frombuffer(blob, np.uint8), cv2.IMREAD_REDUCED_COLOR_4)
    image = cv2.resize(image, (64, 64), interpolation=cv2.INTER_AREA)
    return np.ascontiguousarray(image[..., ::-1].transpose(2, 0, 1))


def build_loader(bucket: Path, batch_size, workers, batches):
    urls = [f"bucket:{path.resolve()}" for path in sorted(bucket.glob("*.tar"))]
    dataset = (
        wds.WebDataset(urls, resampled=True, shardshuffle=False, nodesplitter=wds.split_by_node)
        .shuffle(48, initial=16)
        .map_dict(jpg=to_array, cls=int)
        .to_tuple("jpg", "cls")
        .batched(batch_size, partial=False)
    )
    loader = wds.WebLoader(dataset, batch_size=None, num_workers=workers, persistent_workers=True)
    return loader.with_epoch(batches)


def conv(inputs, outputs):
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, 2, 1), nn.BatchNorm2d(outputs), nn.Hardswish())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/wds_bucket_stream"))
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--rate", type=float, default=5.0, help="megabytes a second of a connection")
    args = parser.parse_args()
    torch.manual_seed(23)
    torch.set_num_threads(1)
    cv2.setNumThreads(1)

    upload(args.data / "photos", args.out / "bucket")
    register(args.rate * 1e6)
    loader = build_loader(args.out / "bucket", args.batch_size, args.workers, batches=60)
    model = nn.Sequential(
        conv(3, 24), conv(24, 40), conv(40, 64), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)
    )
    optimizer = torch.optim.RMSprop(model.parameters(), lr=5e-4, momentum=0.9)
    for epoch in range(args.epochs):
        smooth = None
        for images, labels in timed(loader, "wait"):
            with lap("compute"):
                images = torch.as_tensor(images).float().div_(255)
                loss = nn.functional.cross_entropy(model(images), torch.as_tensor(labels))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            smooth = loss.item() if smooth is None else 0.95 * smooth + 0.05 * loss.item()
        print(f"epoch {epoch}: loss {smooth:.4f}", flush=True)
        torch.save(model.state_dict(), args.out / "net.pt")


if __name__ == "__main__":
    main()
