"""timm's loaders and helpers in a loop of our own, for machines that may be taken away at any time: a recovery checkpoint
every few steps, the log flushed line by line.

usage: timm_recovery_saves.py DATA [--model NAME] [--recover-every N]
"""

import argparse
import csv
import time
from pathlib import Path

import timm
import torch
from timm.data import create_dataset, create_loader
from timm.loss import LabelSmoothingCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import AverageMeter, ModelEmaV3, accuracy, dispatch_clip_grad

from stopwatch import lap, timed


def recover(path, model, optimizer):
    if not path.exists():
        return 0
    try:
        state = torch.load(path, weights_only=True)
    except (OSError, RuntimeError):
        return 0
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["step"]


def save(path, step, model, optimizer):
    part = path.with_suffix(".part")
    torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, part)
    part.replace(path)


def endless(loader):
    while True:
        yield from loader


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/timm_recovery_saves"))
    parser.add_argument("--model", default="mobilenetv4_conv_small")
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--side", type=int, default=128)
    parser.add_argument("--recover-every", type=int, default=10)
    parser.add_argument("--resume", action="store_true")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(42)
    torch.set_num_threads(1)

    dataset = create_dataset("", root=str(args.data / "photos"))
    loader = create_loader(
        dataset, (3, args.side, args.side), args.batch, is_training=True, use_prefetcher=False, num_workers=1,
        auto_augment="rand-m6-mstd0.5-inc1", re_prob=0.3, re_mode="pixel", re_count=2, color_jitter=0.4,
        interpolation="bicubic", persistent_workers=True, device=torch.device("cpu"), pin_memory=False,
    )  # fmt: skip
    model = timm.create_model(args.model, num_classes=10, drop_path_rate=0.05)
    average = ModelEmaV3(model, decay=0.999)
    optimizer = create_optimizer_v2(model, opt="rmsproptf", lr=2e-3, weight_decay=1e-5)
    schedule = CosineLRScheduler(
        optimizer, t_initial=args.steps, warmup_t=200, warmup_lr_init=1e-5, t_in_epochs=False
    )
    criterion = LabelSmoothingCrossEntropy(0.1)
    path = args.out / "recovery.pt"
    start = recover(path, model, optimizer) if args.resume else 0
    losses, first, fifth = AverageMeter(), AverageMeter(), AverageMeter()
    log = csv.writer(stream := (args.out / "steps.csv").open("a", newline=""))

    for step, (images, labels) in enumerate(timed(endless(loader), "wait"), start + 1):
        with lap("compute"):
            scores = model(images)
            loss = criterion(scores, labels)
            optimizer.zero_grad()
            loss.backward()
            dispatch_clip_grad(model.parameters(), 5.0, mode="norm")
            optimizer.step()
            average.update(model, step=step)
        with lap("own"):
            top1, top5 = accuracy(scores, labels, topk=(1, 5))
            for meter, value in ((losses, loss), (first, top1), (fifth, top5)):
                meter.update(value.item(), len(labels))
            schedule.step_update(step)
            log.writerow([step, f"{time.time():.1f}", f"{losses.val:.4f}", f"{first.val:.1f}", f"{fifth.val:.1f}"])
            stream.flush()
            if step % args.recover_every == 0:
                save(path, step, model, optimizer)
                print(f"{step:6d}  loss {losses.avg:.3f}  top 1 {first.avg:.1f}  top 5 {fifth.avg:.1f}", flush=True)
        if step >= args.steps:
            break
    torch.save(average.module.state_dict(), args.out / "average.pt")


if __name__ == "__main__":
    main()
