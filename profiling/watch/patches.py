"""Patches of modules, put in place as the script imports them and taken back at the end. Nothing is imported."""

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

Patch = Callable[[ModuleType], None]


class Patches:
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
            own, was = name in vars(owner), vars(owner).get(name)  # as it lies there: a static method, too
            setattr(owner, name, make(original))
            self._undo.append(lambda: setattr(owner, name, was) if own else delattr(owner, name))

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
    ) -> "ModuleSpec | None":
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
                    self._patch_behind(spec.loader, fullname, patches)
                return spec
        return None

    def _patch_behind(self, loader: Any, name: str, patches: Sequence[Patch]) -> None:
        """Once the loader has run the module's code. A patch that fails leaves the script alone."""

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module
            loader.exec_module(module)
            if module.__name__ != name:  # a zip file's loader is one for all its modules
                return
            try:
                for patch in patches:
                    patch(module)
            except Exception as error:
                self._complain(f"{name} could not be watched: {type(error).__name__}: {error}")

        with suppress(AttributeError):
            loader.exec_module = exec_module
