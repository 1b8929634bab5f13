"""Which C function a frame is in the middle of calling: the object that stands at that place, and whose it is.

A stack ends at the last Python frame: behind `x @ w`, `image.resize(…)` or `lock.acquire()` nothing more is seen.
But the frame's instruction has a place in the source, down to the column, and what is called there can be looked up
in the frame's variables as the interpreter did. No property and no `__getattr__` of what the variables hold is called
on the way; of what is found there its name is asked.
"""

import ast
import builtins
import linecache
import sys
from functools import lru_cache
from itertools import islice
from opcode import opname
from types import CodeType, FrameType, GetSetDescriptorType, ModuleType
from typing import Any

_WORKING = ("CALL", "PRECALL", "BINARY", "COMPARE", "UNARY", "STORE_SUBSCR", "FOR_ITER", "BEFORE_WITH", "CONTAINS")
"""Beginnings of the names of instructions in which C code may work for long."""
_ASKS_FOR_LOCALS = {
    "locals", "vars", "eval", "exec", "dir", "f_locals", "currentframe", "_getframe", "getargvalues",
}  # fmt: skip
"""Names in the code of a function that may hold the dict of its variables itself."""
UNKNOWN = object()
_OPTIMIZED = 1  # flag of code with fast locals: a function's (inspect.CO_OPTIMIZED)
_known: dict[tuple[CodeType, int], str | None] = {}
"""By place in the code, where no variable of a function is part of what is called there."""
MOST_KNOWN = 50_000
MOST_ASKED = 8  # of the values in a list


@lru_cache(maxsize=1024)
def source_lines(file: str) -> list[str]:
    # linecache only where there is no file, as of a notebook's cell, and as it is: other threads use it meanwhile.
    try:
        with open(file, encoding="utf-8", errors="replace") as lines:  # noqa: PTH123  cheap: inside the script
            return lines.readlines()
    except OSError:
        entry = linecache.cache.get(file, ())
        return list(entry[2]) if len(entry) == 4 else []


def source_line(file: str, number: int | None) -> str:
    """Empty where there is no source. A frame between two lines has no number."""
    lines = source_lines(file)
    return lines[number - 1] if number and 0 < number <= len(lines) else ""


def called(frame: FrameType) -> str | None:
    """`module.name` of what a frame calls without a Python frame of its own, or of the type whose operator works,
    e.g. `time.sleep`, `torch.Tensor.__matmul__`; "" where it calls something that cannot be told, None where it calls
    nothing: there the interpreter itself is at work."""
    key = frame.f_code, frame.f_lasti
    if key in _known:
        return _known[key]
    place = _place(*key)
    found = None if place is None else _name(place, frame) or ""
    if place is None or not any(_is_local(one, frame.f_code) for one in ast.walk(place)):  # else it may change
        if len(_known) > MOST_KNOWN:
            _known.clear()
        _known[key] = found
    return found


@lru_cache(maxsize=4096)
def discards(code: CodeType, at: int) -> bool:
    """Whether what a call at this instruction gives is thrown away: it is a statement by itself."""
    instructions = code.co_code
    after = at + 2
    while after < len(instructions) and opname[instructions[after]] == "CACHE":
        after += 2
    return after < len(instructions) and opname[instructions[after]] == "POP_TOP"


def takes_gradient(frame: FrameType, *, weights: bool = True) -> bool | None:
    """Whether a tensor in the expression at which a frame works takes part in a gradient, `weights` or what was
    computed of them; None: none is known. A subclass is not told that it is asked: this is no thread of its own."""
    place, torch = _place(frame.f_code, frame.f_lasti), sys.modules.get("torch")
    tensor = getattr(torch, "Tensor", None)
    if place is None or torch is None or tensor is None:
        return None
    found = [_value(one, frame) for one in ast.walk(place) if isinstance(one, ast.Name | ast.Attribute)]
    found += [one for value in found if type(value) in (list, tuple) for one in value[:MOST_ASKED]]
    tensors = [value for value in found if issubclass(type(value), tensor)]
    with torch._C.DisableTorchFunctionSubclass():
        return any(one.requires_grad and (weights or not one.is_leaf) for one in tensors) if tensors else None


def _is_local(node: ast.AST, code: CodeType) -> bool:
    return isinstance(node, ast.Name) and node.id in {*code.co_varnames, *code.co_cellvars, *code.co_freevars}


