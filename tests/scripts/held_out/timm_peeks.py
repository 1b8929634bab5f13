"""timm: a small LCNet trained on squares kept in memory, with a peek at the whole photographs every six steps."""

import argparse
from pathlib import Path

import numpy as np
import timm
import torch
from PIL import Image
from stopwatch import lap, timed
from timm.data import ImageDataset, create_transform
from timm.loss import LabelSmoothingCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import AverageMeter, accuracy
from torch.utils.data import DataLoader, Dataset, Subset

SIDE = 64


class Squares(Dataset):
    """The photographs' middles as small pictures, all in memory."""

    def __init__(self, whole: ImageDataset, indices, transform):
        self.transform, self.kept = transform, []
        for index in indices:
            path, label = whole.reader.samples[index]
            image = Image.open(path)
            image.draft("RGB", (2 * SIDE, 2 * SIDE))
            self.kept.append((image.convert("RGB").resize((SIDE + 16, SIDE + 16)), label))

    def __len__(self):
        return len(self.kept)

    def __getitem__(self, index):
        image, label = self.kept[index]
        return self.transform(image), label


class Peek:
    """How good is it on whole photographs? Keeps the best weights."""

    def __init__(self, loader, out: Path):
        self.loader, self.out, self.best = loader, out, 0.0

    @torch.inference_mode()
    def validate(self, model):
        top1 = AverageMeter()
        model.eval()
        for images, labels in timed(self.loader, "wait"):
            with lap("compute"):
                (right,) = accuracy(model(images), labels)
                top1.update(right.item(), len(labels))
        model.train()
        if top1.avg > self.best:
            self.best = top1.avg
            torch.save(model.state_dict(), self.out / "best.pth")
        return top1.avg


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/timm_peeks"))
    parser.add_argument("--epochs", type=int, default=24)
    parser.add_argument("--peek-every", type=int, default=6)
    args = parser.parse_args()
    torch.manual_seed(11)
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)

    whole = ImageDataset(str(args.data / "photos"), transform=create_transform(SIDE, is_training=False, crop_pct=0.9))
    numbers = np.random.default_rng(0).permutation(len(whole))
    augment = create_transform(SIDE, is_training=True, scale=(0.5, 1.0), color_jitter=0.2, auto_augment=None)
    train_loader = DataLoader(
        Squares(whole, numbers[96:1100], augment),
        batch_size=16,
        shuffle=True,
        drop_last=True,
        num_workers=2,
        persistent_workers=True,
    )
    peek = Peek(DataLoader(Subset(whole, numbers[:96]), batch_size=16), args.out)

    model = timm.create_model("lcnet_035", num_classes=10)
    optimizer = create_optimizer_v2(model, opt="adamw", lr=2e-3, weight_decay=0.02)
    scheduler = CosineLRScheduler(optimizer, t_initial=args.epochs, warmup_t=1, warmup_lr_init=1e-4)
    criterion = LabelSmoothingCrossEntropy(0.1)
    step = 0
    for epoch in range(args.epochs):
        scheduler.step(epoch)
        losses = AverageMeter()
        for images, labels in timed(train_loader, "wait"):
            with lap("compute"):
                loss = criterion(model(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.update(loss.item(), len(labels))
            step += 1
            if step % args.peek_every == 0:
                top1 = peek.validate(model)
        print(f"epoch {epoch}: loss {losses.avg:.3f}, top1 {top1:.1f}, best {peek.best:.1f}", flush=True)


if __name__ == "__main__":
    main()
