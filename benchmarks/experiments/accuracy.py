"""What a cheaper form of the data, or a cheaper order, costs: handwritten digits, trained again and again.

    python -m feedline.benchmarks.experiments.accuracy [--repeats 5 --epochs 20]

scikit-learn's digits (1,797 real scans, a fifth for validation) are written as 64 px image files and prepared by
feedline; the small CNN sees 32 px of each form. Every form is trained with the same seeds, in turn; one of them in
windows of shards instead of full random order. The figure is the top-1 of the last epoch, its mean over the seeds and
the 95 % interval of the mean's difference to 32 px raw, seed by seed; the training loss by epoch is kept beside it.
Writes results/accuracy.json and prints its table.
"""

import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from feedline.benchmarks.experiments.harness import end_with, mean, options, say, show, write
from feedline.preprocess.config import PrepareConfig
from feedline.preprocess.picture import Output
from feedline.preprocess.prepare import prepare
from feedline.train.config import TrainConfig
from feedline.train.loop import train

ORIGINAL_PX, MODEL_PX = 64, 32


def square(codec: str, px: int = 32, **more: Any) -> Output:
    return Output(codec=codec, size_px=px, resize="square", **more)


FORMS = {
    "32 px raw": square("raw"),
    f"32 px jpeg, quality {Output().quality}": square("jpeg"),
    "32 px jpeg, quality 50": square("jpeg", quality=50),
    "32 px jpeg, quality 20": square("jpeg", quality=20),
    "32 px planes": square("planes"),
    "32 px raw, box": square("raw", filter="box"),
    "32 px raw, lanczos": square("raw", filter="lanczos"),
    "16 px raw": square("raw", 16),
    "8 px raw": square("raw", 8),
}
WINDOWS = "32 px raw, windows of 2 of 48 shards"
"""30 samples a shard: a window has two batches of 32."""


def main() -> None:
    given = options(__doc__, "accuracy.json", repeats=5, epochs=20)
    top1: dict[str, list[float]] = {name: [] for name in (*FORMS, WINDOWS)}
    losses: dict[str, list[list[float]]] = {name: [] for name in top1}
    sizes: dict[str, int] = {}
    with tempfile.TemporaryDirectory(prefix="feedline-accuracy-") as scratch:
        folder = Path(scratch)
        write_digits(folder / "digits")
        for name in top1:
            job = PrepareConfig(
                source=str(folder / "digits"), out=str(folder / name), outputs=(FORMS.get(name, square("raw")),),
                val_fraction=0.2, shards=48 if name == WINDOWS else None,
            )  # fmt: skip
            sizes[name] = prepare(job)["bytes_out"]
        for seed in range(given.repeats):
            for name, values in top1.items():
                config = TrainConfig(
                    dataset=folder / name, run=folder / f"{name} {seed}", model="small_cnn", image_size=MODEL_PX,
                    batch_size=32, epochs=given.epochs, seed=seed, crop_scale=(0.7, 1.0), flip=False, eval_ratio=1.0,
                    eval_every=given.epochs, keep_last=0, tensorboard=False, num_workers=1,
                    window_shards=2 if name == WINDOWS else None,
                )  # fmt: skip
                epochs = train(config)["epochs"]
                values.append(epochs[-1]["top1"])
                losses[name].append([epoch["train_loss"] for epoch in epochs])
                say(f"seed {seed}, {name}: {values[-1]:.2%}")
    forms = [row(name, top1, sizes[name]) for name in top1]
    for form in forms:
        by_epoch = zip(*losses[form["form"]], strict=True)
        form["train_loss_by_epoch"] = [statistics.mean(of_seeds) for of_seeds in by_epoch]
    data = f"sklearn.datasets.load_digits, a fifth for validation, small CNN at {MODEL_PX} px"
    write(given.out, {"data": data, "epochs": given.epochs, "n": given.repeats, "forms": forms})
    ends = ("difference", "difference_low", "difference_high")
    rows = [(one["form"], f"{one['bytes']:,}", f"{one['top1']:.2%}",
             *("" if one[end] is None else f"{one[end]:+.2%}" for end in ends)) for one in forms]  # fmt: skip
    show(("form", "bytes", "top-1", "to 32 px raw", "low", "high"), rows)


def write_digits(folder: Path) -> None:
    """folder/DIGIT/NUMBER.png, enlarged from 8×8."""
    from PIL import Image
    from sklearn.datasets import load_digits

    digits: Any = load_digits()
    for number, (image_HW, label) in enumerate(zip(digits.images, digits.target, strict=True)):
        path = folder / str(label) / f"{number:04d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture = Image.fromarray((image_HW * 255 / 16).round().astype(np.uint8)).convert("RGB")
        picture.resize((ORIGINAL_PX, ORIGINAL_PX), Image.Resampling.BILINEAR).save(path)


def row(name: str, top1: dict[str, list[float]], bytes_out: int) -> dict[str, Any]:
    gap = mean([mine - theirs for mine, theirs in zip(top1[name], top1["32 px raw"], strict=True)])
    return {
        "form": name,
        "bytes": bytes_out,
        "top1": statistics.mean(top1[name]),
        "top1_by_seed": top1[name],
        "difference": gap.value,
        "difference_low": gap.low,
        "difference_high": gap.high,
    }


if __name__ == "__main__":
    end_with(main)
