"""timm: every sample's loss goes into a small database, which another program of the lab looks at for bad labels."""

import argparse
import sqlite3
import time
from pathlib import Path

import timm
import torch
from timm.loss import LabelSmoothingCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import AverageMeter, ModelEmaV3, accuracy
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision.io import ImageReadMode, read_image
from torchvision.transforms.v2.functional import resize

from stopwatch import lap, timed

SCHEMA = """
create table if not exists visits (run integer, step integer, photo text, loss real, right integer, at real);
create index if not exists by_photo on visits (photo);
create table if not exists worst (photo text primary key, visits integer, mean real);
"""


class Archive:
    """The lab's database: visits as they happen, and the worst photographs, kept up to date."""

    def __init__(self, file):
        self.base = sqlite3.connect(file)
        self.base.executescript(SCHEMA)
        self.run = int(time.time())

    def record(self, step, photo, loss, right):
        self.base.execute(
            "insert into visits values (?, ?, ?, ?, ?, ?)", (self.run, step, photo, loss, right, time.time())
        )
        visits, mean = self.base.execute(
            "select count(*), avg(loss) from visits where photo = ? and run = ?", (photo, self.run)
        ).fetchone()
        self.base.execute("insert or replace into worst values (?, ?, ?)", (photo, visits, mean))
        self.base.commit()
        return self.base.execute("select count(*) from worst where mean > ?", (mean,)).fetchone()[0]

    def record_batch(self, step, photos, losses, rights):
        rows = zip(photos, losses.tolist(), rights.tolist())
        return min(self.record(step, photo, loss, right) for photo, loss, right in rows)

    def worst(self, count=3):
        return [row[0] for row in self.base.execute("select photo from worst order by mean desc limit ?", (count,))]


class Thumbnails(Dataset):
    def __init__(self, photos, side, each=100):
        self.rows = []
        for label, folder in enumerate(sorted(photos.iterdir())):
            for file in sorted(folder.glob("*.JPEG"))[:each]:
                image = resize(read_image(str(file), ImageReadMode.RGB), [side, side], antialias=False)
                self.rows.append((image, label, f"{folder.name}/{file.name}"))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/timm_loss_database"))
    parser.add_argument("--model", default="test_vit")
    parser.add_argument("--epochs", type=int, default=40)
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    loader = DataLoader(Thumbnails(args.data / "photos", 32), batch_size=48, shuffle=True, drop_last=True)
    archive = Archive(args.out / "losses.sqlite")
    model = timm.create_model(args.model, num_classes=10, img_size=32)
    average = ModelEmaV3(model, decay=0.998)
    optimizer = create_optimizer_v2(model, "adamw", lr=1e-3, weight_decay=0.02)
    schedule = CosineLRScheduler(optimizer, args.epochs, warmup_t=2, warmup_lr_init=1e-5)
    smooth, step = LabelSmoothingCrossEntropy(0.1), 0
    for epoch in range(args.epochs):
        model.train()
        meter = AverageMeter()
        for images, labels, photos in timed(loader, "wait"):
            with lap("compute"):
                logits = model(images.float() / 127.5 - 1)
                loss = smooth(logits, labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                average.update(model)
            with lap("own"):
                losses = nn.functional.cross_entropy(logits.detach(), labels, reduction="none")
                archive.record_batch(step, photos, losses, (logits.argmax(1) == labels).int())
                meter.update(accuracy(logits, labels)[0].item(), len(labels))
            step += 1
        schedule.step(epoch + 1)
        print(f"epoch {epoch}: {meter.avg:.1f} %, worst {archive.worst()}", flush=True)
        torch.save(average.module.state_dict(), args.out / "average.pth")


if __name__ == "__main__":
    main()
