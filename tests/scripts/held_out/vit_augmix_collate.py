"""A small vision transformer; AugMix, crop and mixup are all done by the collate function, for the whole batch."""

import argparse
from pathlib import Path

import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from stopwatch import lap, timed


class Photos(Dataset):
    def __init__(self, root: Path):
        self.files = sorted(root.glob("*/*.*"))
        self.classes = sorted({path.parent.name for path in self.files})

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        path = self.files[index]
        with lap("decode"):
            return Image.open(path).convert("RGB"), self.classes.index(path.parent.name)


class AugmentingCollate:
    def __init__(self, side, classes, alpha=0.4):
        self.classes = classes
        self.augmix = transforms.AugMix(severity=4)
        self.finish = transforms.Compose(
            [
                transforms.RandomResizedCrop(side, scale=(0.3, 1.0)),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
                transforms.Normalize([0.5] * 3, [0.5] * 3),
            ]
        )
        self.beta = torch.distributions.Beta(alpha, alpha)

    def mixup(self, images, targets):
        share = self.beta.sample().item()
        order = torch.randperm(len(images))
        return images.lerp(images[order], 1 - share), targets.lerp(targets[order], 1 - share)

    def __call__(self, samples):
        with lap("collate"):
            images = torch.stack([self.finish(self.augmix(image)) for image, _ in samples])
            labels = torch.tensor([label for _, label in samples])
            return self.mixup(images, nn.functional.one_hot(labels, self.classes).float())


class SmallViT(nn.Module):
    def __init__(self, classes, side=96, patch=16, dim=96, depth=3, heads=4):
        super().__init__()
        self.patches = nn.Conv2d(3, dim, patch, patch)
        self.cls = nn.Parameter(torch.zeros(1, 1, dim))
        self.positions = nn.Parameter(0.02 * torch.randn(1, (side // patch) ** 2 + 1, dim))
        layer = nn.TransformerEncoderLayer(
            dim, heads, 2 * dim, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, classes))

    def forward(self, images):
        tokens = self.patches(images).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.cls.expand(len(tokens), -1, -1), tokens], 1) + self.positions
        return self.head(self.encoder(tokens)[:, 0])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/vit_augmix_collate"))
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch", type=int, default=12)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    torch.manual_seed(21)
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)

    photos = Photos(args.data / "photos")
    loader = DataLoader(
        photos,
        args.batch,
        shuffle=True,
        num_workers=args.workers,
        collate_fn=AugmentingCollate(96, len(photos.classes)),
        drop_last=True,
        persistent_workers=args.workers > 0,
    )
    model = SmallViT(len(photos.classes))
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, weight_decay=0.05)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    for epoch in range(args.epochs):
        losses = []
        for images, targets in timed(loader, "wait"):
            with lap("compute"):
                loss = criterion(model(images), targets)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
            with lap("own"):
                losses.append(loss.item())
            if len(losses) % 40 == 0:
                print(f"epoch {epoch} step {len(losses)}: {sum(losses[-40:]) / 40:.4f}", flush=True)
        torch.save(model.state_dict(), args.out / "vit.pt")


if __name__ == "__main__":
    main()
