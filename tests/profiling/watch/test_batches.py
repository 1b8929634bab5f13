"""Any structure of a batch, any size of it."""

from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.profiling.watch.batches import describe, sizes, tensors

IMAGES, LABELS = np.zeros((4, 2, 2, 3), np.uint8), np.zeros(4, np.int64)
Pair = namedtuple("Pair", "x y")


class Bag:
    """Like a tokenizer's or torch_geometric's batch: attributes, and indexable."""

    def __init__(self) -> None:
        self.x = IMAGES

    def __getitem__(self, key: str) -> Any:
        return getattr(self, key)


@dataclass
class Whole:
    pictures: Any
    labels: Any


@pytest.mark.parametrize(
    ("batch", "samples", "size"),
    [
        (IMAGES, 4, 48),
        ([IMAGES, LABELS], 4, 80),
        ((IMAGES, LABELS), 4, 80),
        ({"image": IMAGES, "label": LABELS}, 4, 80),
        (Pair(IMAGES, LABELS), 4, 80),
        ([{"a": [IMAGES]}, LABELS], 4, 80),
        (Bag(), 4, 48),
        (Whole(IMAGES, LABELS), 4, 80),
        ([np.float32(3), IMAGES], 4, 52),
        ([["a", "b", "c"], [1, 2, 3]], 3, 0),
        (["a", "b"], 2, 0),
        ("text", None, 0),
        (None, None, 0),
        ([], None, 0),
        (ValueError("x"), None, 0),
    ],
)
def test_samples_and_bytes(batch: Any, samples: int | None, size: int) -> None:
    assert sizes(batch) == (samples, size)


def pictures(count: int) -> list[Any]:
    return [np.zeros((3, 40 + number, 50), np.float32) for number in range(count)]


BOXES = [{"boxes": np.zeros((number + 1, 4)), "labels": np.zeros(number + 1)} for number in range(6)]
CROPS = [[np.zeros((8, 3, 4, 4))] * 2 + [np.zeros((8, 3, 2, 2))] * 4, np.zeros(8)]


@pytest.mark.parametrize(
    ("batch", "batch_size", "samples"),
    [
        ((tuple(pictures(6)), tuple(BOXES)), 6, 6),  # torchvision's detection
        ((tuple(pictures(5)), tuple(BOXES[:5])), 6, 5),  # and its last batch
        ([(picture, 1) for picture in pictures(6)], 6, 6),  # collate_fn=list
        ([(np.int64(1), picture) for picture in pictures(5)], 6, 5),
        (pictures(6), None, 6),
        ([{"image": picture, "id": np.int64(7)} for picture in pictures(6)], None, 6),  # detectron2's
        ([object(), tuple(BOXES)], 6, 6),  # DETR's
        (CROPS, 8, 8),
        (CROPS, 16, 8),
        (CROPS, None, 8),
        ([IMAGES, LABELS], 16, 4),
        ([np.zeros((3, 128, 64)), np.zeros((3, 7))], 8, 3),  # three of a series
    ],
)
def test_samples_one_by_one_are_counted_by_their_list(batch: Any, batch_size: int | None, samples: int) -> None:
    assert sizes(batch, batch_size)[0] == samples


class Raising:
    dtype = "float32"

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name == self._name:
            raise RuntimeError(f"no {name}")
        return {"shape": (4, 2), "nbytes": 32}[name]


def test_what_a_batch_raises_goes_no_further() -> None:
    assert sizes([Raising("shape"), LABELS]) == (4, 32)
    assert sizes([Raising("nbytes"), LABELS]) == (4, 32)
    assert sizes(Raising("shape")) == (None, 0)
    assert describe([Raising("nbytes")])["batch_shapes"] == [[4, 2]]
    assert describe([Raising("dtype"), LABELS])["batch_bytes"] == 64


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_tensors_that_are_sparse_nested_or_jagged() -> None:
    torch = pytest.importorskip("torch")
    rows = [torch.ones(2, 3), torch.ones(1, 3)]
    for batch in (
        torch.eye(2).to_sparse(),
        torch.nested.nested_tensor(rows),
        torch.nested.nested_tensor(rows, layout=torch.jagged),
    ):
        assert sizes([batch, torch.zeros(2)])[0] == 2
        assert describe([batch, torch.zeros(2)])["batch_bytes"] >= 8


def test_a_huge_structure_is_cut() -> None:
    visits = 0

    class Counted:
        @property
        def shape(self) -> Any:
            nonlocal visits
            visits += 1
            raise AttributeError

    assert tensors([[[Counted()] * 1000] * 1000] * 1000) == []
    assert visits < 200


def test_describes_what_predictions_need() -> None:
    told = describe([IMAGES, LABELS])
    assert told["batch_dtypes"] == ["uint8", "int64"]
    assert told["batch_shapes"] == [[4, 2, 2, 3], [4]]
    assert told["batch_bytes"] == 80
    assert told["batch_tensors"] == 0, "nor are arrays sent one by one"


def test_tensors_are_counted_where_others_are_cut() -> None:
    torch = pytest.importorskip("torch")
    apart = {
        "lead": [[torch.zeros(20) for _ in range(600)] for _ in range(3)],
        "age": torch.zeros(20),
        "names": ["a"] * 20,
    }
    assert describe(apart)["batch_tensors"] == 1801
    assert describe([torch.zeros(2), [0.5] * 1_000_000])["batch_tensors"] == 1
    assert 64 < describe([torch.zeros(2) for _ in range(5000)])["batch_tensors"] <= 4096
    assert describe([torch.zeros(2)] * 9)["batch_tensors"] == 1, "sent once"


@given(
    st.recursive(
        st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_never_raises(batch: Any) -> None:
    assert sizes(batch)[1] == 0
