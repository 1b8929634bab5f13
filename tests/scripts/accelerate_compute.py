"""Accelerate with a ResNet-18 on small photographs that are held in memory: the model is the work."""

import argparse
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision.models import resnet18

from stopwatch import lap, timed


class PhotosInMemory(Dataset):
    def __init__(self, root: Path, side: int):
        self.classes = sorted(folder.name for folder in root.iterdir() if folder.is_dir())
        images, labels = [], []
        for path in sorted(root.glob("*/*.[jJ]*")):
            image = Image.open(path)
            image.draft("RGB", (side, side))
            images.append(np.asarray(image.convert("RGB").resize((side, side))))
            labels.append(self.classes.index(path.parent.name))
        self.images = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).contiguous()
        self.labels = torch.tensor(labels)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        with lap("transform"):
            image = self.images[index]
            if torch.rand(()) < 0.5:
                image = image.flip(-1)
            return image.float().div_(255), self.labels[index]


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--num_epochs", type=int, default=7)
    parser.add_argument("--image_size", type=int, default=64)
    parser.add_argument("--gradient_accumulation_steps", type=int, default=2)
    parser.add_argument("--out", default="runs/accelerate_compute")
    return parser.parse_args()


def main():
    args = parse_args()
    set_seed(1)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=args.gradient_accumulation_steps)
    dataset = PhotosInMemory(args.data / "photos", args.image_size)
    loader = DataLoader(
        dataset, batch_size=args.batch_size, shuffle=True, num_workers=1, persistent_workers=True, drop_last=True
    )
    model = resnet18(weights=None, num_classes=len(dataset.classes))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    criterion = nn.CrossEntropyLoss()
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    model.train()
    for epoch in range(args.num_epochs):
        total = torch.zeros(())
        for images, labels in timed(loader, "wait"):
            with lap("compute"), accelerator.accumulate(model):
                loss = criterion(model(images), labels)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            total += loss.detach()
        accelerator.print(f"epoch {epoch + 1}/{args.num_epochs}: loss {total.item() / len(loader):.4f}")

    accelerator.wait_for_everyone()
    accelerator.save_model(model, args.out)


if __name__ == "__main__":
    main()
