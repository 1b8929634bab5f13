"""Options and settings: one for each field, with its default and its docstring."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from feedline.benchmarks.comparison import CompareConfig
from feedline.benchmarks.ladder import LadderConfig
from feedline.benchmarks.plan import PlanInputs
from feedline.benchmarks.tune import TuneConfig
from feedline.cli import compare, ladder, plan, prepare, profile, prune, slurm, sweep, synth, train, tune
from feedline.cli.main import app
from feedline.cli.options import REQUIRED, Options, Settings, command
from feedline.pipeline.base.errors import UsageError
from feedline.pipeline.base.settings import TINY
from feedline.preprocess.config import PrepareConfig
from feedline.preprocess.picture import Output
from feedline.preprocess.synth.inventory import SynthConfig
from feedline.profiling.record.journal import StudyConfig
from feedline.train.config import TrainConfig
from feedline.train.slurm import SlurmConfig
from feedline.train.study.crew import CrewConfig
from feedline.train.study.prune import PruneConfig
from feedline.train.study.sweep import SweepConfig


@dataclass(frozen=True)
class Mirror:
    """Options of a verb and the dataclass they are made from."""

    options: Options
    dataclass: type
    otherwise: frozenset[str] = frozenset()
    """Fields whose option is written in another way, and read by the verb."""


MIRRORS = {
    "train": Mirror(train.OPTIONS, TrainConfig),
    "slurm": Mirror(slurm.OPTIONS, SlurmConfig),
    "sweep": Mirror(sweep.OPTIONS, SweepConfig, frozenset(("space", "study"))),
    "crew": Mirror(sweep.CREW, CrewConfig),
    "synth": Mirror(synth.OPTIONS, SynthConfig),
    "prepare": Mirror(prepare.JOB, PrepareConfig, frozenset(("outputs", "shard_bytes"))),
    "picture": Mirror(prepare.PICTURE, Output),
    "profile": Mirror(profile.OPTIONS, StudyConfig, frozenset(("legs",))),
    "compare": Mirror(compare.OPTIONS, CompareConfig),
    "tune": Mirror(tune.OPTIONS, TuneConfig),
    "plan": Mirror(plan.OPTIONS, PlanInputs),
    "ladder": Mirror(ladder.OPTIONS, LadderConfig),
    "prune": Mirror(prune.OPTIONS, PruneConfig),
}


def given(options: Options, *words: str) -> Settings:
    """What a verb with these options gets."""
    seen: list[Settings] = []

    def verb(settings: Annotated[Settings, options]) -> None:
        seen.append(settings)

    verb.__annotations__["settings"] = Annotated[Settings, options]
    result = CliRunner().invoke(_app(command(verb)), words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return seen[0]


def _app(verb: Callable[..., None]) -> typer.Typer:
    made = typer.Typer()
    made.command()(verb)
    return made


@pytest.mark.parametrize("name", MIRRORS)
def test_a_default_is_the_field_s_own(name: str) -> None:
    mirror = MIRRORS[name]
    arguments = [option.field for option in mirror.options if option.default is REQUIRED]
    settings = given(mirror.options, *arguments)
    for field, value in settings.items():
        if field not in {*arguments, *mirror.otherwise}:
            assert value == default_of(mirror.dataclass, field), field


@pytest.mark.parametrize(("option", "words"), [("--epochs", "OUT"), ("--widths", "OUT"), ("--eval-ratio", "OUT")])
def test_a_limit_that_a_field_states_is_its_option_s(option: str, words: str) -> None:
    """A list has it too, where the settings are made; and the help shows that of a number."""
    done = CliRunner().invoke(app, ["train", words, option, "0,0" if option == "--widths" else "-1"])
    assert done.exit_code and option in f"{done.output}{done.exception}"
    ranges = {option.field: (option.more.get("min"), option.more.get("max")) for option in train.OPTIONS}
    assert (ranges["epochs"], ranges["eval_ratio"], ranges["model"]) == ((1, None), (TINY, 1), (None, None))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["prepare", "SRC", "OUT", "--shard-size", "0"], "--shard-size 0: at least"),
        (["gpu-check", "--image-size", "0"], "--image-size 0: at least"),
        (["gpu-check", "--num-workers", "1,99999"], "--num-workers 1,99999: at most 4,096"),
        (["plan", "--gpu-rate", "9", "--bandwidth", "0"], "--bandwidth '0': storage that gives nothing"),
    ],
)
def test_a_refusal_names_the_option_as_it_is_written(words: list[str], said: str) -> None:
    done = CliRunner().invoke(app, words)
    assert done.exit_code and said in f"{done.output}{done.exception}"


def default_of(kind: type, field: str) -> Any:
    declared = kind.__dataclass_fields__[field]  # type: ignore[attr-defined]
    return declared.default_factory() if callable(declared.default_factory) else declared.default


def test_a_size_that_is_written_with_a_unit_is_the_default_too() -> None:
    from feedline.preprocess.config import parse_bytes

    assert parse_bytes(given(prepare.JOB, "IN", "OUT")["shard_bytes"]) == PrepareConfig(source="", out="").shard_bytes


def test_every_field_of_training_has_a_docstring_and_an_option() -> None:
    shown = CliRunner().invoke(app, ["train", "--help"], env={"COLUMNS": "200"})
    assert shown.exit_code == 0
    options = {option.field: option for option in train.OPTIONS}
    for name in TrainConfig.__dataclass_fields__:
        assert options[name].more["help"].endswith("."), name
        if name != "dataset":
            assert f"--{name.replace('_', '-')}" in shown.output


def test_the_command_line_makes_the_configuration() -> None:
    words = ["OUT", "--model", "small_cnn", "--widths", "8,32", "--progressive", "0:32,2:64", "--keep-epochs", "0,2"]
    words += ["--no-augment", "--amp", "bf16", "--crop-scale", "0.5,1", "--run", "R"]
    assert TrainConfig(**given(train.OPTIONS, *words)) == TrainConfig(
        dataset=Path("OUT"), model="small_cnn", widths=(8, 32), progressive=((0, 32), (2, 64)), keep_epochs=(0, 2),
        augment=False, amp="bf16", crop_scale=(0.5, 1.0), run=Path("R"),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "word"),
    [("widths", "6"), ("widths", "a,b"), ("progressive", "128"), ("progressive", "1:2:3"), ("mean", "1,2")],
)
def test_a_list_that_cannot_be_read_shows_how_to_write_it(name: str, word: str) -> None:
    with pytest.raises(UsageError, match=f"--{name} '{word}': write it as"):
        given(train.OPTIONS, "OUT", f"--{name}", word)


def test_the_axes_of_compare_are_lists_of_numbers_switches_and_words() -> None:
    words = ["--num-workers", "0, 1,2", "--pin-memory", "true,off", "--codec", "jpeg,raw"]
    settings = given(compare.AXIS_OPTIONS, *words)
    assert settings["num_workers"] == (0, 1, 2) and settings["pin_memory"] == (True, False)
    assert settings["codec"] == ("jpeg", "raw") and settings["batch_size"] == (64,) and settings["size"] is None
    for name, word, usual in (("num-workers", "1,x", "1,2,4"), ("pin-memory", "true,maybe", "true,false")):
        with pytest.raises(UsageError, match=f"--{name} '{word}': write it as {usual}"):
            given(compare.AXIS_OPTIONS, f"--{name}", word)


def test_words_of_repeated_options_become_tuples_and_mappings() -> None:
    words = ["IN", "OUT", "--conf", "a=1", "--conf", "b=x=y", "--source-option", "labels=words"]
    settings = given(prepare.JOB, *words, "--storage-option", "anon=true")
    assert settings["spark"] == {"a": "1", "b": "x=y"}
    assert settings["source_options"] == {"labels": "words"} and settings["storage_options"] == {"anon": True}
    assert given(slurm.OPTIONS, "OUT", "--setup", "module load x", "--setup", "y")["setup"] == ("module load x", "y")
    with pytest.raises(UsageError, match="--conf 'a' is not KEY=VALUE"):
        given(prepare.JOB, "IN", "OUT", "--conf", "a")


@pytest.mark.parametrize(
    ("words", "said"),
    [(["--epoch", "3"], "--epoch"), (["--epochs", "x"], "valid integer"), (["--keep-last", "-1"], "equal to 0"),
     (["more"], "more"), (["--epochs"], "--epochs")],
)  # fmt: skip
def test_words_that_training_does_not_take_are_found(words: list[str], said: str) -> None:
    slurm.check_words("train", ["OUT", "--no-augment", "--lr=3", "--num-workers", "auto", "--config", "missing.json"])
    with pytest.raises(UsageError, match=f"`feedline train`, to .*{said}"):
        slurm.check_words("train", ["OUT", *words])


def test_the_budget_of_gpu_check_says_what_it_bounds() -> None:
    shown = CliRunner().invoke(app, ["gpu-check", "--help"], env={"COLUMNS": "200"})
    assert "Seconds for the windows; imports and small shards that are made come before." in shown.output
