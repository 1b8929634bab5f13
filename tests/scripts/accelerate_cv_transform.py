"""Image classification with Accelerate, with a median filter among the training transforms."""

import argparse
import os
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from PIL import Image, ImageFilter
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import Compose, RandomResizedCrop, ToTensor

from stopwatch import lap, timed


class MedianDenoise:
    def __init__(self, size=5):
        self.filter = ImageFilter.MedianFilter(size)

    def __call__(self, image):
        return image.filter(self.filter)


class PhotoDataset(Dataset):
    def __init__(self, file_names, image_transform, label_to_id):
        self.file_names, self.image_transform, self.label_to_id = file_names, image_transform, label_to_id

    def __len__(self):
        return len(self.file_names)

    def __getitem__(self, idx):
        name = self.file_names[idx]
        with lap("decode"):
            image = Image.open(name).convert("RGB")
        with lap("transform"):
            image = self.image_transform(image)
        return {"image": image, "label": self.label_to_id[name.parent.name]}


def build_model(classes):
    widths, layers = [3, 8, 16, 32], []
    for before, after in zip(widths, widths[1:]):
        layers += [nn.Conv2d(before, after, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], classes))


def training_function(config, args):
    accelerator = Accelerator(cpu=True)
    set_seed(config["seed"])
    names = sorted(Path(args.data_dir, "photos").glob("*/*.[jJ]*"))
    label_to_id = {label: i for i, label in enumerate(sorted({name.parent.name for name in names}))}
    side = config["image_size"]
    train_tfm = Compose([RandomResizedCrop(side, scale=(0.5, 1.0)), MedianDenoise(5), ToTensor()])
    train_dataset = PhotoDataset(names, train_tfm, label_to_id)
    train_dataloader = DataLoader(train_dataset, shuffle=True, batch_size=config["batch_size"], num_workers=2)

    model = build_model(len(label_to_id))
    optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"] / 25)
    scheduler = OneCycleLR(
        optimizer, config["lr"], epochs=config["num_epochs"], steps_per_epoch=len(train_dataloader)
    )
    model, optimizer, train_dataloader, scheduler = accelerator.prepare(model, optimizer, train_dataloader, scheduler)
    for epoch in range(config["num_epochs"]):
        model.train()
        for step, batch in enumerate(timed(train_dataloader, "wait")):
            with lap("compute"):
                loss = nn.functional.cross_entropy(model((batch["image"] - 0.45) / 0.25), batch["label"])
                accelerator.backward(loss)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            if step % 20 == 0:
                accelerator.print(f"epoch {epoch} step {step}: loss {loss.item():.3f}")
    os.makedirs(args.out, exist_ok=True)
    accelerator.save(accelerator.unwrap_model(model).state_dict(), os.path.join(args.out, "model.pt"))


def main():
    parser = argparse.ArgumentParser(description="Photographs, Accelerate")
    parser.add_argument("data_dir")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--out", default="runs/accelerate_cv_transform")
    args = parser.parse_args()
    training_function({"lr": 3e-2, "num_epochs": args.epochs, "seed": 42, "batch_size": 32, "image_size": 160}, args)


if __name__ == "__main__":
    main()
