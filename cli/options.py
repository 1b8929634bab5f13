"""A verb's options, made from the settings of its work: one for each field of a dataclass, as its docstring says.

Most of these dataclasses stand in modules that need an extra which the base install lacks. So they are read from
their source, and nothing of theirs is imported: `feedline --help` works everywhere, and at once.
"""

import ast
import dataclasses
import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from feedline.cli.common import OUTPUT, JsonFile, Record, check_writable
from feedline.pipeline.base.errors import UsageError
from feedline.pipeline.base.settings import MOST

ROOT = Path(__file__).parents[1]
REQUIRED: Any = inspect.Parameter.empty
LIST_EXAMPLE = {int: "1,2,4", float: "0.25,1.0", tuple: "0:128,10:160", bool: "true,false"}
"""How a list is written, by the kind of its items, where its default does not show it."""
SWITCH = {**dict.fromkeys(("true", "yes", "on", "1"), True), **dict.fromkeys(("false", "no", "off", "0"), False)}

Settings = dict[str, Any]
"""Values by the names of a dataclass's fields."""


def command(verb: Callable[..., None]) -> Callable[..., None]:
    """A verb as Typer takes it.

    A parameter annotated with `fields(…)` becomes the options of these fields; the verb gets their values as
    Settings. A Record becomes `--json FILE`. Whatever names an output is tried before the verb begins. Raises
    UsageError for a list that cannot be read and for an output that cannot be written.
    """
    hints = get_type_hints(verb, include_extras=True)
    parameters: list[inspect.Parameter] = []
    groups: dict[str, Options] = {}
    outputs: list[str] = []
    for name, parameter in inspect.signature(verb).parameters.items():
        hint = JsonFile if hints[name] is Record else hints[name]
        options = next((item for item in get_args(hint)[1:] if isinstance(item, Options)), None)
        if options is None:
            parameters.append(_keyword(name, hint, None if hint is JsonFile else parameter.default))
            outputs += [name] if OUTPUT in get_args(hint) else []
        else:
            groups[name] = options
            parameters += [option.parameter() for option in options]

    parameters.sort(key=lambda parameter: parameter.annotation is JsonFile)  # the last in the help
    word = verb.__name__.replace("_", "-")

    def called(**values: Any) -> None:
        check_writable(*(values[name] for name in outputs))
        for name, options in groups.items():
            values[name] = {option.field: option.read(values.pop(option.field)) for option in options}
        for name in values.keys() & hints.keys():
            values[name] = Record(word, values[name]) if hints[name] is Record else values[name]
        try:
            verb(**values)
        except UsageError as error:
            if (text := _with_flag(str(error), groups.values())) == str(error):
                raise
            raise UsageError(text) from error

    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    called.__name__, called.__doc__ = verb.__name__, verb.__doc__
    return called


def _with_flag(text: str, groups: Iterable["Options"]) -> str:
    """Settings say their field's name (`check_limits`); here it is the option's, which may be another."""
    for option in (one for options in groups for one in options):
        own = f"--{option.field.replace('_', '-')}"
        if text.startswith(f"{own} ") and own not in option.flags[0].split("/"):
            return option.flags[0].partition("/")[0] + text.removeprefix(own)
    return text


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


