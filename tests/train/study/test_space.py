"""A sweep's space: what a file may say, and the line of what it may not."""

from pathlib import Path
from typing import Any

import pytest

from feedline.pipeline.base.errors import UsageError
from feedline.train.config import TrainConfig
from feedline.train.study.space import Choices, Range, Space, read_space


def read(tmp_path: Path, text: str, **options: Any) -> Space:
    (tmp_path / "space.toml").write_text(text)
    return read_space(tmp_path / "space.toml", TrainConfig(dataset=Path("OUT"), **options))


def test_numbers_choices_and_lists(tmp_path: Path) -> None:
    space = read(
        tmp_path,
        """
        [lr]
        low = 1e-3
        high = 1
        log = true
        [batch-size]
        low = 16
        high = 64
        [model]
        choices = ["small_cnn", "resnet18"]
        [widths]
        choices = [[6, 16], [8, 32]]
        [flip]
        choices = [true, false]
        """,
    )
    assert space == {
        "lr": Range(low=1e-3, high=1.0, log=True),
        "batch_size": Range(low=16, high=64, whole=True),
        "model": Choices(values=("small_cnn", "resnet18")),
        "widths": Choices(values=((6, 16), (8, 32))),
        "flip": Choices(values=(True, False)),
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("[lr]\nlow = x", "line 2"),
        ("\n[lrr]\nlow = 1\nhigh = 2", r"line 2: \[lrr\] is no setting .* is lr meant"),
        ("[run]\nchoices = ['a']", "changes nothing that is learned"),
        ("lr = 3", "line 1: .* low and high"),
        ("[[lr]]\nlow = 1", "low and high"),
        ("[lr]\nlow = 1", "needs both"),
        ("[seed]\nhigh = 2\nlow = 1\nlog = 3", "true or false"),
        ("# space\n[lr]\nlow = 2\nhigh = 1", r"line 2: \[lr\] low 2.0 must be below high 1.0"),
        ("[lr]\nlow = 0.0\nhigh = 1", "at least"),
        ("[momentum]\nlow = 0.0\nhigh = 1.0\nlog = true", "above 0"),
        ("[momentum]\nlow = 0.1\nhigh = nan", "nan"),
        ("[seed]\nlow = 1\nhigh = 2.5", "2.5 is not of the kind .* int"),
        ("[lr]\nlow = 1\nhigh = 2\nsteps = 3", "nothing else"),
        ("[lr]\nlow = 1\nchoices = [3]", "nothing else"),
        ("[model]\nlow = 1\nhigh = 2", "give choices"),
        ("[amp]\nchoices = ['bf16', 'fp8']", "fp8.*bf16"),
        ("[batch_size]\nchoices = [32, 32]", "twice"),
        ("[batch_size]\nchoices = 32", "a list"),
        ("[widths]\nchoices = [[6]]", "kind"),
        ("[crop_scale]\nchoices = [[0.5, 0.1]]", "from and to"),
    ],
)
def test_what_cannot_be_searched_is_named_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as refused:
        read(tmp_path, text)
    assert "\n" not in str(refused.value)


def test_what_is_fixed_by_an_option_is_not_searched(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"fixed by --lr 0.1"):
        read(tmp_path, "[lr]\nlow = 0.1\nhigh = 1", lr=0.1)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read_space(tmp_path / "none.toml", TrainConfig(dataset=Path("OUT")))


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        ("[batch_size]\nlow = 8\nhigh = 16", {"global_batch": 32}, r"\[batch_size\] changes nothing"),
        ("[batch_size]\nlow = 8\nhigh = 16\n[global_batch]\nchoices = [32, 64]", {}, r"\[batch_size\] changes"),
        ("[global_batch]\nlow = 32\nhigh = 64", {}, "give choices, not a range"),
    ],
)
def test_what_a_global_batch_rules_out(tmp_path: Path, text: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        read(tmp_path, text, **options)
