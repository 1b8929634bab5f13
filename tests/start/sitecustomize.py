"""What Python runs first in the tests' scripts: torch._dynamo is imported when something of it is needed.

The first optimiser of a process imports it, a second and more of each script's start, only to keep a compiler from
looking into a few functions. Nearly no script here compiles anything.
"""

import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

NAME = "torch._dynamo"


class Later(ModuleType):
    def disable(self, function: Callable[..., Any], *_: Any, **__: Any) -> Callable[..., Any]:
        return function

    def graph_break(self, *_: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__path__":
            raise AttributeError(name)
        if sys.modules.get(NAME) is self:
            del sys.modules[NAME]
        return getattr(importlib.import_module(NAME), name)


sys.modules[NAME] = Later(NAME)