def fields(dataclass: str, *wanted: str, negatable: bool = False, **changes: Mapping[str, Any]) -> "Options":
    """Options for `wanted` fields of a dataclass (its module below feedline, and its name), or for all.

    A flag leaves out the unit of seconds and pixels in the field's name. `changes`, by field: `flags`, `hint`,
    `default`, or what typer.Option takes. `negatable`: switches get a --no-… too.
    """
    path, _, name = dataclass.rpartition(".")
    module = source(path)
    made: list[Option] = []
    for field, hint, default, text in module.fields(name):
        if wanted and field not in wanted:
            continue
        change = dict(changes.get(field, {}))
        kind = change.pop("hint") if "hint" in change else module.evaluate(hint)
        start, limits = (change.pop("default"), {}) if "default" in change else module.default(default)
        words = limits.pop("words", ())
        flag = field.removesuffix("_s").removesuffix("_px").replace("_", "-")  # users give the unit in the help
        flags = change.pop("flags", (f"--{flag}/--no-{flag}" if negatable and kind is bool else f"--{flag}",))
        more = {"help": text, **limits, **change}
        made.append(Option(field=field, flags=flags, hint=kind, default=start, words=words, more=more))
    return Options(made)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Option:
    field: str
    flags: tuple[str, ...]
    hint: Any
    """The field's."""
    default: Any
    words: tuple[str, ...] = ()
    """What may stand for its number."""
    commas: bool = False
    """A tuple of texts is one word with commas too; else an option that may be repeated."""
    more: Mapping[str, Any]

    def parameter(self) -> inspect.Parameter:
        """For Typer. A field without a default is an argument."""
        if self.default is REQUIRED:
            return _keyword(self.field, Annotated[self.hint, typer.Argument(**self.more)], REQUIRED)
        hint, default = self.hint, self.default
        settings: Settings = {"show_default": bool(str(default)), **self.more}
        if self.words:
            hint, default = str | None, None if default is None else str(default)
            settings |= {"min": None, "max": None, "parser": self._word, "metavar": "|".join(("N", *self.words))}
        elif get_origin(hint) in (tuple, Mapping):
            default = None if default is None or not self._is_list else _word(default)
            hint = str | None if self._is_list else list[str] | None
            settings |= {"min": None, "max": None}
        return _keyword(self.field, Annotated[hint, typer.Option(*self.flags, **settings)], default)

    def read(self, value: Any) -> Any:
        """The field's value for what stands on the command line. Raises UsageError."""
        if get_origin(self.hint) is Mapping:
            return pairs(value, self.flags[0], as_json=get_args(self.hint)[1] is not str)
        if self._is_list:
            return self._listed(value) if isinstance(value, str) else value
        return tuple(value or ()) if get_origin(self.hint) is tuple else value

    @property
    def _is_list(self) -> bool:
        """Written as one word with commas."""
        return get_origin(self.hint) is tuple and (self.commas or get_args(self.hint)[0] is not str)

    def _word(self, value: Any) -> Any:
        """What Typer makes of the word on the command line, or of a file's value."""
        try:
            return value if value in self.words else int(value)
        except (TypeError, ValueError) as error:
            raise typer.BadParameter(f"{value!r} is no whole number, nor {' or '.join(self.words)}") from error

    def _listed(self, text: str) -> tuple[Any, ...]:
        """Of a comma-separated word; items that are tuples themselves have colons between their numbers."""
        kinds = get_args(self.hint)
        kind = get_origin(kinds[0]) or kinds[0]
        words = [word.strip() for word in text.split(",") if word.strip()]
        try:
            if kind is tuple:
                items = tuple(tuple(map(int, word.split(":"))) for word in words)
                fits = all(len(item) == len(get_args(kinds[0])) for item in items)
            else:
                items = tuple(SWITCH[word.lower()] if kind is bool else kind(word) for word in words)
                fits = Ellipsis in kinds or len(items) == len(kinds)
        except (KeyError, ValueError):
            fits, items = False, ()
        if not fits:
            usual = _word(self.default or ())
            raise UsageError(f"{self.flags[0]} {text!r}: write it as {usual if ',' in usual else LIST_EXAMPLE[kind]}")
        return items


class Options(tuple[Option, ...]):
    """What `fields` makes of a dataclass."""


def _word(default: tuple[Any, ...]) -> str:
    return ",".join(":".join(map(str, item)) if isinstance(item, tuple) else str(item) for item in default)


def pairs(texts: list[str] | None, option: str, *, as_json: bool = True) -> Settings:
    """Of KEY=VALUE words; `as_json`: VALUE is JSON if it can be read as such, text otherwise. Raises UsageError."""
    settings: Settings = {}
    for text in texts or []:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise UsageError(f"{option} {text!r} is not KEY=VALUE")
        try:
            settings[key] = json.loads(value) if as_json else value
        except (ValueError, RecursionError):
            settings[key] = value
    return settings


class Source(dict[str, Any]):
    """Names of one of our modules, worked out from its source when they are asked for: constants, types, and what it
    imports of our other modules and of the standard library."""

    def __init__(self, module: str) -> None:
        super().__init__()
        path = ROOT.joinpath(*module.split(".")).with_suffix(".py")
        self._body = ast.parse(path.read_text(encoding="utf-8")).body

    def __missing__(self, name: str) -> Any:
        for statement in self._body:
            match statement:
                case ast.Assign(targets=[ast.Name(id=target)], value=value) if target == name:
                    return self.evaluate(value)
                case ast.ImportFrom(module=str(module)) if name in [alias.name for alias in statement.names]:
                    if module.startswith("feedline.") and not module.startswith("feedline.pipeline.base."):
                        return source(module.removeprefix("feedline."))[name]
                    return getattr(import_module(module), name)
                case _:
                    pass
        raise KeyError(name)

    def evaluate(self, expression: ast.expr) -> Any:
        return eval(compile(ast.Expression(expression), "", "eval"), {}, self)

    def default(self, expression: ast.expr | None) -> tuple[Any, Settings]:
        """A field's: REQUIRED where it has none, None where a factory makes it. And limits as Typer takes them."""
        value = REQUIRED if expression is None else self.evaluate(expression)
        if not isinstance(value, dataclasses.Field):
            return value, {}
        least, most = value.metadata.get("limits", (None, MOST))
        made = None if value.default_factory is not dataclasses.MISSING else REQUIRED
        start = made if value.default is dataclasses.MISSING else value.default
        limits = {"min": least, "max": most if most < MOST else None}
        return start, limits | {"words": value.metadata.get("words", ())}

    def fields(self, dataclass: str) -> list[tuple[str, ast.expr, ast.expr | None, str]]:
        """Name, type, default and docstring of each field that has a docstring, in their order."""
        body = next(node.body for node in self._body if isinstance(node, ast.ClassDef) and node.name == dataclass)
        declared: list[tuple[str, ast.expr, ast.expr | None, str]] = []
        for statement, following in pairwise(body):
            match statement, following:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    declared.append((name, statement.annotation, statement.value, " ".join(text.split())))
                case _:
                    pass
        return declared


@cache
def source(module: str) -> Source:
    return Source(module)
