"""A small classifier whose every step is written down: weights' statistics, and all activations of the batch as JSON."""

import argparse
import json
import os
import time

import numpy as np
import torch
from PIL import Image
from stopwatch import lap, timed
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms


class Thumbnails(Dataset):
    def __init__(self, root, side, transform):
        self.transform = transform
        self.images, self.targets = [], []
        for target, name in enumerate(sorted(os.listdir(root))):
            for file in sorted(os.listdir(os.path.join(root, name)))[:120]:
                with Image.open(os.path.join(root, name, file)) as image:
                    image.draft("RGB", (side, side))
                    self.images.append(image.convert("RGB").resize((side, side)))
                self.targets.append(target)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.transform(self.images[index]), self.targets[index]


class Recorder:
    """Keeps what forward hooks see, and writes it all in one line for each step."""

    def __init__(self, model, path):
        self.model, self.file = model, open(path, "w")
        self.activations = {}
        for name, module in model.named_modules():
            if isinstance(module, (nn.ReLU, nn.Linear)):
                module.register_forward_hook(self.hook(name))

    def hook(self, name):
        def keep(module, inputs, output):
            self.activations[name] = output.detach()

        return keep

    def jsonable(self, value):
        if isinstance(value, torch.Tensor):
            return self.jsonable(value.tolist())
        if isinstance(value, dict):
            return {str(key): self.jsonable(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.jsonable(item) for item in value]
        if isinstance(value, float):
            return round(value, 5)
        return value

    def histogram(self, tensor):
        counts, edges = np.histogram(tensor.detach().numpy(), bins=64)
        return {"counts": counts.tolist(), "edges": edges.tolist(), "norm": tensor.norm().item()}

    def write(self, step, loss, images, targets):
        record = {"step": step, "time": time.time(), "loss": loss.item(), "targets": targets}
        record["parameters"] = {name: self.histogram(p) for name, p in self.model.named_parameters()}
        record["gradients"] = {name: self.histogram(p.grad) for name, p in self.model.named_parameters()}
        record["activations"] = {name: value.flatten(2).mean(2) if value.dim() == 4 else value
                                 for name, value in self.activations.items()}  # fmt: skip
        record["thumbnails"] = nn.functional.avg_pool2d(images, 4)
        line = json.dumps(self.jsonable(record), indent=1)
        self.file.seek(0)
        self.file.truncate()
        self.file.write(line)
        self.file.flush()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--out", default="runs/json_step_log")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=64)
    args = parser.parse_args()
    torch.set_num_threads(1)
    os.makedirs(args.out, exist_ok=True)

    crop = transforms.Compose(
        [transforms.RandomCrop(64), transforms.PILToTensor(), transforms.ConvertImageDtype(torch.float)]
    )
    dataset = Thumbnails(os.path.join(args.data, "photos"), 72, crop)
    loader = DataLoader(dataset, args.batch_size, shuffle=True, drop_last=True)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 4, stride=4), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, 10),
    )  # fmt: skip
    recorder = Recorder(model, os.path.join(args.out, "last_step.json"))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    step = 0
    for epoch in range(args.epochs):
        for images, targets in timed(loader, "wait"):
            with lap("compute"):
                loss = nn.functional.cross_entropy(model(images), targets)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            with lap("own"):
                recorder.write(step, loss, images, targets)
            step += 1
        print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
