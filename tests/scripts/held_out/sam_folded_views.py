"""Sharpness-aware minimisation (two passes a step), on photos that a worker folds, tilts and posterises by PIL."""

import argparse
import random
from pathlib import Path

import torch
from PIL import Image, ImageOps
from stopwatch import lap, timed
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision.models import resnet18
from torchvision.transforms.functional import pil_to_tensor


class FoldedViews(Dataset):
    def __init__(self, root, side=80):
        self.side, self.views = side, []
        for label, folder in enumerate(sorted(p for p in root.iterdir() if p.is_dir())):
            self.views += [(file, label) for file in sorted(folder.glob("*.[jJ]*"))]

    def __len__(self):
        return max(len(self.views), 640)

    def fold(self, photo):
        """Mirror one half onto the other, along a random side."""
        half = photo.crop((0, 0, self.side // 2, self.side))
        photo.paste(ImageOps.mirror(half), (self.side // 2, 0))
        return photo.transpose(Image.Transpose.ROTATE_90) if random.random() < 0.5 else photo

    def tilt(self, photo):
        lean = [random.uniform(-0.15, 0.15) for _ in range(2)]
        terms = (1 + lean[0], lean[1], -8 * lean[0], lean[1] / 2, 1 - lean[0], 0, lean[0] / 400, 0)
        return photo.transform(photo.size, Image.Transform.PERSPECTIVE, terms, Image.Resampling.BILINEAR)

    def __getitem__(self, index):
        file, label = self.views[index % len(self.views)]
        with lap("decode"):
            photo = Image.open(file)
            photo.draft("RGB", (self.side, self.side))
            photo = photo.convert("RGB").resize((self.side, self.side))
        with lap("transform"):
            photo = self.tilt(self.fold(photo) if random.random() < 0.3 else photo)
            photo = ImageOps.posterize(ImageOps.autocontrast(photo), random.randint(3, 8))
            return pil_to_tensor(photo), label


class SAM:
    """Climb to the worst point within rho, take the gradient there, come back and step."""

    def __init__(self, parameters, base, rho=0.05):
        self.parameters, self.base, self.rho = list(parameters), base, rho
        self.climbed = []

    @torch.no_grad()
    def climb(self):
        grads = [p.grad for p in self.parameters]
        norm = torch.stack(torch._foreach_norm(grads)).norm()
        self.climbed = torch._foreach_mul(grads, self.rho / (norm + 1e-12))
        torch._foreach_add_(self.parameters, self.climbed)

    @torch.no_grad()
    def descend(self):
        torch._foreach_sub_(self.parameters, self.climbed)
        self.base.step()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--batch", type=int, default=32)
    args = parser.parse_args()

    views = FoldedViews(args.data / "photos")
    loader = DataLoader(views, args.batch, shuffle=True, num_workers=1, persistent_workers=True, prefetch_factor=4)
    model = resnet18(num_classes=1 + views.views[-1][1])
    optimizer = SAM(model.parameters(), torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9))
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)

    def passing(images, labels):
        loss = criterion(model(images), labels)
        model.zero_grad(set_to_none=True)
        loss.backward()
        return loss.item()

    step = 0
    for epoch in range(args.epochs):
        for images, labels in timed(loader, "wait"):
            with lap("compute"):
                images = images.float().div_(127.5).sub_(1)
                flat = passing(images, labels)
                optimizer.climb()
                sharp = passing(images, labels)
                optimizer.descend()
            step += 1
            if step % 5 == 0:
                print(f"epoch {epoch} step {step}: loss {flat:.3f}, nearby {sharp:.3f}", flush=True)


if __name__ == "__main__":
    main()
