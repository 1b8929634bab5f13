"""Evaluation: every val sample counted exactly once over all ranks, top-1, top-5, loss, and a table per class.

Padded samples carry label −1 and count for nothing. Each rank counts its own batches; one sum at the end joins them,
so a rank never waits for another inside the loop.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from feedline.train.distributed import World
from feedline.train.line_profile import profile


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    samples: int
    loss: float
    top1: float
    top5: float
    classes: list[dict[str, Any]]
    """name, samples, top1 and top5 of each; None for a class without a sample."""


@profile
def evaluate(model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], world: World, names: list[str],
             amp_dtype: torch.dtype | None) -> Evaluation:  # fmt: skip
    """`model` is left in the mode it was in. Logits that are not finite count as wrong."""
    counts_3C = torch.zeros(3, len(names), dtype=torch.int64, device=world.device)
    """Per class: samples, correct within 1, correct within 5. Counted on the device: no batch waits for a number."""
    loss_sum = torch.zeros((), dtype=torch.float64, device=world.device)
    mode = model.training
    model.eval()
    with torch.inference_mode(), torch.autocast(world.device.type, amp_dtype, enabled=amp_dtype is not None):
        for images_NCHW, labels_N in batches:
            real_N, class_N = labels_N >= 0, labels_N.clamp(min=0)
            logits_NC = model(images_NCHW).float()
            best_N5 = logits_NC.topk(min(5, len(names)), dim=1).indices
            right_N = real_N & logits_NC.isfinite().all(dim=1)
            hit_N5 = (best_N5 == class_N[:, None]) & right_N[:, None]
            counts_3C.index_add_(1, class_N, torch.stack([real_N, hit_N5[:, 0], hit_N5.any(dim=1)]).long())
            loss_sum += (F.cross_entropy(logits_NC, class_N, reduction="none") * real_N).sum()
    model.train(mode)
    counts_3C, loss_sum = world.sum(counts_3C), world.sum(loss_sum)
    total, first, fifth = (int(count) for count in counts_3C.sum(dim=1))
    return Evaluation(
        samples=total,
        loss=float(loss_sum) / max(total, 1),
        top1=first / max(total, 1),
        top5=fifth / max(total, 1),
        classes=[
            {"name": name, "samples": n, "top1": one / n if n else None, "top5": five / n if n else None}
            for name, (n, one, five) in zip(names, counts_3C.T.tolist(), strict=True)
        ],
    )
