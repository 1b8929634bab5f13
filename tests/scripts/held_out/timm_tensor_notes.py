"""timm: a tiny network on thumbnails. The console shows what matters; everything else goes to a file at level DEBUG, so
that there is something to look at when a run goes wrong at night."""

import argparse
import logging
import logging.handlers
from pathlib import Path

import numpy as np
import timm
import torch
from PIL import Image
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import AverageMeter, accuracy
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stopwatch import lap, timed

log = logging.getLogger("thumbnails")


def set_up_logging(folder):
    log.setLevel(logging.DEBUG)
    console = logging.StreamHandler()
    console.setLevel(logging.INFO)
    console.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    file = logging.handlers.RotatingFileHandler(folder / "debug.log", maxBytes=20_000_000, backupCount=1)
    file.setFormatter(logging.Formatter("%(asctime)s.%(msecs)03d %(levelname)-5s %(message)s", "%H:%M:%S"))
    log.addHandler(console)
    log.addHandler(file)


class Thumbnails(Dataset):
    def __init__(self, root, side):
        self.images, self.labels = [], []
        for label, folder in enumerate(sorted(root.iterdir())):
            for path in sorted(folder.glob("*.JPEG"))[:150]:
                photo = Image.open(path)
                photo.draft("RGB", (side, side))
                self.images.append(np.asarray(photo.convert("RGB").resize((side, side))))
                self.labels.append(label)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = self.images[index]
        if np.random.random() < 0.5:
            image = image[:, ::-1]
        return image.transpose(2, 0, 1).copy(), self.labels[index]


def collate(samples):
    images, labels = zip(*samples)
    return torch.from_numpy(np.stack(images)).float().div_(127.5).sub_(1), torch.tensor(labels)


class Watched:
    """The optimizer, and what it does to the weights."""

    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer

    def step(self, loss):
        self.optimizer.zero_grad()
        loss.backward()
        self.norm = nn.utils.clip_grad_norm_(self.model.parameters(), 5.0)
        self.optimizer.step()

    def note(self, step, loss):
        log.debug("step %d loss %s norm %s", step, loss.detach(), self.norm)
        for name, weight in self.model.named_parameters():
            if weight.grad is not None:
                log.debug("%s shape %s gradient %s", name, tuple(weight.shape), weight.grad)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/timm_tensor_notes"))
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--model", default="test_resnet")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    set_up_logging(args.out)
    torch.manual_seed(0)
    thumbnails = Thumbnails(args.data / "photos", 48)
    loader = DataLoader(thumbnails, args.batch_size, shuffle=True, drop_last=True, collate_fn=collate)
    model = timm.create_model(args.model, num_classes=10, drop_rate=0.1)
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.02)
    schedule = CosineLRScheduler(optimizer, t_initial=args.epochs, warmup_t=2, warmup_lr_init=1e-4)
    watched, losses, tops, step = Watched(model, optimizer), AverageMeter(), AverageMeter(), 0
    for epoch in range(args.epochs):
        for images, labels in timed(loader, "wait"):
            with lap("compute"):
                scores = model(images)
                loss = nn.functional.cross_entropy(scores, labels, label_smoothing=0.1)
                watched.step(loss)
            with lap("own"):
                step += 1
                watched.note(step, loss)
                losses.update(loss.item(), len(labels))
                tops.update(accuracy(scores.detach(), labels)[0].item(), len(labels))
                if step % 25 == 0:
                    log.info("step %d: loss %.4f, top 1 %.1f %%", step, losses.avg, tops.avg)
        with lap("own"):
            schedule.step(epoch + 1)
            losses.reset(), tops.reset()
            torch.save({"epoch": epoch, "model": model.state_dict()}, args.out / "last.pth")


if __name__ == "__main__":
    main()
