"""What a cheaper form of the data costs in accuracy: handwritten digits in several forms, trained again and again.

    python -m feedline.benchmarks.experiments.accuracy [--repeats 5 --epochs 20]

scikit-learn's digits (1,797 real scans, a fifth for validation) are written as 64 px image files and prepared by
feedline; the small CNN sees 32 px of each form. Every form is trained with the same seeds, in turn. The figure is the
top-1 of the last epoch, its mean over the seeds and the 95 % interval of the mean's difference to 32 px raw, seed by
seed. Writes results/accuracy.json and prints its table.
"""

import argparse
import json
import math
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from feedline.benchmarks.commands import this_command
from feedline.benchmarks.measure.intervals import student_t
from feedline.pipeline.base.files import write_atomically
from feedline.preprocess.config import PrepareConfig
from feedline.preprocess.picture import Output
from feedline.preprocess.prepare import prepare
from feedline.profiling.record.host import describe_host
from feedline.train.config import TrainConfig
from feedline.train.loop import train

RESULT = Path(__file__).parents[1] / "results" / "accuracy.json"
ORIGINAL_PX, MODEL_PX = 64, 32
FORMS = {
    "32 px raw": Output(codec="raw", size_px=32, resize="square"),
    "32 px jpeg, quality 90": Output(codec="jpeg", size_px=32, resize="square"),
    "32 px jpeg, quality 50": Output(codec="jpeg", size_px=32, resize="square", quality=50),
    "32 px jpeg, quality 20": Output(codec="jpeg", size_px=32, resize="square", quality=20),
    "32 px planes": Output(codec="planes", size_px=32, resize="square"),
    "32 px raw, box": Output(codec="raw", size_px=32, resize="square", filter="box"),
    "32 px raw, lanczos": Output(codec="raw", size_px=32, resize="square", filter="lanczos"),
    "16 px raw": Output(codec="raw", size_px=16, resize="square"),
    "8 px raw": Output(codec="raw", size_px=8, resize="square"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--json", type=Path, default=RESULT)
    said = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="feedline-accuracy-") as scratch:
        folder = Path(scratch)
        write_digits(folder / "digits")
        sizes = {name: make(folder, number, output) for number, (name, output) in enumerate(FORMS.items())}
        top1: dict[str, list[float]] = {name: [] for name in FORMS}
        for seed in range(said.repeats):
            for number, name in enumerate(FORMS):
                top1[name].append(trained(folder / str(number), folder / f"run-{number}-{seed}", seed, said.epochs))
                print(f"seed {seed}, {name}: {top1[name][-1]:.2%}", flush=True)
    result = {
        "command": this_command(),
        "host": describe_host(),
        "data": "sklearn.datasets.load_digits, a fifth for validation, small CNN at 32 px",
        "epochs": said.epochs,
        "n": said.repeats,
        "forms": [row(name, top1, sizes[name]) for name in FORMS],
    }
    write_atomically(said.json, (json.dumps(result, indent=1) + "\n").encode())
    show(result)


def write_digits(folder: Path) -> None:
    """folder/DIGIT/NUMBER.png, enlarged from 8×8."""
    from PIL import Image
    from sklearn.datasets import load_digits

    digits: Any = load_digits()
    for number, (image_HW, label) in enumerate(zip(digits.images, digits.target, strict=True)):
        path = folder / str(label) / f"{number:04d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels_HW = (image_HW * 255 / 16).round().astype(np.uint8)
        size = (ORIGINAL_PX, ORIGINAL_PX)
        Image.fromarray(pixels_HW).convert("RGB").resize(size, Image.Resampling.BILINEAR).save(path)


def make(folder: Path, number: int, output: Output) -> int:
    """Bytes of the prepared form, both splits."""
    out = folder / str(number)
    config = PrepareConfig(source=str(folder / "digits"), out=str(out), outputs=(output,), val_fraction=0.2)
    return prepare(config)["bytes_out"]


def trained(dataset: Path, run: Path, seed: int, epochs: int) -> float:
    """Top-1 after the last epoch."""
    config = TrainConfig(
        dataset=dataset, run=run, model="small_cnn", image_size=MODEL_PX, batch_size=32, epochs=epochs, seed=seed,
        crop_scale=(0.7, 1.0), flip=False, eval_ratio=1.0, eval_every=epochs, keep_last=0, tensorboard=False,
        num_workers=1,
    )  # fmt: skip
    return train(config)["epochs"][-1]["top1"]


def row(name: str, top1: dict[str, list[float]], bytes_out: int) -> dict[str, Any]:
    first = next(iter(top1))
    gaps = [mine - theirs for mine, theirs in zip(top1[name], top1[first], strict=True)]
    reach = student_t(len(gaps) - 1, 0.95) * statistics.stdev(gaps) / math.sqrt(len(gaps)) if len(gaps) > 1 else None
    gap = statistics.mean(gaps)
    return {
        "form": name,
        "bytes": bytes_out,
        "top1": statistics.mean(top1[name]),
        "top1_by_seed": top1[name],
        "difference": gap,
        "difference_low": None if reach is None else gap - reach,
        "difference_high": None if reach is None else gap + reach,
    }


def show(result: dict[str, Any]) -> None:
    print(f"{'form':26} {'bytes':>10} {'top-1':>8}   difference to 32 px raw")
    for one in result["forms"]:
        low, high = one["difference_low"], one["difference_high"]
        interval = "" if low is None else f" ({low:+.2%} to {high:+.2%})"
        print(f"{one['form']:26} {one['bytes']:>10,} {one['top1']:>8.2%}   {one['difference']:+.2%}{interval}")


if __name__ == "__main__":
    main()
