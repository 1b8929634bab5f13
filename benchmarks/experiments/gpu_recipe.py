"""What each step of the training recipe gives: channels_last, bf16, both, cuDNN's own search, torch.compile.

    python -m feedline.benchmarks.experiments.gpu_recipe OUT [--model mobilenet_v2 --image-size 224 --batch-size 256
        --rounds 2 --steps 60 --only … --device auto]

Training on cached batches (data is free), each variant in a process of its own, in rounds of random order; gains are
over `as it is` within a round. Written after every window. Writes results/gpu-recipe.json.
"""

import tempfile
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from feedline.benchmarks.experiments.harness import apart, end_with, options, say, show, spread, write
from feedline.benchmarks.experiments.train_overhead import cached_batches, window_bare
from feedline.benchmarks.measure.rounds import rounds
from feedline.benchmarks.variants import find_train
from feedline.pipeline.base.errors import FeedlineError
from feedline.train.checkpoint import Checkpoints
from feedline.train.config import TrainConfig
from feedline.train.distributed import joined
from feedline.train.run import Run

AS_IS = "as it is"
PLAIN: dict[str, Any] = {"amp": "none", "channels_last": False, "compile": False}
BOTH: dict[str, Any] = {**PLAIN, "amp": "bf16", "channels_last": True}
VARIANTS: dict[str, tuple[dict[str, Any], bool]] = {
    AS_IS: (PLAIN, False),
    "channels_last": ({**PLAIN, "channels_last": True}, False),
    "bf16": ({**PLAIN, "amp": "bf16"}, False),
    "both": (BOTH, False),
    "both, cudnn.benchmark": (BOTH, True),
    "both, compiled": ({**BOTH, "compile": True}, False),
}
"""Settings of a training, and whether cuDNN searches for the fastest of its kernels."""
WARM_UP = 10


def main() -> None:
    given = options(__doc__, "gpu-recipe.json", "dataset", model="mobilenet_v2", image_size=224, batch_size=256,
                    rounds=2, steps=60, device="auto", only=tuple(VARIANTS))  # fmt: skip
    rates: dict[str, dict[int, float]] = {}
    failed: dict[str, str] = {}
    about = {"model": given.model, "image_size_px": given.image_size, "batch_size": given.batch_size,
             "warm_up_steps": WARM_UP, "steps": given.steps, "baseline": AS_IS}  # fmt: skip
    for number, name in rounds(given.only, given.rounds):
        if name in failed:
            continue
        try:
            rates.setdefault(name, {})[number] = apart(rate, *arguments(given), *VARIANTS[name])
            say(f"{number + 1}/{given.rounds} {name}: {rates[name][number]:,.0f} samples/s")
        except FeedlineError as error:
            failed[name] = str(error)
        write(given.out, {**about, **figures(rates), "failed": failed})
    found = figures(rates)
    show(("recipe", "samples/s", "gain"), [(name, f"{one['samples_per_s']['median']:,.0f}", f"{one['gain'] or 0:.2f}")
                                           for name, one in found["variants"].items()])  # fmt: skip


def arguments(given: Namespace) -> tuple[Any, ...]:
    folder = find_train(given.dataset).parent
    return str(folder), given.model, given.image_size, given.batch_size, given.steps, given.device


def rate(dataset: str, model: str, px: int, batch: int, steps: int, device: str, settings: dict[str, Any],
         search: bool) -> float:  # fmt: skip
    """samples/s, in a process of its own."""
    torch.backends.cudnn.benchmark = search
    config = TrainConfig(
        dataset=Path(dataset), model=model, image_size=px, batch_size=batch, epochs=1, steps=steps, eval_every=0,
        keep_last=0, tensorboard=False, policy="wrap", device=device, **settings,
    )  # fmt: skip
    with joined(config) as world:
        run = Run(config, world, Checkpoints(Path(tempfile.mkdtemp())), lambda _: None)
        batches = cached_batches(run)
        window_bare(run, batches, WARM_UP)
        spent_s, _ = window_bare(run, batches, steps)
        run.close()
    return steps * batch / spent_s


def figures(rates: Mapping[str, Mapping[int, float]]) -> dict[str, Any]:
    """Gains over AS_IS in the same round."""
    base = rates.get(AS_IS, {})
    found: dict[str, Any] = {}
    for name, by_round in rates.items():
        if not by_round:
            continue
        gains = sorted(rate / base[number] for number, rate in by_round.items() if number in base)
        gain = gains[len(gains) // 2] if gains else None
        found[name] = {"samples_per_s": spread(list(by_round.values())), "gain": gain, "gains": gains}
    return {"variants": found}


if __name__ == "__main__":
    end_with(main)
