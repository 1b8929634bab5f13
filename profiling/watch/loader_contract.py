"""What the watch and the legs need of a kind of loader. `profiling.watch.loaders` has one instance for each."""

from collections.abc import Callable
from types import ModuleType
from typing import Any, Protocol


class WatchedLoader(Protocol):
    kind: str
    """As `recording.LoaderSeen.kind`."""
    module: str
    """Patched as the script imports it."""

    def attach(self, module: ModuleType, hooks: "LoaderHooks") -> None:
        """Patch the module so that iterating over its loader goes through a feed."""
        ...

    def workers(self, loader: Any) -> int:
        """Processes that prepare its batches."""
        ...

    def again(self, loader: Any, num_workers: int) -> Any:
        """A loader like it with so many fresh workers; None where that cannot be made."""
        ...


class LoaderHooks(Protocol):
    """What an adapter works with: `profiling.watch.hooks.Hooks`."""

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """`owner.name = make(original)`, undone when the watch ends."""
        ...

    def open(
        self, adapter: WatchedLoader, loader: Any, iterate: Callable[[Any], Any], *, in_trainer: bool | None = None
    ) -> Any:
        """A `feed.Feed` for an iteration that begins, None where it is not to be watched; `iterate` is what
        `iter(loader)` was before it was patched."""
        ...

    def unwatched(self) -> Any:
        """Iterators made in this context belong to us, not to the script."""
        ...

    def is_ours(self) -> bool:
        """Whether such a context is open."""
        ...

    def worker_entry(self, loop: Any, loader: Any) -> Any:
        """What takes the place of a worker's loop; None where workers run as they are."""
        ...
