"""What a cheaper form of the data costs in accuracy, beside what it gains in speed: trained again and again.

    python -m feedline.benchmarks.accuracy [--data textures digits] [--repeats 5] [--rounds 5]

Two sets that can show it. *Textures*: feedline's synthetic photographs of eight classes that differ in a fine texture
(its pitch is 4.8 px of the 64 px the model sees; what scaling or compressing takes away is missed). *Digits*:
scikit-learn's 1,797 scans of handwritten digits, real but coarse (8×8), written as 64 px files; the model sees 32 px.

Each is prepared by feedline in several forms. Every form trains the small CNN with the same seeds, in turn. The
figure is the top-1 of the last epoch: its mean over the seeds, and the 95 % interval of the mean's difference to the
first form, seed by seed. Then each form is loaded as in training by one worker, in rounds of random order. Writes
results/accuracy.json and results/accuracy-DATA.png.
"""

import argparse
import json
import math
import random
import statistics
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from feedline.benchmarks.figures import BLUE, GREY, new_figure, save
from feedline.benchmarks.intervals import estimate, student_t
from feedline.pipeline.atomic import write_atomically
from feedline.pipeline.loader import Loader
from feedline.pipeline.regions import Augment
from feedline.preprocess.config import PrepareConfig
from feedline.preprocess.prepare import prepare
from feedline.preprocess.resize import Output
from feedline.preprocess.synth_pictures import PITCHES, SHAPES, TEXTURES, Picture, jpeg
from feedline.profiling.host import describe_host
from feedline.train.config import TrainConfig
from feedline.train.loop import train

RESULT = Path(__file__).with_name("results") / "accuracy.json"
TRAIN_OF_A_CLASS, VAL_OF_A_CLASS = 250, 100
FINEST = PITCHES.index(min(PITCHES)) * len(TEXTURES) * len(SHAPES)
"""The synthetic set's first class of the finest pitch; the next ones differ in texture."""


def raw(size_px: int, **more: Any) -> Output:
    return Output(codec="raw", size_px=size_px, resize="square", **more)


def jpegs(size_px: int, quality: int = 90, **more: Any) -> Output:
    return Output(codec="jpeg", size_px=size_px, resize="square", quality=quality, **more)


def planes(size_px: int) -> Output:
    return Output(codec="planes", size_px=size_px, resize="square")


@dataclass(frozen=True, kw_only=True)
class Data:
    words: str
    write: Callable[[Path], None]
    forms: Mapping[str, Output]
    model_px: int
    epochs: int
    batch_size: int
    crop: float
    """The least share of the image that a training crop shows."""


def write_textures(folder: Path) -> None:
    """folder/{train,val}/TEXTURE/NUMBER.jpg"""
    for split, count in (("train", TRAIN_OF_A_CLASS), ("val", VAL_OF_A_CLASS)):
        for number, texture in enumerate(TEXTURES):
            of_class = folder / split / texture
            of_class.mkdir(parents=True)
            for picture in range(count):
                one = Picture(seed=0, split=split, label=FINEST + number, number=picture)
                (of_class / f"{picture:04d}.jpg").write_bytes(jpeg(one))


def write_digits(folder: Path) -> None:
    """folder/DIGIT/NUMBER.png, enlarged from 8×8."""
    from PIL import Image
    from sklearn.datasets import load_digits

    digits: Any = load_digits()
    for number, (image_HW, label) in enumerate(zip(digits.images, digits.target, strict=True)):
        path = folder / str(label) / f"{number:04d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels_HW = (image_HW * 255 / 16).round().astype(np.uint8)
        Image.fromarray(pixels_HW).convert("RGB").resize((64, 64), Image.Resampling.BILINEAR).save(path)


