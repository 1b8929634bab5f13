"""WebDataset pretraining on scraped photographs: whatever looks like a photograph of the held-out set is left out, by
perceptual hashes (64 bits, Hamming distance), also when it is mirrored."""

import argparse
import io
from pathlib import Path

import numpy as np
import torch
import webdataset as wds
from PIL import Image
from scipy.fft import dctn
from torch import nn

from stopwatch import lap, timed


def phash(image):
    grey = np.asarray(image.convert("L").resize((32, 32)), dtype=np.float32)
    low = dctn(grey, norm="ortho")[:8, :8]
    bits = (low > np.median(low)).flatten()
    return int("".join("1" if bit else "0" for bit in bits), 2)


def write_shards(photos, folder, shards=3, each=150):
    """Thumbnails as JPEG; what is not in a shard is the held-out set."""
    files = sorted(photos.glob("*/*.JPEG"))
    names = sorted({file.parent.name for file in files})
    order = np.random.default_rng(3).permutation(len(files))
    for shard in range(shards):
        with wds.TarWriter(str(folder / f"scraped-{shard}.tar")) as sink:
            for index in order[shard * each : (shard + 1) * each]:
                with Image.open(files[index]) as photo:
                    photo.draft("RGB", (125, 94))
                    photo, buffer = photo.convert("RGB").resize((96, 96)), io.BytesIO()
                photo.save(buffer, "JPEG", quality=90)
                label = names.index(files[index].parent.name)
                sink.write({"__key__": f"{index:06d}", "jpg": buffer.getvalue(), "cls": label})
    return [str(folder / f"scraped-{shard}.tar") for shard in range(shards)], names


def holdout_list(count):
    """As the benchmark publishes it: a number for each of its pictures."""
    return np.random.default_rng(17).integers(0, 2**63, size=count, dtype=np.uint64).tolist()


class FarFromHoldout:
    def __init__(self, holdout, least=5):
        self.holdout, self.least = holdout, least

    def near(self, code):
        return any((code ^ other).bit_count() < self.least for other in self.holdout)

    def __call__(self, samples):
        for sample in samples:
            with lap("filter"):
                image = sample["jpg"]
                mirrored = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
                bad = self.near(phash(image)) or self.near(phash(mirrored))
            if not bad:
                yield sample


def to_pair(sample, side=64):
    top, left = np.random.randint(0, 96 - side, size=2)
    pixels = np.asarray(sample["jpg"])[top : top + side, left : left + side]
    return torch.from_numpy(pixels.copy()).permute(2, 0, 1), int(sample["cls"])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/wds_holdout_hashes"))
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--holdout", type=int, default=40_000)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    urls, names = write_shards(args.data / "photos", args.out)

    pipeline = (
        wds.WebDataset(urls, resampled=True, shardshuffle=False)
        .shuffle(100)
        .decode("pil")
        .compose(FarFromHoldout(holdout_list(args.holdout)))
        .map(to_pair)
        .batched(16)
    )
    loader = wds.WebLoader(pipeline, batch_size=None, num_workers=2).with_epoch(args.steps)
    model = nn.Sequential(
        nn.Conv2d(3, 32, 5, stride=2, padding=2), nn.ReLU(), nn.GroupNorm(4, 32),
        nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.ReLU(), nn.GroupNorm(8, 64),
        nn.AdaptiveMaxPool2d(2), nn.Flatten(), nn.Linear(256, len(names)),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    for step, (images, labels) in enumerate(timed(loader, "wait")):
        with lap("compute"):
            loss = nn.functional.cross_entropy(model(images / 127.5 - 1), torch.as_tensor(labels))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if step % 25 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)
        if step % 500 == 499:
            torch.save(model.state_dict(), args.out / "pretrained.pt")


if __name__ == "__main__":
    main()
