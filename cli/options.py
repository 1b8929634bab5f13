"""Options made from the settings of a verb: one for each field of a dataclass, with its default and its docstring.

Most of these dataclasses stand in modules that need an extra which the base install lacks. So they are read from
their source, and nothing of theirs is imported: `feedline --help` works everywhere, and at once.
"""

import ast
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from feedline.pipeline.base.errors import UsageError

ROOT = Path(__file__).parents[1]
REQUIRED: Any = inspect.Parameter.empty
LIST_EXAMPLE = {int: "0,5,20", float: "0.25,1.0", tuple: "0:128,10:160"}
"""How a list is written, by the kind of its items, where its default does not show it."""

Settings = dict[str, Any]
"""Values by the names of a dataclass's fields."""


def command(verb: Callable[..., None]) -> Callable[..., None]:
    """A verb as Typer takes it. A parameter annotated with `fields(…)` becomes the options of these fields; the verb
    gets their values as Settings. Raises UsageError for a list that cannot be read."""
    hints = get_type_hints(verb, include_extras=True)
    parameters: list[inspect.Parameter] = []
    groups: dict[str, list[Option]] = {}
    for name, parameter in inspect.signature(verb).parameters.items():
        made_of = next((item for item in get_args(hints[name])[1:] if isinstance(item, Fields)), None)
        if made_of is None:
            parameters.append(_keyword(name, hints[name], parameter.default))
        else:
            groups[name] = made_of.options()
            parameters += [option.parameter() for option in groups[name]]

    def called(**values: Any) -> None:
        for name, options in groups.items():
            values[name] = {option.field: option.read(values.pop(option.field)) for option in options}
        verb(**values)

    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    called.__name__, called.__doc__ = verb.__name__, verb.__doc__
    return called


def flag(field: str) -> str:
    return f"--{field.replace('_', '-')}"


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


@dataclass(frozen=True, kw_only=True)
class Fields:
    """Which fields of which dataclass."""

    module: "Source"
    name: str
    wanted: tuple[str, ...]
    negatable: bool
    changes: Mapping[str, Mapping[str, Any]]

    def options(self) -> list["Option"]:
        declared = self.module.fields(self.name)
        return [self._option(*one) for one in declared if not self.wanted or one[0] in self.wanted]

    def _option(self, field: str, hint: ast.expr, default: ast.expr | None, text: str) -> "Option":
        change = dict(self.changes.get(field, {}))
        known = {
            "hint": change.pop("hint") if "hint" in change else self.module.evaluate(hint),
            "default": change.pop("default") if "default" in change else self.module.default(default),
        }
        flags = (
            (f"{flag(field)}/--no-{flag(field)[2:]}",) if self.negatable and known["hint"] is bool else (flag(field),)
        )
        return Option(field=field, flags=change.pop("flags", flags), more={"help": text, **change}, **known)

    def flags(self) -> set[str]:
        """Every word that gives one of these options."""
        return {word for option in self.options() for names in option.flags for word in names.split("/")}


def fields(dataclass: str, *wanted: str, negatable: bool = False, **changes: Mapping[str, Any]) -> Fields:
    """Options for `wanted` fields of a dataclass (its module below feedline, and its name), or for all.

    `changes`, by field: `flags`, `hint`, `default`, or what typer.Option takes. `negatable`: switches get a
    --no-… too.
    """
    module, _, name = dataclass.rpartition(".")
    return Fields(module=source(module), name=name, wanted=wanted, negatable=negatable, changes=changes)


@dataclass(frozen=True, kw_only=True)
class Option:
    field: str
    flags: tuple[str, ...]
    hint: Any
    """The field's."""
    default: Any
    more: Mapping[str, Any]

    def parameter(self) -> inspect.Parameter:
        """For Typer. A field without a default is an argument."""
        if self.default is REQUIRED:
            return _keyword(self.field, Annotated[self.hint, typer.Argument(**self.more)], REQUIRED)
        hint, default = self.hint, self.default
        if get_origin(hint) is tuple and not self._repeats:
            hint, default = str, self._word(default)
        elif self._repeats or self._is_mapping:
            hint, default = list[str] | None, None
        settings: Settings = {"show_default": bool(str(default)), **self.more}
        return _keyword(self.field, Annotated[hint, typer.Option(*self.flags, **settings)], default)

    def read(self, value: Any) -> Any:
        """The field's value for what stands on the command line. Raises UsageError."""
        if self._is_mapping:
            as_json = get_args(self.hint)[1] is not str
            return values(value, self.flags[0]) if as_json else pairs(value, self.flags[0])
        if self._repeats:
            return tuple(value or ())
        return self._numbers(value) if get_origin(self.hint) is tuple and isinstance(value, str) else value

    @property
    def _is_mapping(self) -> bool:
        return get_origin(self.hint) is Mapping

    @property
    def _repeats(self) -> bool:
        return get_origin(self.hint) is tuple and get_args(self.hint)[0] is str

    @staticmethod
    def _word(default: tuple[Any, ...]) -> str:
        return ",".join(":".join(map(str, item)) if isinstance(item, tuple) else str(item) for item in default)

    def _numbers(self, text: str) -> tuple[Any, ...]:
        """Of a tuple's comma-separated word; items that are tuples themselves have colons between their numbers."""
        kinds = get_args(self.hint)
        kind = get_origin(kinds[0]) or kinds[0]
        example = self._word(self.default) or LIST_EXAMPLE[kind]
        words = [word.strip() for word in text.split(",") if word.strip()]
        try:
            if kind is tuple:
                read = tuple(tuple(map(int, word.split(":"))) for word in words)
                fits = all(len(item) == len(get_args(kinds[0])) for item in read)
            else:
                read = tuple(kind(word) for word in words)
                fits = Ellipsis in kinds or len(read) == len(kinds)
        except ValueError:
            fits, read = False, ()
        if not fits:
            raise UsageError(f"{self.flags[0]} {text!r}: write it as {example}")
        return read


def pairs(texts: list[str] | None, option: str) -> dict[str, str]:
    """Of KEY=VALUE words. Raises UsageError."""
    read: dict[str, str] = {}
    for text in texts or []:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise UsageError(f"{option} {text!r} is not KEY=VALUE")
        read[key] = value
    return read


def values(texts: list[str] | None, option: str) -> Settings:
    """KEY=VALUE where VALUE is JSON if it can be read as such, text otherwise."""
    read: Settings = {}
    for key, text in pairs(texts, option).items():
        try:
            read[key] = json.loads(text)
        except (ValueError, RecursionError):
            read[key] = text
    return read


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
                    ours = module.startswith("feedline.")
                    return (
                        source(module.removeprefix("feedline."))[name]
                        if ours
                        else getattr(import_module(module), name)
                    )
                case _:
                    pass
        raise KeyError(name)

    def evaluate(self, expression: ast.expr) -> Any:
        return eval(compile(ast.Expression(expression), "", "eval"), {}, self)

    def default(self, expression: ast.expr | None) -> Any:
        """REQUIRED where the field has none; None for `field(default_factory=…)`."""
        match expression:
            case None:
                return REQUIRED
            case ast.Call(func=ast.Name(id="field")):
                return None
            case _:
                return self.evaluate(expression)

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
