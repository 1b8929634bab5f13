"""How strong should the augmentation be? Optuna proposes strengths for the next five batches and is told the loss on
a clean one afterwards, so that they are tuned while the network learns (ask and tell)."""

import argparse
from pathlib import Path

import numpy as np
import optuna
import torch
from PIL import Image
from torch import nn

from stopwatch import lap

STRENGTHS = {
    "brightness": (0.0, 0.6),
    "contrast": (0.0, 0.8),
    "saturation": (0.0, 1.0),
    "noise": (0.0, 0.2),
    "cutout": (0.0, 0.7),
    "blend": (0.0, 0.5),
}


def load(photos: Path, side=40, each=60):
    images, labels = [], []
    for label, folder in enumerate(sorted(path for path in photos.iterdir() if path.is_dir())):
        for file in sorted(folder.glob("*.JPEG"))[:each]:
            image = Image.open(file)
            image.draft("RGB", (side, side))
            images.append(np.asarray(image.convert("RGB").resize((side, side))))
            labels.append(label)
    return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).contiguous(), torch.tensor(labels)


def batches(images, labels, size):
    """For ever, in a new order each time round."""
    while True:
        for rows in torch.randperm(len(images)).split(size)[:-1]:
            yield images[rows].float() / 255, labels[rows]


def augment(images, strengths):
    count, _, height, width = images.shape

    def around(strength):
        return 1 + strength * (2 * torch.rand(count, 1, 1, 1) - 1)

    images = images * around(strengths["brightness"])
    mean = images.mean((1, 2, 3), keepdim=True)
    images = mean + (images - mean) * around(strengths["contrast"])
    grey = images.mean(1, keepdim=True)
    images = grey + (images - grey) * around(strengths["saturation"])
    images = images + strengths["noise"] * torch.randn_like(images)
    h, w = int(height * strengths["cutout"]), int(width * strengths["cutout"])
    y, x = int(torch.randint(height - h, ())), int(torch.randint(width - w, ()))
    images[:, :, y : y + h, x : x + w] = 0.5
    return torch.lerp(images, images.flip(0), strengths["blend"] / 2)


def make_model(classes):
    layers, before = [], 3
    for after in (16, 32, 48):
        layers += [nn.Conv2d(before, after, 3, 2, 1), nn.BatchNorm2d(after), nn.ReLU()]
        before = after
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/optuna_colour_trials"))
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--batch-size", type=int, default=48)
    parser.add_argument("--every", type=int, default=5, help="how many steps a proposal is kept")
    args = parser.parse_args()
    torch.manual_seed(80)
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    optuna.logging.set_verbosity(optuna.logging.WARNING)

    images, labels = load(args.data / "photos")
    train = batches(images[::2], labels[::2], args.batch_size)
    clean = batches(images[1::2], labels[1::2], args.batch_size // 2)
    model = make_model(10)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    study = optuna.create_study(sampler=optuna.samplers.GPSampler(seed=80, n_startup_trials=8))
    for step in range(1, args.steps + 1):
        if step % args.every == 1:
            with lap("own"):
                trial = study.ask()
                strengths = {name: trial.suggest_float(name, *bounds) for name, bounds in STRENGTHS.items()}
        with lap("wait"):
            pixels, kinds = next(train)
            pixels = augment(pixels, strengths)
        with lap("compute"):
            loss = nn.functional.cross_entropy(model(pixels), kinds)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if step % args.every == 0:
            with lap("compute"), torch.no_grad():
                pixels, kinds = next(clean)
                score = nn.functional.cross_entropy(model(pixels), kinds).item()
            with lap("own"):
                study.tell(trial, score)
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.4f}, clean {study.best_value:.4f} at best", flush=True)
            torch.save(model.state_dict(), args.out / "tuned.pt")
    study.trials_dataframe().to_csv(args.out / "trials.csv")


if __name__ == "__main__":
    main()
