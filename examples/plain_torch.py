"""A plain training loop on prepared shards, with a checkpoint that resumes in the middle of an epoch.

python examples/plain_torch.py OUT/train --epochs 2 --checkpoint run.pt
python examples/plain_torch.py OUT/train --epochs 2 --checkpoint run.pt     # goes on where it was stopped
"""

import argparse
from pathlib import Path

import torch
from torch import nn

from feedline.pipeline.loader import Loader


def small_cnn(classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 5, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 5, stride=2), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, classes),
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("split")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--num-workers", type=int, default=None)
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--stop-after", type=int, default=0, help="steps, to try resuming")
    args = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    loader = Loader(args.split, batch_size=args.batch_size, image_size=args.image_size, num_workers=args.num_workers,
                    device=device, policy="wrap")  # fmt: skip
    model = small_cnn(len(loader.manifest.classes)).to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    first_epoch = step = 0
    if args.checkpoint and args.checkpoint.exists():
        saved = torch.load(args.checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
        first_epoch = saved["loader"]["epoch"]
    for epoch in range(first_epoch, args.epochs):
        loader.set_epoch(epoch)
        if not loader.batches_left:  # it was stopped behind the epoch's last batch
            continue
        for images_NCHW, labels_N in loader:
            loss = nn.functional.cross_entropy(model(images_NCHW), labels_N)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step == args.stop_after:
                break
        state = loader.state_dict()
        if args.checkpoint:
            saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loader": state}
            torch.save(saved, args.checkpoint)
        print(f"epoch {state['epoch']}, {state['samples']} samples into it, {step} steps, loss {loss.item():.3f}")
        if step == args.stop_after:
            break
    print({stage: round(share, 2) for stage, share in loader.stats()["stages"].items()})


if __name__ == "__main__":
    main()
