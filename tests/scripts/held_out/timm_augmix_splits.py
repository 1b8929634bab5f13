"""timm: a ResNet-10-T with AugMix in three splits and the Jensen-Shannon loss; loader, erasing, loss, optimizer and
schedule all come from timm."""

import argparse
from pathlib import Path

import timm
import torch
from timm.data import AugMixDataset, ImageDataset, create_loader
from timm.loss import JsdCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import AverageMeter

from stopwatch import lap, timed


def make_loader(photos: Path, args):
    dataset = AugMixDataset(ImageDataset(str(photos)), num_splits=args.splits)
    loader = create_loader(
        dataset,
        input_size=(3, args.side, args.side),
        batch_size=args.batch_size,
        is_training=True,
        scale=(0.25, 1.0),
        auto_augment="augmix-m5-w4-d2",
        num_aug_splits=args.splits,
        re_prob=0.3,
        re_mode="pixel",
        re_split=True,
        interpolation="bicubic",
        num_workers=2,
        device=torch.device("cpu"),
        persistent_workers=True,
    )
    return loader, len(dataset.dataset.reader.class_to_idx)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/timm_augmix_splits"))
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("-b", "--batch-size", type=int, default=4)
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--side", type=int, default=64)
    args = parser.parse_args()
    torch.manual_seed(81)
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)

    loader, classes = make_loader(args.data / "photos", args)
    model = timm.create_model("resnet10t", pretrained=False, num_classes=classes, drop_path_rate=0.05)
    optimizer = create_optimizer_v2(model, opt="sgd", lr=0.05, weight_decay=1e-4, momentum=0.9)
    schedule = CosineLRScheduler(optimizer, t_initial=args.epochs * len(loader), warmup_t=50, t_in_epochs=False)
    criterion = JsdCrossEntropy(num_splits=args.splits, smoothing=0.1)
    update = 0
    for epoch in range(args.epochs):
        model.train()
        losses, accuracy = AverageMeter(), AverageMeter()
        for step, (images, labels) in enumerate(timed(loader, "wait")):
            with lap("compute"):
                logits = model(images)
                loss = criterion(logits, labels)
                optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
                optimizer.step()
                update += 1
                schedule.step_update(update)
            with lap("own"):
                right = logits[: args.batch_size].argmax(1) == labels[: args.batch_size]
                losses.update(loss.item(), args.batch_size)
                accuracy.update(right.float().mean().item(), args.batch_size)
            if step % 20 == 0:
                rate = optimizer.param_groups[0]["lr"]
                print(f"{epoch} [{step}/{len(loader)}] {losses.avg:.4f} {accuracy.avg:.3f} {rate:.5f}", flush=True)
        torch.save({"epoch": epoch, "state_dict": model.state_dict()}, args.out / "last.pth.tar")


if __name__ == "__main__":
    main()
