"""WebDataset: back from a few colours to many. Old games' pictures have a palette of 24 colours; the network learns to
undo that on photographs, which get a palette of their own each time they are seen."""

import argparse
import io
import random
from pathlib import Path

import numpy as np
import torch
import webdataset as wds
from PIL import Image
from torch import nn

from stopwatch import lap, timed


def write_shards(root, folder, side, count):
    """Photographs as they are, but smaller."""
    folder.mkdir(parents=True, exist_ok=True)
    files = sorted(root.glob("*/*.JPEG"))
    random.Random(2).shuffle(files)
    with wds.ShardWriter(str(folder / "small-%02d.tar"), maxcount=150, verbose=0) as sink:
        for file in files[:count]:
            photo = Image.open(file)
            photo.draft("RGB", (side, side))
            photo = photo.convert("RGB")
            photo.thumbnail((2 * side, 2 * side))
            buffer = io.BytesIO()
            photo.save(buffer, "JPEG", quality=92)
            sink.write({"__key__": file.stem, "jpg": buffer.getvalue()})


class Retro:
    def __init__(self, side, colours):
        self.side, self.colours = side, colours

    def crop(self, photo):
        scale = random.uniform(1.0, 1.2) * self.side / min(photo.size)
        photo = photo.resize([max(self.side, round(scale * length)) for length in photo.size])
        x, y = (random.randint(0, length - self.side) for length in photo.size)
        photo = photo.crop((x, y, x + self.side, y + self.side))
        return photo.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if random.random() < 0.5 else photo

    def reduced(self, photo):
        return photo.quantize(random.randint(self.colours // 2, self.colours)).convert("RGB")

    def __call__(self, photo):
        photo = self.crop(photo)
        pair = np.stack([np.asarray(self.reduced(photo)), np.asarray(photo)])
        return torch.from_numpy(pair.transpose(0, 3, 1, 2).copy())


class Restorer(nn.Module):
    def __init__(self, width=10, depth=2):
        super().__init__()
        self.first = nn.Conv2d(48, width * 2, 3, padding=1)
        self.blocks = nn.ModuleList(nn.Conv2d(width * 2, width * 2, 3, padding=1) for _ in range(depth))
        self.last = nn.Conv2d(width * 2, 48, 3, padding=1)
        nn.init.zeros_(self.last.weight)

    def forward(self, few):
        x = torch.relu(self.first(nn.functional.pixel_unshuffle(few, 4)))
        for block in self.blocks:
            x = x + torch.relu(block(x))
        return few + nn.functional.pixel_shuffle(self.last(x), 4)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/wds_pixel_palette"))
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--side", type=int, default=88)
    args = parser.parse_args()
    torch.set_num_threads(1)
    write_shards(args.data / "photos", args.out / "shards", args.side, 1200)
    urls = sorted(str(path) for path in (args.out / "shards").glob("*.tar"))
    stream = wds.WebDataset(urls, shardshuffle=len(urls), nodesplitter=None, empty_check=False).repeat()
    stream = stream.shuffle(200, initial=50).decode("pil").to_tuple("jpg").map_tuple(Retro(args.side, 24))
    loader = wds.WebLoader(stream.batched(12), batch_size=None, num_workers=1, prefetch_factor=4)
    model = Restorer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    running = None
    for step, (pairs,) in enumerate(timed(loader, "wait"), 1):
        with lap("compute"):
            few, many = (pairs.float() / 255).unbind(1)
            loss = (model(few) - many).abs().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with lap("own"):
            running = loss.item() if running is None else 0.98 * running + 0.02 * loss.item()
            if step % 20 == 0:
                print(f"step {step}: {255 * running:.2f} levels off", flush=True)
            if step % 500 == 0:
                torch.save(model.state_dict(), args.out / "restorer.pt")
        if step == args.steps:
            break


if __name__ == "__main__":
    main()
