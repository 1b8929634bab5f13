from collections.abc import Iterator

import torch
from torch import Tensor, nn

from feedline.train.distributed import World
from feedline.train.evaluate import evaluate

ALONE = World(rank=0, world_size=1, local_world_size=1, device=torch.device("cpu"))


class Echo(nn.Module):
    """Takes logits for images."""

    def forward(self, logits: Tensor) -> Tensor:
        assert not self.training
        return logits


def batches() -> Iterator[tuple[Tensor, Tensor]]:
    # 7 classes; the label's logit is best, second, seventh
    best = torch.tensor([9.0, 1, 2, 3, 4, 5, 6])
    second = torch.tensor([9.0, 10, 2, 3, 4, 5, 6])
    last = torch.tensor([0.0, 1, 2, 3, 4, 5, 6])
    yield torch.stack([best, second]), torch.tensor([0, 0])
    yield torch.stack([last, best]), torch.tensor([0, -1])  # the last is padding


def test_top1_top5_and_padding() -> None:
    model = Echo()
    found = evaluate(model, batches(), ALONE, [f"c{label}" for label in range(7)], None)
    assert model.training
    assert found.samples == 3
    assert found.top1 == 1 / 3
    assert found.top5 == 2 / 3
    assert found.classes[0]["samples"] == 3 and found.classes[0]["top1"] == 1 / 3
    assert found.classes[1]["top1"] is None
    expected = nn.functional.cross_entropy(
        torch.cat([images for images, _ in batches()])[:3], torch.tensor([0, 0, 0]), reduction="mean"
    )
    assert abs(found.loss - float(expected)) < 1e-5


def test_fewer_than_five_classes() -> None:
    logits = torch.tensor([[1.0, 2, 3], [1, 2, 3]])
    found = evaluate(Echo(), [(logits, torch.tensor([0, 2]))], ALONE, ["a", "b", "c"], None)
    assert (found.top1, found.top5) == (0.5, 1.0)


def test_logits_that_are_not_finite_are_wrong_whatever_the_label() -> None:
    logits = torch.tensor([[float("nan")] * 3] * 3 + [[float("inf"), 0, 0], [1.0, 0, 0]])
    found = evaluate(Echo(), [(logits, torch.tensor([0, 1, 2, 0, 0]))], ALONE, ["a", "b", "c"], None)
    assert (found.samples, found.top1, found.top5) == (5, 0.2, 0.2)
