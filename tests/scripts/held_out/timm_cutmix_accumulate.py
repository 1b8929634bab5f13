"""Train a RegNet from timm on the photos: RandAugment, CutMix, accumulated gradients, tests within the epoch."""

import argparse
from pathlib import Path

import torch
from timm.data import ImageDataset, Mixup, create_loader
from timm.loss import SoftTargetCrossEntropy
from timm.models import create_model
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import AverageMeter, accuracy

from stopwatch import lap, timed

SIDE, BATCH, ACCUMULATE, TEST_EVERY = 160, 24, 2, 12
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def make_loaders(folder: Path):
    train, test = ImageDataset(str(folder)), ImageDataset(str(folder))
    samples = train.reader.samples
    train.reader.samples = [sample for place, sample in enumerate(samples) if place % 3 == 0]
    test.reader.samples = [sample for place, sample in enumerate(samples) if place % 41 == 1]
    common = {
        "input_size": (3, SIDE, SIDE),
        "mean": MEAN,
        "std": STD,
        "use_prefetcher": False,
        "num_workers": 1,
        "device": torch.device("cpu"),
    }
    train_loader = create_loader(
        train,
        batch_size=BATCH,
        is_training=True,
        auto_augment="rand-m9-mstd0.5-inc1",
        re_prob=0.25,
        interpolation="bicubic",
        color_jitter=0.4,
        **common,
    )
    test_loader = create_loader(test, batch_size=BATCH, is_training=False, **common)
    return train_loader, test_loader


@torch.no_grad()
def test(model: torch.nn.Module, loader) -> float:
    model.eval()
    meter = AverageMeter()
    for images, kinds in timed(loader, "wait"):
        with lap("compute"):
            scores = model(images)
        with lap("own"):
            meter.update(accuracy(scores, kinds, topk=(1,))[0].item(), len(kinds))
    model.train()
    return meter.avg


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--epochs", type=int, default=300)
    options = parser.parse_args()
    torch.manual_seed(42)
    train_loader, test_loader = make_loaders(options.data / "photos")
    model = create_model("regnety_004", pretrained=False, num_classes=10, drop_rate=0.1)
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05)
    scheduler = CosineLRScheduler(optimizer, t_initial=options.epochs, warmup_t=3, warmup_lr_init=1e-5)
    mix = Mixup(mixup_alpha=0.2, cutmix_alpha=1.0, switch_prob=0.6, label_smoothing=0.1, num_classes=10)
    loss_of = SoftTargetCrossEntropy()
    model.train()
    for epoch in range(options.epochs):
        losses = AverageMeter()
        for step, (images, kinds) in enumerate(timed(train_loader, "wait"), 1):
            with lap("own"):
                images, soft = mix(images, kinds)
            with lap("compute"):
                loss = loss_of(model(images), soft)
                (loss / ACCUMULATE).backward()
                if step % ACCUMULATE == 0:
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 2.0)
                    optimizer.step()
                    optimizer.zero_grad()
            with lap("own"):
                losses.update(loss.item(), len(images))
                rate = optimizer.param_groups[0]["lr"]
                print(f"{epoch}:{step:03d} loss {losses.val:.3f} ({losses.avg:.3f}) rate {rate:.2e}", flush=True)
            if step % TEST_EVERY == 0:
                print(f"{epoch}:{step:03d} test accuracy {test(model, test_loader):.1f} %", flush=True)
        scheduler.step(epoch + 1)


if __name__ == "__main__":
    main()
