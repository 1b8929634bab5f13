"""The main file's functions padded as line_profiler would, and known to it, before they are defined.

The interpreter announces the main module's code through an audit event just before it runs it. Ours runs a padded
copy in its place and then leaves as the original would have; `__main__` stays the very module.
"""

import dis
import inspect
import os
import sys
from collections import defaultdict
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

NOP = bytes((dis.opmap["NOP"], 0))


def run_main_padded(tell: Callable[[CodeType], None]) -> None:
    """`tell` is given the code of each function."""
    state = {"taken": False}

    def hear(event: str, args: tuple[Any, ...]) -> None:
        if event != "exec" or state["taken"] or not _is_main(args[0]):
            return
        namespace = _namespace(sys._getframe().f_back)
        if namespace is None:
            return
        state["taken"] = True
        exec(padded_copy(args[0], tell), namespace)
        raise SystemExit(0)

    hear.__cantrace__ = True  # type: ignore[attr-defined]  the interpreter keeps tracing off in other hooks
    sys.addaudithook(hear)


def _namespace(caller: FrameType | None) -> dict[str, Any] | None:
    """Where the main module is about to run: called by nobody, or (-m) by runpy. None for what merely runs the same
    file: a spawned worker runs it again, as `__mp_main__`."""
    found = sys.modules["__main__"].__dict__ if caller is None else caller.f_locals.get("run_globals")
    return found if found is not None and found.get("__name__") == "__main__" else None


def _is_main(code: Any) -> bool:
    if not isinstance(code, CodeType) or code.co_name != "<module>" or not sys.argv:
        return False
    return os.path.abspath(code.co_filename) == os.path.abspath(sys.argv[0])  # noqa: PTH100


def padded_copy(code: CodeType, tell: Callable[[CodeType], None]) -> CodeType:
    """The same code with every function in it padded as line_profiler would; tells each padded function."""
    seen: defaultdict[bytes, int] = defaultdict(int)

    def pad(inner: CodeType) -> CodeType:
        constants = tuple(pad(one) if isinstance(one, CodeType) else one for one in inner.co_consts)
        inner = inner.replace(co_consts=constants)
        if inner.co_name.startswith("<") or not inner.co_flags & inspect.CO_NEWLOCALS or not _is_function(inner):
            return inner
        seen[inner.co_code] += 1  # twins need padding of different length
        inner = inner.replace(co_code=inner.co_code + NOP * seen[inner.co_code])
        tell(inner)
        return inner

    return code.replace(co_consts=tuple(pad(one) if isinstance(one, CodeType) else one for one in code.co_consts))


def _is_function(code: CodeType) -> bool:
    """Class bodies are code too; functions run with fast locals."""
    return bool(code.co_flags & inspect.CO_OPTIMIZED)
