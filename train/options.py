"""The command line of training, made from `TrainConfig`: one option per field, its docstring as the help.

Both `feedline train` and `python -m feedline.train.main` (what torchrun and kernprof start) use it. Nothing heavy
is imported here, so that `feedline --help` stays quick.
"""

import ast
import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from feedline.pipeline.base.errors import UsageError
from feedline.train.config import TrainConfig, option

EXAMPLES = """Train a model from a prepared dataset.

Examples:

  feedline train OUT --model mobilenet_v2 --epochs 30 --batch-size 64 --run runs/first

  feedline train OUT --model small_cnn --image-size 64 --target-top1 0.9

  torchrun --nproc-per-node 4 -m feedline.train.main OUT --global-batch 256 --run-dir runs/four --resume auto

  kernprof -l -v -m feedline.train.main OUT --epochs 1 --run runs/lines
"""

_ALIASES = {"run": ("--run-dir",)}
"""torchrun refuses `--run` even behind the script's name: it abbreviates two options of its own."""

_LISTS: dict[str, str] = {
    "widths": "6,16",
    "progressive": "0:128,10:160",
    "crop_scale": "0.25,1.0",
    "mean": "0.485,0.456,0.406",
    "std": "0.229,0.224,0.225",
    "keep_epochs": "0,5,20",
}
"""Fields given as one comma-separated word, with an example for the error about a bad one."""


def command(run: Callable[..., None], **extra: Any) -> Callable[..., None]:
    """A function for Typer that calls `run(config, …)`; `extra` maps more options to (annotation, default)."""

    def started(**values: Any) -> None:
        others = {name: values.pop(name) for name in extra}
        run(build_config(values), **others)

    parameters = [_parameter(one.name, one) for one in fields(TrainConfig)]
    for name, (annotation, default) in extra.items():
        parameters.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default,
                                            annotation=annotation))  # fmt: skip
    started.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    started.__annotations__ = {one.name: one.annotation for one in parameters}
    started.__doc__ = EXAMPLES
    started.__name__ = "train"
    return started


def build_config(values: dict[str, Any]) -> TrainConfig:
    """From the command line's words. Raises UsageError naming the option that cannot be meant."""
    return TrainConfig(**{name: _parse(name, value) for name, value in values.items()})


def field_docs() -> dict[str, str]:
    """The string under each field of TrainConfig."""
    body = ast.parse(inspect.getsource(TrainConfig)).body[0]
    assert isinstance(body, ast.ClassDef)
    docs: dict[str, str] = {}
    for statement, following in zip(body.body, body.body[1:], strict=False):
        if (
            isinstance(statement, ast.AnnAssign)
            and isinstance(statement.target, ast.Name)
            and isinstance(following, ast.Expr)
            and isinstance(following.value, ast.Constant)
        ):
            docs[statement.target.id] = str(following.value.value)
    return docs


def unknown_options(words: list[str]) -> list[str]:
    """Of a training command line, the options that nobody knows."""
    known = {f"--{prefix}{option(one.name)}" for one in fields(TrainConfig) for prefix in ("", "no-")} | {"--run-dir"}
    return [word for word in words if word.startswith("--") and word.partition("=")[0] not in known]


def _parameter(name: str, one: Any) -> inspect.Parameter:
    hint = get_type_hints(TrainConfig)[name]
    text = field_docs()[name]
    if one.default is MISSING:
        annotation = Annotated[Path, typer.Argument(metavar="OUT", help=text, show_default=False)]
        return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation)
    default = one.default
    if name in _LISTS:
        hint, default = str, _word(default)
    flag = f"--{option(name)}"
    names = [f"{flag}/--no-{option(name)}" if hint is bool else flag, *_ALIASES.get(name, ())]
    annotation = Annotated[hint, typer.Option(*names, help=text, show_default=bool(str(default)))]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _word(values: tuple[Any, ...]) -> str:
    return ",".join(":".join(map(str, value)) if isinstance(value, tuple) else str(value) for value in values)


def _parse(name: str, value: Any) -> Any:
    if name not in _LISTS or not isinstance(value, str):
        return value
    words = [word.strip() for word in value.split(",") if word.strip()]
    try:
        if name == "progressive":
            return tuple((int(first), int(size)) for first, size in (word.split(":") for word in words))
        numbers = tuple(float(word) if name in ("crop_scale", "mean", "std") else int(word) for word in words)
    except ValueError:
        raise UsageError(f"--{option(name)} {value!r}: write it as {_LISTS[name]}") from None
    if name != "keep_epochs" and len(numbers) != len(_LISTS[name].split(",")):
        raise UsageError(f"--{option(name)} {value!r}: write it as {_LISTS[name]}")
    return numbers
