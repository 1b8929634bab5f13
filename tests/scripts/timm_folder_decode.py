"""timm: mobilenetv3_small_050 on a folder of large JPEG files, with timm's own dataset and loader."""

import argparse
import logging
import tempfile
import time
from pathlib import Path

import torch
from PIL import Image
from timm import create_model
from timm.data import create_dataset, create_loader, resolve_data_config
from timm.loss import LabelSmoothingCrossEntropy
from timm.optim import create_optimizer_v2
from timm.utils import AverageMeter, random_seed

from stopwatch import lap, timed

_logger = logging.getLogger("train")

parser = argparse.ArgumentParser(description="timm on large photographs")
parser.add_argument("data_dir", type=Path)
parser.add_argument("--model", default="mobilenetv3_small_050")
parser.add_argument("--img-size", type=int, default=64)
parser.add_argument("-b", "--batch-size", type=int, default=32)
parser.add_argument("-j", "--workers", type=int, default=2)
parser.add_argument("--epochs", type=int, default=14)
parser.add_argument("--lr", type=float, default=1e-3)
parser.add_argument("--log-interval", type=int, default=10)
parser.add_argument("--out", type=Path, default="runs/timm_folder_decode")


def enlarge(source, target, count, size):
    """The photographs as a camera of today would have left them."""
    files = sorted(source.glob("*/*.[jJ]*"))
    for file in files[:: max(1, len(files) // count)][:count]:
        folder = target / "train" / file.parent.name
        folder.mkdir(parents=True, exist_ok=True)
        Image.open(file).convert("RGB").resize(size).save(folder / file.name, quality=92)


def train_one_epoch(epoch, model, loader, optimizer, loss_fn, args):
    losses_m, batch_time_m = AverageMeter(), AverageMeter()
    model.train()
    end = time.time()
    for batch_idx, (input, target) in enumerate(timed(loader, "wait")):
        with lap("compute"):
            loss = loss_fn(model(input), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        batch_time_m.update(time.time() - end)
        end = time.time()
        if batch_idx % args.log_interval == 0:
            losses_m.update(loss.item(), input.size(0))
            _logger.info(
                f"Train: {epoch} [{batch_idx:>3d}/{len(loader)}]  Loss: {losses_m.val:.3f} ({losses_m.avg:.3f})  "
                f"Time: {batch_time_m.val:.3f}s ({batch_time_m.avg:.3f}s)"
            )


def main():
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    args = parser.parse_args()
    random_seed(42, 0)
    model = create_model(args.model, pretrained=False, num_classes=10)
    data_config = resolve_data_config({"img_size": args.img_size}, model=model)
    optimizer = create_optimizer_v2(model, opt="adamw", lr=args.lr, weight_decay=0.02)
    with tempfile.TemporaryDirectory() as folder:
        enlarge(args.data_dir / "photos", Path(folder), count=384, size=(2000, 1500))
        loader_train = create_loader(
            create_dataset("", root=folder, split="train", is_training=True),
            input_size=data_config["input_size"],
            batch_size=args.batch_size,
            is_training=True,
            use_prefetcher=False,
            interpolation="bilinear",
            mean=data_config["mean"],
            std=data_config["std"],
            num_workers=args.workers,
        )
        for epoch in range(args.epochs):
            train_one_epoch(epoch, model, loader_train, optimizer, LabelSmoothingCrossEntropy(0.1), args)
    args.out.mkdir(parents=True, exist_ok=True)
    torch.save({"arch": args.model, "state_dict": model.state_dict()}, args.out / "last.pth.tar")


if __name__ == "__main__":
    main()
