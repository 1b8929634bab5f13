"""Photographs from TFRecord files, read without TensorFlow: lengths, checksums and records."""

import argparse
import io
import itertools
import random
import struct
from pathlib import Path

import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from torchvision.transforms import v2

from stopwatch import lap, timed


def make_table(polynomial=0x82F63B78):
    table = []
    for code in range(256):
        for _ in range(8):
            code = (code >> 1) ^ (polynomial if code & 1 else 0)
        table.append(code)
    return table


TABLE = make_table()


def masked_crc32c(data):
    """The Castagnoli checksum, turned and shifted as in TensorFlow's record_writer.cc."""
    code = 0xFFFFFFFF
    for byte in data:
        code = TABLE[(code ^ byte) & 0xFF] ^ (code >> 8)
    code ^= 0xFFFFFFFF
    return (((code >> 15) | (code << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def convert(photos: Path, folder: Path, count=240, shards=6):
    folder.mkdir(parents=True, exist_ok=True)
    files = sorted(photos.glob("*/*.JPEG"))
    names = sorted({file.parent.name for file in files})
    files = files[:: len(files) // count][:count]
    for shard in range(shards):
        path = folder / f"train-{shard:05d}-of-{shards:05d}.tfrecord"
        if path.exists():
            continue
        with path.with_suffix(".part").open("wb") as out:
            for file in files[shard::shards]:
                record = bytes([names.index(file.parent.name)]) + file.read_bytes()
                head = struct.pack("<Q", len(record))
                out.write(head + struct.pack("<I", masked_crc32c(head)) + record)
                out.write(struct.pack("<I", masked_crc32c(record)))
        path.with_suffix(".part").replace(path)


class TFRecords(IterableDataset):
    def __init__(self, folder: Path, transform, buffer=64):
        self.shards, self.transform, self.buffer = sorted(folder.glob("*.tfrecord")), transform, buffer

    def next_record(self, file):
        head = file.read(12)
        if not head:
            return None
        length, check = struct.unpack("<QI", head)
        if masked_crc32c(head[:8]) != check:
            raise ValueError(f"corrupt length in {file.name}")
        with lap("read"):
            record = file.read(length)
            if masked_crc32c(record) != struct.unpack("<I", file.read(4))[0]:
                raise ValueError(f"corrupt record in {file.name}")
        return record

    def records(self):
        worker = get_worker_info()
        mine = self.shards[worker.id :: worker.num_workers] if worker else self.shards
        for shard in itertools.cycle(mine):
            with shard.open("rb") as file:
                yield from iter(lambda: self.next_record(file), None)

    def example(self, record):
        with lap("decode"):
            photo = Image.open(io.BytesIO(record[1:]))
            photo.draft("RGB", (128, 128))
            photo.load()
        with lap("transform"):
            return self.transform(photo.convert("RGB")), record[0]

    def __iter__(self):
        held = []
        for record in self.records():
            if len(held) < self.buffer:
                held.append(record)
                continue
            place = random.randrange(self.buffer)
            held[place], record = record, held[place]
            yield self.example(record)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/tfrecord_photos"))
    parser.add_argument("--steps", type=int, default=3000)
    args = parser.parse_args()
    torch.manual_seed(1)
    torch.set_num_threads(1)
    convert(args.data / "photos", args.out / "records")
    transform = v2.Compose([v2.PILToTensor(), v2.RandomResizedCrop(64, (0.4, 1.0)), v2.RandomHorizontalFlip()])
    loader = DataLoader(TFRecords(args.out / "records", transform), batch_size=24, num_workers=2)
    model = nn.Sequential(
        nn.Conv2d(3, 24, 5, 2, 2), nn.ReLU(), nn.Conv2d(24, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1),
        nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(256, 10),
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for step, (images, labels) in enumerate(timed(loader, "wait")):
        with lap("compute"):
            loss = nn.functional.cross_entropy(model(images.float() / 255 - 0.5), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if step % 50 == 49:
            print(f"{step + 1}: {loss.item():.4f}", flush=True)
            torch.save(model.state_dict(), args.out / "model.pt")
        if step == args.steps:
            break


if __name__ == "__main__":
    main()
