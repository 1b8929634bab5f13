from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from feedline.pipeline.base.errors import UsageError
from feedline.train.config import TrainConfig
from feedline.train.options import build_config, command, field_docs, unknown_options


def config(**options: Any) -> TrainConfig:
    return TrainConfig(dataset=Path("OUT"), **options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"epochs": 0}, "--epochs 0"),
        ({"batch_size": -1}, "--batch-size -1"),
        ({"lr": 0.0}, "--lr 0.0"),
        ({"lr": float("nan")}, "--lr nan"),
        ({"lr": float("inf")}, "--lr inf"),
        ({"momentum": float("nan")}, "--momentum nan"),
        ({"warmup_epochs": float("nan")}, "--warmup-epochs nan"),
        ({"mean": (0.5, float("nan"), 0.5)}, "--mean"),
        ({"threads": 10**11}, "--threads 100000000000"),
        ({"widths": (6, 10**12)}, "--widths"),
        ({"seed": -1}, "--seed -1"),
        ({"seed": 2**64}, "--seed"),
        ({"target_top1": 90.0}, "--target-top1 90.0"),
        ({"progressive": ((4, 128), (2, 160))}, "epochs must rise"),
        ({"keep_epochs": (11,), "epochs": 10}, "--keep-epochs"),
        ({"crop_scale": (0.5, 0.2)}, "--crop-scale"),
        ({"device": "tpu"}, "--device 'tpu'"),
        ({"device": "cudax"}, "--device 'cudax'"),
        ({"device": "cuda:x"}, "--device 'cuda:x'"),
        ({"std": (0.2, 0.0, 0.2)}, "--std"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        config(**options)


def test_progressive_sizes_hold_until_the_next() -> None:
    sizes = config(progressive=((0, 128), (3, 160), (5, 224)), image_size=64)
    assert [sizes.image_size_at(epoch) for epoch in range(7)] == [128, 128, 128, 160, 160, 224, 224]
    assert config(progressive=((2, 160),), image_size=64).image_size_at(1) == 64


def test_every_field_has_a_docstring_and_an_option() -> None:
    seen: list[TrainConfig] = []
    app = _app(seen)
    shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"})
    assert shown.exit_code == 0
    for name in TrainConfig.__dataclass_fields__:
        assert field_docs()[name].endswith("."), name
        if name != "dataset":
            assert f"--{name.replace('_', '-')}" in shown.output


def test_the_command_line_makes_the_configuration() -> None:
    seen: list[TrainConfig] = []
    words = ["OUT", "--model", "small_cnn", "--widths", "8,32", "--progressive", "0:32,2:64", "--keep-epochs", "0,2"]
    words += ["--no-augment", "--amp", "bf16", "--crop-scale", "0.5,1", "--run", "R"]
    result = CliRunner().invoke(_app(seen), words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert seen == [
        config(model="small_cnn", widths=(8, 32), progressive=((0, 32), (2, 64)), keep_epochs=(0, 2), augment=False,
               amp="bf16", crop_scale=(0.5, 1.0), run=Path("R"))
    ]  # fmt: skip


def test_the_command_line_s_defaults_are_the_configuration_s() -> None:
    seen: list[TrainConfig] = []
    CliRunner().invoke(_app(seen), ["OUT"], catch_exceptions=False)
    assert seen == [config()]


@pytest.mark.parametrize(
    ("name", "word"), [("widths", "6"), ("widths", "a,b"), ("progressive", "128"), ("mean", "1,2")]
)
def test_a_list_that_cannot_be_read_shows_how_to_write_it(name: str, word: str) -> None:
    with pytest.raises(UsageError, match=f"--{name} '{word}': write it as"):
        build_config({"dataset": Path("OUT"), name: word})


def test_unknown_options_are_found() -> None:
    assert unknown_options(["OUT", "--epochs", "3", "--no-augment", "--epoch", "--lr=3"]) == ["--epoch"]


def _app(seen: list[TrainConfig]) -> Any:
    import typer

    app = typer.Typer()
    app.command()(command(seen.append))
    return app