@lru_cache(maxsize=4096)
def _place(code: CodeType, at: int) -> ast.expr | None:
    """The expression at which an instruction works; None for instructions that do not take long. A frame that calls
    another one, as the watch's own, stands behind its instruction in 3.11: in what that keeps for itself."""
    while at > 0 and opname[code.co_code[at]] == "CACHE":
        at -= 2
    operation = opname[code.co_code[at]] if 0 <= at < len(code.co_code) else ""
    if not operation.startswith(_WORKING):
        return None
    place = at // 2 - (operation == "BEFORE_WITH")  # whose own place is the whole statement
    first, last, start, end = next(islice(code.co_positions(), place, None), (None,) * 4)
    if first is None or last is None or start is None or end is None:
        return ast.Constant(None)
    lines = [line.encode() for line in source_lines(code.co_filename)[first - 1 : last]]
    if not lines:
        return ast.Constant(None)
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][start:]
    try:
        return ast.parse(b"(" + b"".join(lines) + b"\n)", mode="eval").body
    except (SyntaxError, ValueError):
        return ast.Constant(None)


def _name(place: ast.expr, frame: FrameType) -> str | None:
    match place:
        case ast.Call(func=function):
            return _of_function(function, frame)
        case ast.BinOp(left=one, right=other) | ast.Compare(left=one, comparators=[other, *_]):
            names = [_of_type(value, frame) for value in (one, other)]
            return next((name for name in names if name and not name.startswith("builtins.")), names[0])
        case ast.UnaryOp(operand=one) | ast.Subscript(value=one):
            return _of_type(one, frame)
        case _:
            return _of_type(place, frame)


def _of_function(function: ast.expr, frame: FrameType) -> str | None:
    value = _value(function, frame)
    if value is not UNKNOWN:
        if isinstance(function, ast.Attribute) and getattr(value, "__module__", "") is None:  # as cv2's functions
            owner = _value(function.value, frame)
            return f"{owner.__name__}.{function.attr}" if isinstance(owner, ModuleType) else _of_object(value)
        return _of_object(value)
    if isinstance(function, ast.Attribute):  # a method of what an expression gives: most likely of its own library
        owner = _of_type(function.value, frame)
        return owner and f"{owner.partition('.')[0]}.{function.attr}"
    return None


def _of_type(place: ast.expr, frame: FrameType) -> str | None:
    """Of the value that stands there; what a call gives is taken to belong to the library that is called."""
    value = _value(place, frame)
    if value is not UNKNOWN:
        kind = _kind(value)
        return f"{kind.__module__}.{kind.__qualname__}"
    match place:
        case ast.Call(func=function):
            return _of_function(function, frame)
        case ast.BinOp() | ast.UnaryOp() | ast.Subscript() | ast.Compare():
            return _name(place, frame)
        case _:
            return None


def _of_object(value: Any) -> str:
    """Where a function or class comes from; of any other object that can be called, where its class does."""
    owner = getattr(value, "__objclass__", None) or getattr(value, "__self__", None)
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    module = None if owner is not None and not isinstance(owner, ModuleType) else getattr(value, "__module__", None)
    if module is None and owner is not None:
        kind = owner if isinstance(owner, type) else type(owner)
        module = owner.__name__ if isinstance(owner, ModuleType) else kind.__module__
    if not isinstance(name, str) or not isinstance(module, str):
        return f"{type(value).__module__}.{type(value).__qualname__}"
    return f"{module}.{name}"


def _value(place: ast.expr, frame: FrameType) -> Any:
    """As the frame's variables have it, without running anything."""
    match place:
        case ast.Name(id=name):
            return variable(name, frame, local=_is_local(place, frame.f_code))
        case ast.Attribute(value=inner, attr=attribute):
            owner = _value(inner, frame)
            return UNKNOWN if owner is UNKNOWN else _attribute(owner, attribute)
        case ast.Constant(value=value) if value is not None:
            return value
        case _:
            return UNKNOWN


def variable(name: str, frame: FrameType, *, local: bool) -> Any:
    """UNKNOWN where there is none, or where asking could be noticed."""
    code = frame.f_code
    if local and code.co_flags & _OPTIMIZED:
        if frame.f_trace is not None or _ASKS_FOR_LOCALS.intersection(code.co_names):
            return UNKNOWN  # before 3.13 its own dict of them is the one that we would change
        held = frame.f_locals
        value = held.get(name, UNKNOWN)
        if sys.version_info < (3, 13):
            held.clear()  # a snapshot, which would keep the frame's batches alive
        return value
    for names in (frame.f_globals, vars(builtins)):
        if name in names:
            return names[name]
    return UNKNOWN


def _kind(value: Any) -> type:
    """What C code gives for an attribute (`weight.grad`) is most likely of the class that has it."""
    return value.__objclass__ if isinstance(value, GetSetDescriptorType) else type(value)


def _attribute(owner: Any, name: str) -> Any:
    held = getattr(owner, "__dict__", None)
    if isinstance(held, dict) and name in held:
        return held[name]
    for kind in (owner if isinstance(owner, type) else _kind(owner)).__mro__:
        if name in (members := vars(kind)):
            value = members[name]
            return getattr(value, "__func__", value) if isinstance(value, staticmethod | classmethod) else value
    return UNKNOWN
