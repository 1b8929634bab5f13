"""Patches of modules, put in place as the script imports them and taken back at the end. Nothing is imported."""

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

Patch = Callable[[ModuleType], None]


class Patches(importlib.abc.MetaPathFinder):
    """Finds the modules it has patches for as the other finders would, and calls back when their code has run."""

    def __init__(self, complain: Callable[[str], None]) -> None:
        """`complain` is told of a patch that fails; the script goes on."""
        self.others: Callable[[str], Patch | None] | None = None
        """A patch for any other module, by the file it comes from."""
        self._complain = complain
        self._targets: dict[str, list[Patch]] = {}
        self._undo: list[Callable[[], None]] = []

    def after_import(self, module: str, patch: Patch) -> None:
        """Before `install`; behind the patches which that module has already."""
        self._targets.setdefault(module, []).append(patch)

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """`owner.name = make(original)` until `remove`; nothing where there is no such name."""
        original = getattr(owner, name, None)
        if original is not None:
            own = name in vars(owner)
            setattr(owner, name, make(original))
            self._undo.append(lambda: setattr(owner, name, original) if own else delattr(owner, name))

    def on_remove(self, undo: Callable[[], None]) -> None:
        self._undo.append(undo)

    def install(self) -> None:
        """Patch what is loaded already, and the rest as it is imported."""
        for name, patches in self._targets.items():
            module = sys.modules.get(name)
            if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
                for patch in patches:
                    patch(module)
        sys.meta_path.insert(0, self)

    def remove(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        patches = self._targets.get(fullname)
        if patches is None and self.others is None:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if patches is None and self.others is not None and (other := self.others(spec.origin or "")):
                    patches = [other]
                if patches and spec.loader is not None:
                    spec.loader = _Patching(spec.loader, patches, self._complain)  # type: ignore[assignment]
                return spec
        return None


class _Patching:
    """A module loader that runs the original and then the patches. A patch that fails leaves the script alone."""

    def __init__(self, original: Any, patches: Sequence[Patch], complain: Callable[[str], None]) -> None:
        self._original = original
        self._patches = patches
        self._complain = complain

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._original.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._original
        if module.__spec__ is not None:
            module.__spec__.loader = self._original
        self._original.exec_module(module)
        try:
            for patch in self._patches:
                patch(module)
        except Exception as error:
            self._complain(f"{module.__name__} could not be watched: {type(error).__name__}: {error}")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)
