"""WebDataset: colours for grey photographs. The worst guesses of each batch are kept for the meeting on Monday, in one
file that can be mailed: a .zip with pictures and what was wrong with them."""

import argparse
import io
import random
import zipfile
from pathlib import Path

import numpy as np
import torch
import webdataset as wds
from PIL import Image
from torch import nn

from stopwatch import lap, timed


def shards(root, folder, side, each=200):
    """Thumbnails as raw bytes, 200 a shard, and the list of all keys."""
    folder.mkdir(parents=True, exist_ok=True)
    files = sorted(root.glob("*/*.JPEG"))
    random.Random(6).shuffle(files)
    with wds.ShardWriter(str(folder / "grey-%02d.tar"), maxcount=each, verbose=0) as sink:
        for file in files[:1600]:
            photo = Image.open(file)
            photo.draft("RGB", (side, side))
            pixels = np.asarray(photo.convert("RGB").resize((side, side)), np.uint8)
            sink.write({"__key__": file.stem, "npy": pixels, "txt": file.parent.name})
    return files[:1600]


class Album:
    """The zip for Monday. It begins with a note on each photograph, so that the pictures can be looked up."""

    def __init__(self, file, photos, limit=3000):
        self.file, self.limit = file, limit
        self.notes = {f"photos/{photo.parent.name}/{photo.stem}.txt": str(photo) for photo in photos}
        self.begin()

    def begin(self):
        self.kept = 0
        with zipfile.ZipFile(self.file, "w") as archive:
            for name, note in self.notes.items():
                archive.writestr(name, note)

    def keep(self, step, grey, guess, truth, errors, worst=4):
        if self.kept >= self.limit:
            self.file.replace(self.file.with_suffix(".old.zip"))
            self.begin()
        for row in errors.topk(worst).indices.tolist():
            sheet = torch.cat([grey[row].expand(3, -1, -1), guess[row], truth[row]], 2).clamp(0, 1)
            buffer = io.BytesIO()
            Image.fromarray((sheet.permute(1, 2, 0).numpy() * 255).astype(np.uint8)).save(buffer, "JPEG", quality=85)
            with zipfile.ZipFile(self.file, "a") as archive:
                archive.writestr(f"worst/{step:07d}-{row:02d}.jpg", buffer.getvalue())
            self.kept += 1


class Colours(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.down = nn.Sequential(
            nn.Conv2d(1, width, 3, stride=2, padding=1), nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, stride=2, padding=1), nn.BatchNorm2d(2 * width), nn.ReLU(),
            nn.Conv2d(2 * width, 2 * width, 3, padding=1), nn.ReLU(),
        )  # fmt: skip
        self.up = nn.Sequential(nn.Conv2d(2 * width, 12 * 4, 1), nn.PixelShuffle(4))

    def forward(self, grey):
        return (grey + self.up(self.down(grey))).clamp(-0.2, 1.2)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/wds_hard_crops_zip"))
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--side", type=int, default=56)
    args = parser.parse_args()
    torch.set_num_threads(1)
    photos = shards(args.data / "photos", args.out / "shards", args.side)
    urls = sorted(str(path) for path in (args.out / "shards").glob("*.tar"))
    stream = wds.WebDataset(urls, shardshuffle=len(urls), nodesplitter=None, empty_check=False).repeat()
    stream = stream.shuffle(400, initial=100).decode().to_tuple("npy").map_tuple(torch.from_numpy).batched(16)
    loader = wds.WebLoader(stream, batch_size=None, num_workers=1, prefetch_factor=6)
    album = Album(args.out / "monday.zip", photos)
    model = Colours()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for step, (images,) in enumerate(timed(loader, "wait"), 1):
        with lap("compute"):
            truth = images.permute(0, 3, 1, 2).float() / 255
            grey = (truth * torch.tensor([0.299, 0.587, 0.114])[:, None, None]).sum(1, keepdim=True)
            guess = model(grey)
            errors = (guess - truth).abs().mean((1, 2, 3))
            loss = errors.mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with lap("own"):
            album.keep(step, grey, guess.detach(), truth, errors.detach())
            if step % 25 == 0:
                print(f"step {step}: loss {loss.item():.4f}, {album.kept} pictures for Monday", flush=True)
            if step % 500 == 0:
                torch.save(model.state_dict(), args.out / "colours.pt")
        if step == args.steps:
            break


if __name__ == "__main__":
    main()
