"""`feedline train`: the same options as `python -m feedline.train.main`, and the record."""

from pathlib import Path
from typing import Any

from feedline.cli.common import JsonFile, Record, console
from feedline.train.config import TrainConfig
from feedline.train.options import command


def _run(config: TrainConfig, json_file: Any) -> None:
    from feedline.train.main import run_and_show

    record = Record("train")
    result = run_and_show(config)
    from feedline.cli.train_page import write_page

    console.print(f"curves                {write_page(Path(result['run']))}", markup=False, soft_wrap=True)
    record.write(json_file, result)


train = command(_run, json_file=(JsonFile, None))
