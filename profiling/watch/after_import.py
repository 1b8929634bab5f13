"""Patches that are put in place as the script imports the modules they are for: nothing is imported for them."""

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

Patch = Callable[[ModuleType], None]


def is_loading(module: ModuleType) -> bool:
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


class AfterImport(importlib.abc.MetaPathFinder):
    """Finds the wanted modules as the other finders would, and calls back when their code has run."""

    def __init__(
        self,
        targets: Mapping[str, Patch],
        others: Callable[[str], Patch | None] | None,
        complain: Callable[[str], None],
    ) -> None:
        """`targets`: module name -> patch. `others`: a patch for any other module, by the file it comes from."""
        self._targets = targets
        self._others = others
        self._complain = complain

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        patch = self._targets.get(fullname)
        if patch is None and self._others is None:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                patch = patch or (self._others(spec.origin or "") if self._others is not None else None)
                if patch is not None and spec.loader is not None:
                    spec.loader = _Patching(spec.loader, patch, self._complain)  # type: ignore[assignment]
                return spec
        return None


class _Patching:
    """A module loader that runs the original and then the patch. A patch that fails leaves the script alone."""

    def __init__(self, original: Any, patch: Patch, complain: Callable[[str], None]) -> None:
        self._original = original
        self._patch = patch
        self._complain = complain

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._original.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._original
        if module.__spec__ is not None:
            module.__spec__.loader = self._original
        self._original.exec_module(module)
        try:
            self._patch(module)
        except Exception as error:
            self._complain(f"{module.__name__} could not be watched: {type(error).__name__}: {error}")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)
