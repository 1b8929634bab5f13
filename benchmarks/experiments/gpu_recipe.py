"""What each step of the training recipe gives: channels_last, bf16, both, cuDNN's own search, torch.compile.

    python -m feedline.benchmarks.experiments.gpu_recipe OUT [--model mobilenet_v2 --image-size 224 --batch-size 256
        --rounds 2 --steps 60 --only … --device auto]

Training on cached batches (data is free), each variant in a process of its own, in rounds of random order; gains are
over `as it is` within a round. Written after every window. Writes results/gpu-recipe.json.
"""

from argparse import Namespace
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch

from feedline.benchmarks.experiments.harness import apart, column, end_with, in_rounds, options, show, spread, write
from feedline.benchmarks.experiments.train_overhead import cached_batches, opened, short_training, window_bare
from feedline.benchmarks.variants import find_train

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
    given.dataset = find_train(given.dataset).parent
    failed: dict[str, str] = {}
    about = {"model": given.model, "image_size_px": given.image_size, "batch_size": given.batch_size,
             "warm_up_steps": WARM_UP, "steps": given.steps, "baseline": AS_IS}  # fmt: skip
    cells = {name: partial(apart, rate, vars(given), *VARIANTS[name]) for name in given.only}
    by_round = in_rounds(
        cells, given.rounds, "{:,.0f} samples/s".format, failed=failed,
        told=lambda by_round: write(given.out, {**about, **figures(by_round), "failed": failed}),
    )  # fmt: skip
    show(("recipe", "samples/s", "gain"), [(name, f"{one['samples_per_s']['median']:,.0f}", f"{one['gain'] or 0:.2f}")
                                           for name, one in figures(by_round)["variants"].items()])  # fmt: skip


def rate(asked: dict[str, Any], settings: dict[str, Any], search: bool) -> float:
    """samples/s, in a process of its own."""
    torch.backends.cudnn.benchmark = search
    given = Namespace(**asked)
    with opened(short_training(given, given.steps, device=given.device, **settings)) as run:
        batches = cached_batches(run)
        window_bare(run, batches, WARM_UP)
        spent_s, _ = window_bare(run, batches, given.steps)
    return given.steps * given.batch_size / spent_s


def figures(by_round: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Gains over AS_IS in the same round."""
    found: dict[str, Any] = {}
    for name in dict.fromkeys(name for one in by_round for name in one):
        gains = sorted(one[name] / one[AS_IS] for one in by_round if {name, AS_IS} <= one.keys())
        gain = gains[len(gains) // 2] if gains else None
        found[name] = {"samples_per_s": spread(column(by_round, name)), "gain": gain, "gains": gains}
    return {"variants": found}


if __name__ == "__main__":
    end_with(main)
