"""WebDataset: photographs whose labels come from a search engine, a third of them wrong. As in DivideMix a mixture of two
Gaussians over the losses tells clean labels from wrong ones; what is likely wrong counts for less."""

import argparse
import io
import random
from pathlib import Path

import numpy as np
import torch
import webdataset as wds
from PIL import Image
from sklearn.mixture import GaussianMixture
from torch import nn

from stopwatch import lap, timed


def write_shards(photos, folder, side, each, wrong=0.35):
    folder.mkdir(parents=True, exist_ok=True)
    chance = random.Random(17)
    items = [
        (file, k) for k, kind in enumerate(sorted(photos.iterdir())) for file in sorted(kind.glob("*.JPEG"))[:each]
    ]
    chance.shuffle(items)
    with wds.ShardWriter(str(folder / "search-%03d.tar"), maxcount=300, verbose=0) as sink:
        for number, (file, label) in enumerate(items):
            image = Image.open(file)
            image.draft("RGB", (side, side))
            buffer = io.BytesIO()
            np.save(buffer, np.array(image.convert("RGB").resize((side, side))))
            if chance.random() < wrong:
                label = chance.randrange(10)
            sink.write({"__key__": f"{number:06d}", "npy": buffer.getvalue(), "cls": str(label), "id": str(number)})
    return len(items)


def sample(parts):
    image, label, number = parts
    if random.random() < 0.5:
        image = image[:, ::-1]
    return torch.from_numpy(image.transpose(2, 0, 1).copy()), label, int(number)


class CleanLabels:
    """The last loss of each sample, and how likely its label is right."""

    def __init__(self, count, every):
        self.losses = np.full(count, np.nan)
        self.clean = np.ones(count, np.float32)
        self.every, self.steps = every, 0

    def divide(self):
        seen = np.flatnonzero(~np.isnan(self.losses))
        losses = self.losses[seen]
        losses = (losses - losses.min()) / max(np.ptp(losses), 1e-6)
        mixture = GaussianMixture(2, max_iter=60, tol=1e-4, reg_covar=5e-4, n_init=14, random_state=self.steps)
        mixture.fit(losses[:, None])
        self.clean[seen] = mixture.predict_proba(losses[:, None])[:, mixture.means_.argmin()]

    def update(self, numbers, losses):
        self.losses[numbers] = losses
        self.steps += 1
        if self.steps > 30 and self.steps % self.every == 0:
            self.divide()


def network(width=20):
    return nn.Sequential(
        nn.Conv2d(3, width, 3, stride=2, padding=1), nn.BatchNorm2d(width), nn.LeakyReLU(0.1),
        nn.Conv2d(width, 2 * width, 3, stride=2, padding=1), nn.BatchNorm2d(2 * width), nn.LeakyReLU(0.1),
        nn.Conv2d(2 * width, 2 * width, 3, stride=2, padding=1), nn.LeakyReLU(0.1),
        nn.Flatten(), nn.Linear(2 * width * 25, 10),
    )  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/wds_noisy_labels"))
    parser.add_argument("--steps", type=int, default=30_000)
    parser.add_argument("--every", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(1)
    count = write_shards(args.data / "photos", args.out / "shards", side=40, each=180)
    shards = sorted(str(path) for path in (args.out / "shards").glob("*.tar"))
    stream = (
        wds.WebDataset(shards, shardshuffle=len(shards), nodesplitter=None, empty_check=False)
        .repeat()
        .shuffle(300)
        .decode()
        .to_tuple("npy", "cls", "id")
        .map(sample)
        .batched(12, partial=False)
    )
    loader = wds.WebLoader(stream, batch_size=None, num_workers=1, prefetch_factor=8)
    model, labels = network(), CleanLabels(count, args.every)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=5e-4)
    for step, (images, classes, numbers) in enumerate(timed(loader, "wait")):
        with lap("compute"):
            scores = model(images.float() / 127.5 - 1)
            losses = nn.functional.cross_entropy(scores, torch.as_tensor(classes), reduction="none")
            weights = torch.from_numpy(labels.clean[np.asarray(numbers)])
            optimizer.zero_grad()
            (weights * losses).mean().backward()
            optimizer.step()
        with lap("own"):
            labels.update(np.asarray(numbers), losses.detach().numpy())
            if step % 50 == 0:
                clean = labels.clean.mean()
                print(f"step {step}: loss {losses.mean().item():.4f}, {clean:.1%} clean", flush=True)
            if step % 500 == 499:
                torch.save(model.state_dict(), args.out / "net.pt")
        if step == args.steps:
            break


if __name__ == "__main__":
    main()
