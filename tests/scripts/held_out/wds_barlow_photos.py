"""WebDataset: Barlow Twins on photographs out of tar shards. Two views of each are cut, blurred, solarised and
jittered in the workers; the loss makes the features of both agree, and different features independent."""

import argparse
import io
import random
from pathlib import Path

import torch
import webdataset as wds
from PIL import Image, ImageFilter, ImageOps
from torch import nn
from torchvision import transforms as T
from torchvision.models import resnet18

from stopwatch import lap, timed


def pack(photos, folder, count):
    folder.mkdir(parents=True, exist_ok=True)
    files = random.Random(4).sample(sorted(photos.glob("*/*.JPEG")), count)
    with wds.ShardWriter(str(folder / "photos-%03d.tar"), maxcount=200, verbose=0) as sink:
        for number, file in enumerate(files):
            sink.write({"__key__": f"{number:06d}", "jpg": file.read_bytes(), "json": {"name": file.stem}})


class Blur:
    def __call__(self, image):
        return image.filter(ImageFilter.GaussianBlur(random.uniform(0.1, 1.5))) if random.random() < 0.5 else image


class Solarise:
    def __call__(self, image):
        return ImageOps.solarize(image) if random.random() < 0.2 else image


class Views:
    def __init__(self, side):
        jitter = T.ColorJitter(0.4, 0.4, 0.2, 0.1)
        self.view = T.Compose([
            T.RandomResizedCrop(side, scale=(0.25, 1.0)), T.RandomHorizontalFlip(), T.RandomApply([jitter], 0.8),
            T.RandomGrayscale(0.2), Blur(), Solarise(), T.PILToTensor(),
        ])  # fmt: skip

    def __call__(self, sample):
        image = Image.open(io.BytesIO(sample["jpg"]))
        image.draft("RGB", (200, 200))
        image = image.convert("RGB")
        return self.view(image), self.view(image)


class Twins(nn.Module):
    def __init__(self, features=512):
        super().__init__()
        self.trunk = resnet18()
        self.trunk.conv1 = nn.Conv2d(3, 64, 3, stride=2, padding=1, bias=False)
        self.trunk.fc = nn.Identity()
        self.project = nn.Sequential(
            nn.Linear(512, features, bias=False), nn.BatchNorm1d(features), nn.ReLU(),
            nn.Linear(features, features, bias=False), nn.BatchNorm1d(features, affine=False),
        )  # fmt: skip

    def forward(self, views):
        return self.project(self.trunk(views.float() / 127.5 - 1))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/wds_barlow_photos"))
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--batch", type=int, default=6)
    args = parser.parse_args()
    torch.set_num_threads(1)
    pack(args.data / "photos", args.out / "shards", count=1000)
    shards = sorted(str(path) for path in (args.out / "shards").glob("*.tar"))
    stream = wds.WebDataset(shards, shardshuffle=len(shards), nodesplitter=None, empty_check=False)
    stream = stream.repeat().shuffle(200).map(Views(64)).batched(args.batch, partial=False)
    loader = wds.WebLoader(stream, batch_size=None, num_workers=1, prefetch_factor=4)
    model = Twins()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-5)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, total_iters=300)
    log = open(args.out / "twins.txt", "a")
    for step, (left, right) in enumerate(timed(loader, "wait")):
        with lap("compute"):
            one, two = model(torch.cat([left, right])).chunk(2)
            cross = one.T @ two / len(one)
            same = (cross.diagonal() - 1).pow(2).sum()
            apart = (cross - torch.diag(cross.diagonal())).pow(2).sum()
            loss = (same + 5e-3 * apart) / len(cross)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            schedule.step()
        with lap("own"):
            strongest = cross.detach().abs().flatten().topk(20).values.tolist()
            log.write(f"{step} {loss.item():.4f} {same.item():.3f} " + " ".join(f"{c:.3f}" for c in strongest) + "\n")
            log.flush()
            if step % 20 == 0:
                print(f"step {step}: {loss.item():.4f}", flush=True)
            if step % 200 == 199:
                torch.save(model.trunk.state_dict(), args.out / "trunk.pt")
        if step == args.steps:
            break


if __name__ == "__main__":
    main()