DATA = {
    "textures": Data(
        words="feedline's synthetic photographs, 8 classes of texture, 4.8 px pitch at the 64 px the small CNN sees",
        write=write_textures,
        forms={
            "256 px jpeg, quality 90": jpegs(256),
            "256 px jpeg, quality 50": jpegs(256, 50),
            "160 px jpeg, quality 90": jpegs(160),
            "96 px raw": raw(96),
            "64 px raw": raw(64),
            "64 px raw, box": raw(64, filter="box"),
            "64 px raw, lanczos": raw(64, filter="lanczos"),
            "64 px planes": planes(64),
            "64 px jpeg, quality 90": jpegs(64),
            "64 px jpeg, quality 20": jpegs(64, 20),
            "64 px jpeg, quality 5": jpegs(64, 5),
            "32 px raw": raw(32),
            "16 px raw": raw(16),
        },
        model_px=64,
        epochs=12,
        batch_size=32,
        crop=0.7,
    ),
    "digits": Data(
        words="scikit-learn's digits, a fifth for validation, small CNN at 32 px",
        write=write_digits,
        forms={
            "32 px raw": raw(32),
            "32 px raw, box": raw(32, filter="box"),
            "32 px raw, lanczos": raw(32, filter="lanczos"),
            "32 px planes": planes(32),
            "32 px jpeg, quality 90": jpegs(32),
            "32 px jpeg, quality 20": jpegs(32, 20),
            "32 px jpeg, quality 5": jpegs(32, 5),
            "16 px raw": raw(16),
            "8 px raw": raw(8),
            "4 px raw": raw(4),
        },
        model_px=32,
        epochs=15,
        batch_size=32,
        crop=0.7,
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", choices=list(DATA), default=list(DATA))
    parser.add_argument("--repeats", type=int, default=5, help="seeds")
    parser.add_argument("--rounds", type=int, default=5, help="of loading")
    parser.add_argument("--json", type=Path, default=RESULT)
    said = parser.parse_args()
    words = f"--data {' '.join(said.data)} --repeats {said.repeats} --rounds {said.rounds}"
    result: dict[str, Any] = {
        "command": f"python -m feedline.benchmarks.accuracy {words}",
        "host": describe_host(),
        "n": said.repeats,
        "rounds": said.rounds,
        "warm_up": "one epoch",
        "data": {name: measured(DATA[name], said.repeats, said.rounds) for name in said.data},
    }
    write_atomically(said.json, (json.dumps(result, indent=1) + "\n").encode())
    for name, found in result["data"].items():
        print(table(found["forms"]))
        chart(found, said.json.with_name(f"accuracy-{name}.png"))


def measured(data: Data, repeats: int, rounds: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="feedline-accuracy-") as scratch:
        folder = Path(scratch)
        data.write(folder / "pictures")
        places = {name: make(folder, number, output) for number, (name, output) in enumerate(data.forms.items())}
        top1: dict[str, list[float]] = {name: [] for name in places}
        for seed in range(repeats):
            for number, (name, place) in enumerate(places.items()):
                top1[name].append(trained(data, place, folder / f"run-{number}-{seed}", seed))
                say(f"seed {seed}, {name}: {top1[name][-1]:.2%}")
        loaded = rates(data, places, rounds)
        return {
            "words": data.words,
            "epochs": data.epochs,
            "forms": [row(name, top1, loaded, payload(places[name] / "train")) for name in places],
        }


def make(folder: Path, number: int, output: Output) -> Path:
    out = folder / str(number)
    source = folder / "pictures"
    fraction = None if (source / "train").exists() else 0.2
    prepare(PrepareConfig(source=str(source), out=str(out), outputs=(output,), val_fraction=fraction))
    return out


def payload(split: Path) -> float:
    """Mean bytes of a sample's image, without the tar around it."""
    sizes: list[int] = []
    for shard in sorted(split.glob("*.tar")):
        with tarfile.open(shard) as tar:
            sizes += [one.size for one in tar if one.name.endswith((".jpg", ".npy"))]
    return statistics.fmean(sizes)


def trained(data: Data, dataset: Path, run: Path, seed: int) -> float:
    """Top-1 after the last epoch."""
    config = TrainConfig(
        dataset=dataset, run=run, model="small_cnn", image_size=data.model_px, batch_size=data.batch_size,
        epochs=data.epochs, seed=seed, crop_scale=(data.crop, 1.0), flip=False, eval_ratio=1.0,
        eval_every=data.epochs, keep_last=0, tensorboard=False, num_workers=1,
    )  # fmt: skip
    return train(config)["epochs"][-1]["top1"]


def rates(data: Data, places: Mapping[str, Path], rounds: int) -> dict[str, list[float]]:
    """samples/s of each form by round: training crops, one worker, the second epoch."""
    found: dict[str, list[float]] = {name: [] for name in places}
    dice = random.Random(0)
    for number in range(rounds):
        for name in dice.sample(list(places), len(places)):
            loader = Loader(
                str(places[name] / "train"), batch_size=data.batch_size, image_size=data.model_px, train=True,
                num_workers=1, seed=number, augment=Augment(scale=(data.crop, 1.0), flip=0.0),
            )  # fmt: skip
            found[name].append(second_epoch(loader))
            loader.close()
        say(f"loading, round {number + 1}/{rounds}")
    return found


def second_epoch(loader: Any) -> float:
    """samples/s from the first batch to the last."""
    for _ in loader:
        pass
    loader.set_epoch(1)
    samples, began = 0, 0.0
    for images, _ in loader:
        if began:
            samples += len(images)
        else:
            began = time.perf_counter()
    return samples / (time.perf_counter() - began)


def row(
    name: str, top1: Mapping[str, Sequence[float]], loaded: Mapping[str, Sequence[float]], size: float
) -> dict[str, Any]:
    first = next(iter(top1))
    gaps = [mine - theirs for mine, theirs in zip(top1[name], top1[first], strict=True)]
    reach = student_t(len(gaps) - 1, 0.95) * statistics.stdev(gaps) / math.sqrt(len(gaps)) if len(gaps) > 1 else None
    gap = statistics.mean(gaps)
    speed = estimate([mine / theirs for mine, theirs in zip(loaded[name], loaded[first], strict=True)])
    return {
        "form": name,
        "bytes_per_sample": size,
        "top1": statistics.mean(top1[name]),
        "top1_by_seed": list(top1[name]),
        "difference": gap,
        "difference_low": None if reach is None else gap - reach,
        "difference_high": None if reach is None else gap + reach,
        "samples_per_s": statistics.median(loaded[name]),
        "samples_per_s_by_round": list(loaded[name]),
        "speed_up": speed.value,
        "speed_up_low": speed.low,
        "speed_up_high": speed.high,
    }


def table(forms: Sequence[Mapping[str, Any]]) -> str:
    lines = [f"{'form':26} {'bytes':>8} {'loaded':>8} {'top-1':>8}   difference to the first"]
    for one in forms:
        low, high = one["difference_low"], one["difference_high"]
        interval = "" if low is None else f" ({low:+.2%} to {high:+.2%})"
        speed = f"{one['speed_up']:.2f}×"
        lines.append(f"{one['form']:26} {one['bytes_per_sample']:>8,.0f} {speed:>8} {one['top1']:>8.2%}   "
                     f"{one['difference']:+.2%}{interval}")  # fmt: skip
    return "\n".join(lines)


def chart(found: Mapping[str, Any], path: Path) -> None:
    """Each form's difference in accuracy, with its interval, beside its loading rate."""
    forms = found["forms"]
    figure, _ = new_figure(9.0, 1.3 + 0.34 * len(forms))
    figure.clf()
    left, right = figure.subplots(1, 2, sharey=True, gridspec_kw={"width_ratios": (3, 2)})
    places = list(range(len(forms)))[::-1]
    for place, one in zip(places, forms, strict=True):
        low, high, value = one["difference_low"], one["difference_high"], one["difference"]
        reach = None if low is None else [[100 * (value - low)], [100 * (high - value)]]
        left.errorbar(100 * value, place, xerr=reach, fmt="o", color=BLUE, capsize=3)
        low, high, value = one["speed_up_low"], one["speed_up_high"], one["speed_up"]
        error = None if low is None else [[value - low], [high - value]]
        right.barh(place, value, xerr=error, color=GREY, capsize=3)
    left.axvline(0, color="#bbbbbb", linewidth=0.8)
    left.set_yticks(places, [one["form"] for one in forms])
    seeds = len(forms[0]["top1_by_seed"])
    left.set_xlabel(f"top-1, difference to the first form, percentage points\n(mean of {seeds} seeds, 95 % interval)")
    right.set_xlabel("loading rate, times that of the first form\n(median, 95 % interval)")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="x", color="#dddddd", linewidth=0.8)
        axes.set_axisbelow(True)
    save(figure, path)


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
