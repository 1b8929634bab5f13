"""`feedline sweep`: many trainings that look for the best settings."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

from feedline.cli.board import carry_out, tell
from feedline.cli.common import Record
from feedline.cli.options import Options, Settings, command, fields
from feedline.cli.study_page import sweep_page
from feedline.cli.train import OPTIONS as TRAIN_OPTIONS
from feedline.pipeline.base.errors import UsageError
from feedline.pipeline.base.process import signals_held
from feedline.train.config import TrainConfig

TRAINING = Options(
    replace(option, default=1) if option.field == "keep_last" else option
    for option in TRAIN_OPTIONS
    if option.field not in ("run", "resume")  # each trial has its own
)
MUST = {"hint": Path | None, "default": None}
OPTIONS = fields("train.study.sweep.SweepConfig", space=MUST, study=MUST)
CREW = fields("train.study.crew.CrewConfig")


@command
def sweep(
    options: Annotated[Settings, OPTIONS],
    crew: Annotated[Settings, CREW],
    config: Annotated[Settings, TRAINING],
    record: Record,
) -> None:
    """Search for the best settings of a training; give what is not searched as options of `feedline train`.

    Example: feedline sweep OUT --space space.toml --study runs/sweep --trials 30 --epochs 9 --model small_cnn
    """
    for name, what in (("space", "FILE"), ("study", "DIR")):
        if options[name] is None:
            raise UsageError(f"sweep needs --{name} {what} (see feedline sweep --help)")
    with signals_held():  # torch, while it is imported, takes a Ctrl-C for a module that is missing
        from feedline.train.study import sweep as kind
        from feedline.train.study.crew import CrewConfig

    training, study = TrainConfig(**config), options["study"]
    told = kind.settings(training, kind.SweepConfig(**options))
    carry_out(kind.__name__, study, told, training.device, CrewConfig(**crew), options["trials"])
    result = kind.begin(study, told).record()
    tell(study, result, sweep_page(result), record)
