"""The training runs in a thread; the main thread is the "user interface", which shows how far it has come."""

import argparse
import os
import threading

import torch
from stopwatch import lap, timed
from torch import nn
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder


class Photos(ImageFolder):
    def __getitem__(self, index):
        path, label = self.samples[index]
        with lap("decode"):
            image = self.loader(path)
        with lap("transform"):
            return self.transform(image), label


class TrainingThread(threading.Thread):
    def __init__(self, args):
        super().__init__(name="training")
        self.args = args
        self.status = {"epoch": 0, "step": 0, "loss": float("nan")}

    def build(self):
        augment = transforms.Compose(
            [
                transforms.Resize(128),
                transforms.RandomCrop(128),
                transforms.ElasticTransform(alpha=60.0, sigma=5.0),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
            ]
        )
        dataset = Photos(os.path.join(self.args.data, "photos"), augment)
        loader = DataLoader(
            dataset, self.args.batch, shuffle=True, num_workers=self.args.workers, persistent_workers=True
        )
        model = nn.Sequential(
            nn.Conv2d(3, 16, 7, stride=4, padding=3),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(128, len(dataset.classes)),
        )
        return loader, model

    def run(self):
        torch.set_num_threads(1)
        loader, model = self.build()
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
        for epoch in range(self.args.epochs):
            for step, (images, labels) in enumerate(timed(loader, "wait")):
                with lap("compute"):
                    optimizer.zero_grad()
                    loss = nn.functional.cross_entropy(model(images), labels)
                    loss.backward()
                    optimizer.step()
                self.status.update(epoch=epoch, step=step, loss=loss.item())


parser = argparse.ArgumentParser()
parser.add_argument("data")
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--batch", type=int, default=32)
parser.add_argument("--workers", type=int, default=1)

if __name__ == "__main__":
    thread = TrainingThread(parser.parse_args())
    thread.start()
    while thread.is_alive():
        thread.join(5)
        print("epoch {epoch}, step {step}: loss {loss:.3f}".format(**thread.status), flush=True)
