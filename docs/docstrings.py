"""The directive `docstring`: a function or a class of ours with its docstrings, read from the source.

    ```{docstring} pipeline.loader.Loader
    :members: like set_epoch        which ones; else all that have a docstring and no underscore
    ```

Nothing is imported, so the site needs neither torch nor Spark. Docstrings are Markdown, those below a dataclass's
fields too.
"""

import ast
import inspect
import json
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective

ROOT = Path(__file__).parents[1]
FENCE = "``````"


class Docstring(SphinxDirective):
    required_arguments = 1
    option_spec: ClassVar[dict[str, Any]] = {"members": directives.unchanged}

    def run(self) -> list[nodes.Node]:
        module, _, name = self.arguments[0].rpartition(".")
        path = ROOT.joinpath(*module.split(".")).with_suffix(".py")
        self.env.note_dependency(str(path))
        body = ast.parse(path.read_text()).body
        named = Named({**constants(ROOT / "pipeline" / "base" / "settings.py"), **constants(path)})
        found = [named.visit(node) for node in body if getattr(node, "name", None) == name]
        if not found:
            raise self.error(f"{path} has no {name}")
        members = self.options.get("members")
        lines = described(found[0], f"feedline.{module}.{name}", None if members is None else members.split())
        holder = nodes.container()
        self.state.nested_parse(StringList(lines, source=str(path)), self.content_offset, holder)
        return holder.children


def described(node: Any, name: str, members: list[str] | None) -> list[str]:
    """Markdown lines of a function or a class; `members` None: all that are public and have a docstring."""
    if not isinstance(node, ast.ClassDef):
        return directive("function", name + signature(node), text_of(node))
    inside = {one.name: one for one in node.body if isinstance(one, ast.FunctionDef)}
    made = inside.get("__init__")
    body = [*text_of(node), "", *(text_of(made) if made else [])]
    for field, value, text in fields(node):
        if members is None or field in members:
            body += directive("attribute", field, [*value, "", *text], FENCE[1:])
    for method in inside.values():
        wanted = not method.name.startswith("_") and text_of(method) if members is None else method.name in members
        if wanted:
            body += member(method)
    return directive("class", name + (signature(made) if made else ""), body)


def member(method: ast.FunctionDef) -> list[str]:
    marks = {mark.id for mark in method.decorator_list if isinstance(mark, ast.Name)}
    if "property" in marks:
        return directive("property", method.name, text_of(method), FENCE[1:])
    kind = "classmethod" if "classmethod" in marks else "method"
    return directive(kind, method.name + signature(method), text_of(method), FENCE[1:])


def fields(node: ast.ClassDef) -> Iterator[tuple[str, list[str], list[str]]]:
    """Of those with a docstring: name, type and default as a directive's options, text."""
    for statement, following in pairwise(node.body):
        match statement, following:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                options = {"type": ast.unparse(statement.annotation)}
                options |= {"value": shown(statement.value)} if statement.value else {}
                yield name, [f":{key}: {json.dumps(words)}" for key, words in options.items()], cleaned(text)
            case _:
                pass


def shown(default: ast.expr) -> str:
    """`limited(64, 1, 4096)` and `field(default_factory=dict)` are the default they begin with."""
    if isinstance(default, ast.Call) and getattr(default.func, "id", "") in ("limited", "field"):
        return shown(default.args[0]) if default.args else "…"
    return ast.unparse(default)


class Named(ast.NodeTransformer):
    """Puts what constants are in place of their names."""

    def __init__(self, values: dict[str, ast.expr]) -> None:
        self._values = values

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self._values.get(node.id, node)


@cache
def constants(path: Path) -> dict[str, ast.expr]:
    """A module's plain values, by name."""
    return {one.targets[0].id: one.value for one in ast.parse(path.read_text()).body
            if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name)
            and not any(isinstance(part, ast.Name | ast.Call) for part in ast.walk(one.value))}  # fmt: skip


def signature(function: ast.FunctionDef) -> str:
    words = function.args
    if words.args and words.args[0].arg in ("self", "cls"):
        words.args = words.args[1:]
    returns = f" -> {ast.unparse(function.returns)}" if function.returns and function.name != "__init__" else ""
    return f"({ast.unparse(words)}){returns}"


def directive(kind: str, argument: str, body: list[str], fence: str = FENCE) -> list[str]:
    return [f"{fence}{{py:{kind}}} {argument}", *body, fence, ""]


def text_of(node: ast.FunctionDef | ast.ClassDef) -> list[str]:
    return cleaned(ast.get_docstring(node, clean=False) or "")


def cleaned(text: str) -> list[str]:
    return inspect.cleandoc(text).splitlines()


def setup(app: Any) -> dict[str, Any]:
    app.add_directive("docstring", Docstring)
    return {"parallel_read_safe": True}
