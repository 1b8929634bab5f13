"""Deep mutual learning with Accelerate: two networks teach each other, and every step leaves a line of JSON."""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from PIL import Image
from stopwatch import lap, timed
from torch.utils.data import DataLoader, TensorDataset
from torchvision.models import mobilenet_v2, resnet18


def load_everything(root: Path, side: int) -> tuple[torch.Tensor, torch.Tensor, list[str]]:
    names = sorted(folder.name for folder in root.iterdir() if folder.is_dir())
    pixels, labels = [], []
    for label, name in enumerate(names):
        for file in sorted((root / name).iterdir()):
            image = Image.open(file)
            image.draft("RGB", (side, side))
            pixels.append(np.asarray(image.convert("RGB").resize((side, side), Image.Resampling.BILINEAR)))
            labels.append(label)
    return torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).contiguous(), torch.tensor(labels), names


def agreement(mine: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
    return F.kl_div(F.log_softmax(mine, 1), F.softmax(theirs.detach(), 1), reduction="batchmean")


def describe(step, names, logits, losses, labels, began):
    """What the step's line in the log says: of each network, each class and each sample."""
    record = {"step": step, "seconds": round(time.time() - began, 3), "networks": []}
    for scores, loss in zip(logits, losses):
        predicted = scores.argmax(1)
        per_class = {}
        for number, name in enumerate(names):
            mask = labels == number
            if mask.any():
                per_class[name] = (predicted[mask] == number).float().mean().item()
        confidence = [round(value, 4) for value in scores.softmax(1).amax(1).tolist()]
        record["networks"].append({"loss": loss.item(), "accuracy": per_class, "confidence": confidence})
    return json.dumps(record, sort_keys=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/accelerate_mutual_learning"))
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--steps-per-epoch", type=int, default=32)
    parser.add_argument("--batch-size", type=int, default=24)
    parser.add_argument("--side", type=int, default=64)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)

    set_seed(23)
    accelerator = Accelerator(cpu=True)
    images, labels, names = load_everything(args.data / "photos", args.side)
    loader = DataLoader(TensorDataset(images, labels), batch_size=args.batch_size, shuffle=True, drop_last=True)
    first, second = resnet18(num_classes=len(names)), mobilenet_v2(num_classes=len(names))
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9) for net in (first, second)]
    first, second, first_opt, second_opt, loader = accelerator.prepare(first, second, *optimizers, loader)

    began, step = time.time(), 0
    with open(args.out / "steps.jsonl", "w") as log:
        for epoch in range(args.epochs):
            for number, (batch, target) in enumerate(timed(loader, "wait")):
                with lap("compute"):
                    batch = batch.float().div_(127.5).sub_(1)
                    logits = [first(batch), second(batch)]
                    losses = []
                    for (mine, theirs), optimizer in zip((logits, logits[::-1]), (first_opt, second_opt)):
                        loss = F.cross_entropy(mine, target) + agreement(mine, theirs)
                        accelerator.backward(loss)
                        optimizer.step()
                        optimizer.zero_grad()
                        losses.append(loss)
                with lap("own"):
                    step += 1
                    log.write(describe(step, names, logits, losses, target, began) + "\n")
                    log.flush()
                if number + 1 == args.steps_per_epoch:
                    break
            accelerator.print(f"epoch {epoch + 1}: losses {losses[0].item():.3f} {losses[1].item():.3f}")
    accelerator.save(accelerator.unwrap_model(second).state_dict(), args.out / "student.pt")


if __name__ == "__main__":
    main()
