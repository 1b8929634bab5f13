"""Evaluation: every val sample counted exactly once over all ranks, top-1, top-5, loss, and a table per class.

Padded samples carry label −1 and count for nothing. Each rank counts its own batches; one sum at the end joins them,
so a rank never waits for another inside the loop.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from feedline.train.distributed import World
from feedline.train.line_profile import profile
from feedline.train.models import main_output


@dataclass(frozen=True, kw_only=True)
class ClassResult:
    name: str
    samples: int
    top1: float | None
    """None for a class without a sample."""
    top5: float | None


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    samples: int
    loss: float
    top1: float
    top5: float
    classes: list[ClassResult]


class Tally:
    """Counts on the device: per class samples, correct within 1, correct within 5; and the summed loss."""

    def __init__(self, classes: int, device: torch.device) -> None:
        self.counts_3C = torch.zeros(3, classes, dtype=torch.int64, device=device)
        self.loss_sum = torch.zeros((), dtype=torch.float64, device=device)
        self._first = min(5, classes)

    def add(self, logits_NC: Tensor, labels_N: Tensor) -> None:
        real_N = labels_N >= 0
        logits_NC, labels_N = logits_NC.float(), labels_N.clamp(min=0)
        best_N5 = logits_NC.topk(self._first, dim=1).indices
        hit_N5 = (best_N5 == labels_N[:, None]) & real_N[:, None]
        found_3N = torch.stack([real_N, hit_N5[:, 0], hit_N5.any(dim=1)]).long()
        self.counts_3C.index_add_(1, labels_N, found_3N)
        self.loss_sum += (F.cross_entropy(logits_NC, labels_N, reduction="none") * real_N).sum()


@profile
def evaluate(model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], world: World, names: list[str],
             amp_dtype: torch.dtype | None) -> Evaluation:  # fmt: skip
    """`model` is left in the mode it was in. Logits that are not finite count as wrong."""
    tally = Tally(len(names), world.device)
    mode = model.training
    model.eval()
    with torch.inference_mode(), torch.autocast(world.device.type, amp_dtype, enabled=amp_dtype is not None):
        for images_NCHW, labels_N in batches:
            tally.add(main_output(model(images_NCHW)), labels_N)
    model.train(mode)
    counts_3C = world.sum(tally.counts_3C)
    loss_sum = world.sum(tally.loss_sum)
    return _summarise(counts_3C, float(loss_sum), names)


def _summarise(counts_3C: Tensor, loss_sum: float, names: list[str]) -> Evaluation:
    total, first, fifth = (int(count) for count in counts_3C.sum(dim=1))
    rows = counts_3C.T.tolist()
    return Evaluation(
        samples=total,
        loss=loss_sum / max(total, 1),
        top1=first / max(total, 1),
        top5=fifth / max(total, 1),
        classes=[
            ClassResult(name=name, samples=n, top1=one / n if n else None, top5=five / n if n else None)
            for name, (n, one, five) in zip(names, rows, strict=True)
        ],
    )
