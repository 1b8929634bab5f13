"""`feedline train`: the same options as `python -m feedline.train.main`, the record, and settings from a file."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from feedline.cli.common import JsonFile, Record, console
from feedline.pipeline.errors import UsageError
from feedline.pipeline.files import read_handed
from feedline.train.config import TrainConfig
from feedline.train.options import command

SETTINGS_BYTES = 1 << 20


def _settings(context: typer.Context, path: Path | None) -> Path | None:
    """The file's options become the defaults; what stands on the command line still wins."""
    if path is not None:
        try:
            context.default_map = json.loads(read_handed(path, SETTINGS_BYTES))["options"]
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise UsageError(f"--config {path} is not a file of `feedline tune` ({error})") from error
    return path


ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", is_eager=True, callback=_settings, help="Settings by `feedline tune`."),
]


def _run(config: TrainConfig, json_file: Any, config_file: Any) -> None:
    from feedline.train.main import run_and_show

    record = Record("train", json_file)
    result = run_and_show(config)
    from feedline.cli.train_page import write_page

    console.print(f"curves                {write_page(Path(result['run']))}", markup=False, soft_wrap=True)
    record.write(json_file, result)


train = command(_run, json_file=(JsonFile, None), config_file=(ConfigFile, None))
