"""How a user's function reaches a worker, whatever module it was defined in.

What another interpreter can import travels as a name; what it cannot (`__main__`, a notebook cell, a lambda, a
module loaded from a file off the import path) travels as code, through cloudpickle. Nothing is imported here
until somebody has a function to send.
"""

import base64
import inspect
import pickle
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from feedline.pipeline.base.errors import UsageError


def pack(function: Callable[..., Any]) -> str:
    """Text that `unpack` turns into the function in another interpreter. Raises UsageError when it cannot travel."""
    try:
        import cloudpickle
    except ImportError as error:
        raise UsageError("a transform of your own needs cloudpickle: pip install cloudpickle") from error
    stray = _unimportable(function)
    try:
        if stray is not None:
            cloudpickle.register_pickle_by_value(stray)
        return base64.b64encode(cloudpickle.dumps(function)).decode()
    except (TypeError, pickle.PicklingError, AttributeError) as error:
        raise UsageError(
            f"the transform {function!r} cannot be sent to a worker ({error}): make what it holds at its first call"
        ) from error
    finally:
        if stray is not None:
            cloudpickle.unregister_pickle_by_value(stray)


def unpack(text: str) -> Callable[..., Any]:
    return pickle.loads(base64.b64decode(text))  # noqa: S301 written by our own trainer, through inherited memory


def takes_rng(function: Callable[..., Any]) -> bool:
    """Whether a transform wants the sample's own random generator as a second argument (`rng`)."""
    try:
        return "rng" in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


def _unimportable(function: Callable[..., Any]) -> ModuleType | None:
    """The function's module where a fresh interpreter would not find it, or would find another."""
    name = getattr(function, "__module__", None) or type(function).__module__
    module = sys.modules.get(name)
    if module is None or name == "__main__":
        return None  # cloudpickle sends these by value anyway
    here = getattr(module, "__file__", None)
    if here is None:
        return None if name in sys.builtin_module_names else module
    return None if _find_afresh(name) == here else module


def _find_afresh(name: str) -> str | None:
    """The file a new interpreter with our import path would load as `name`; what is loaded here does not count."""
    path: Any = None
    parts = name.split(".")
    for depth in range(1, len(parts) + 1):
        whole = ".".join(parts[:depth])
        specs = (finder.find_spec(whole, path) for finder in sys.meta_path)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is None or depth == len(parts):
            return spec.origin if spec else None
        path = spec.submodule_search_locations
    return None
