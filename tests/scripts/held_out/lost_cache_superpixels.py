"""A small network on photographs and their superpixels (SLIC). Superpixels take a while, so the dataset keeps what it
has worked out; photographs are split at random, and the held-out ones are looked at after each epoch."""

import argparse
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from skimage.color import label2rgb
from skimage.segmentation import slic
from torch import nn
from torch.utils.data import DataLoader, Dataset, random_split

from stopwatch import lap, timed


class Superpixels(Dataset):
    """Six planes: the photograph, and the mean colours of its superpixels."""

    def __init__(self, root: Path, size=(128, 96), each=34):
        self.size, self.items, self.cache = size, [], {}
        for label, folder in enumerate(sorted(path for path in root.iterdir() if path.is_dir())):
            self.items += [(file, label) for file in sorted(folder.glob("*.JPEG"))[:each]]

    def __len__(self):
        return len(self.items)

    def prepare(self, file):
        image = Image.open(file)
        image.draft("RGB", self.size)
        pixels = np.asarray(image.convert("RGB").resize(self.size, Image.Resampling.BILINEAR))
        with lap("slic"):
            segments = slic(pixels, n_segments=90, compactness=12, start_label=1)
            colours = label2rgb(segments, pixels, kind="avg")
        planes = np.concatenate([pixels, colours.astype(np.uint8)], 2)
        return torch.from_numpy(np.ascontiguousarray(planes.transpose(2, 0, 1)))

    def __getitem__(self, index):
        file, label = self.items[index]
        if index not in self.cache:
            self.cache[index] = self.prepare(file)
        planes = self.cache[index]
        y, x = (int(torch.randint(0, extent - 79, ())) for extent in planes.shape[1:])
        return planes[:, y : y + 80, x : x + 80], label


def make_model(classes):
    layers, before = [], 6
    for after in (16, 32, 48):
        layers += [nn.Conv2d(before, after, 3, 2, 1), nn.BatchNorm2d(after), nn.ReLU()]
        before = after
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes))


@torch.no_grad()
def accuracy(model, loader):
    model.eval()
    right = sum(int((model(planes.float() / 255).argmax(1) == labels).sum()) for planes, labels in loader)
    model.train()
    return right / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/lost_cache_superpixels"))
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    torch.manual_seed(76)
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)

    photos = Superpixels(args.data / "photos")
    train, held_out = random_split(photos, [len(photos) - 12, 12], torch.Generator().manual_seed(76))
    loader = DataLoader(train, args.batch_size, shuffle=True, drop_last=True, num_workers=args.workers)
    check = DataLoader(held_out, 12)
    model = make_model(10)
    optimizer = torch.optim.SGD(model.parameters(), 0.02, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)
    best = 0.0
    for epoch in range(args.epochs):
        for planes, labels in timed(loader, "wait"):
            with lap("compute"):
                loss = nn.functional.cross_entropy(model(planes.float() / 255), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        schedule.step()
        with lap("own"):
            score = accuracy(model, check)
            if score > best:
                best = score
                torch.save(model.state_dict(), args.out / "best.pt")
        print(f"epoch {epoch}: loss {loss.item():.4f}, held out {score:.3f}", flush=True)


if __name__ == "__main__":
    main()
