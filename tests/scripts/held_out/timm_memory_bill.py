#!/usr/bin/env python3
"""timm: a narrow ResNet on thumbnails. The machine is shared and paid for by what one uses, so there is a bill: memory
that is ours alone, open files, threads and processor time after each step."""

import argparse
import csv
import time
from pathlib import Path

import psutil
import timm
import torch
from PIL import Image
from timm.data import create_transform
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import AverageMeter
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stopwatch import lap, timed

FIELDS = ["step", "loss", "uss_mb", "pss_mb", "shared_mb", "files", "threads", "user_s", "system_s", "cost"]


class Bill:
    def __init__(self, path, price_gb_hour=0.004, price_core_hour=0.03):
        self.process = psutil.Process()
        self.path, self.rows = path, []
        self.gb_hour, self.core_hour = price_gb_hour, price_core_hour
        self.last, self.cost = time.time(), 0.0

    def charge(self, step, loss):
        members = [self.process, *self.process.children(recursive=True)]
        uss = pss = shared = files = threads = 0
        user = system = 0.0
        for member in members:
            memory = member.memory_full_info()
            uss, pss, shared = uss + memory.uss, pss + memory.pss, shared + memory.shared
            files += len(member.open_files())
            for thread in member.threads():
                threads += 1
                user, system = user + thread.user_time, system + thread.system_time
        now = time.time()
        self.cost += (now - self.last) / 3600 * (pss / 2**30 * self.gb_hour + len(members) * self.core_hour)
        self.last = now
        self.rows.append([step, f"{loss:.4f}", uss >> 20, pss >> 20, shared >> 20, files, threads,
                          f"{user:.2f}", f"{system:.2f}", f"{self.cost:.6f}"])  # fmt: skip
        if len(self.rows) >= 100:
            self.write()

    def write(self):
        fresh = not self.path.exists()
        with open(self.path, "a", newline="") as file:
            writer = csv.writer(file)
            if fresh:
                writer.writerow(FIELDS)
            writer.writerows(self.rows)
        self.rows.clear()


class Thumbnails(Dataset):
    def __init__(self, root, side, each):
        self.images, self.labels = [], []
        for label, folder in enumerate(sorted(root.iterdir())):
            for file in sorted(folder.glob("*.JPEG"))[:each]:
                image = Image.open(file)
                image.draft("RGB", (side, side))
                self.images.append(image.convert("RGB").resize((side, side)))
                self.labels.append(label)
        self.transform = create_transform(side, is_training=True, scale=(0.6, 1.0), color_jitter=None)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.transform(self.images[index]), self.labels[index]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/timm_memory_bill"))
    parser.add_argument("--model", default="resnet10t")
    parser.add_argument("--epochs", type=int, default=300)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(2)
    dataset = Thumbnails(args.data / "photos", side=32, each=100)
    loader = DataLoader(dataset, 12, shuffle=True, num_workers=1, persistent_workers=True, drop_last=True)
    model = timm.create_model(args.model, num_classes=10, stem_width=16, channels=(24, 32, 48, 64))
    optimizer = create_optimizer_v2(model, opt="sgd", lr=0.02, momentum=0.9, weight_decay=1e-4)
    schedule = CosineLRScheduler(optimizer, t_initial=args.epochs, warmup_t=2, warmup_lr_init=1e-3)
    criterion, bill, step = nn.CrossEntropyLoss(label_smoothing=0.1), Bill(args.out / "bill.csv"), 0
    for epoch in range(args.epochs):
        mean = AverageMeter()
        for images, labels in timed(loader, "wait"):
            with lap("compute"):
                loss = criterion(model(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            with lap("own"):
                mean.update(loss.item(), len(labels))
                bill.charge(step, loss.item())
                step += 1
        schedule.step(epoch + 1)
        print(f"epoch {epoch}: loss {mean.avg:.4f}, {bill.cost:.4f} so far", flush=True)
        torch.save(model.state_dict(), args.out / "net.pth")
    bill.write()


if __name__ == "__main__":
    main()
