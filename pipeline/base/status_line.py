"""How far long work is, in a notebook: one line that is written over in place. Silence everywhere else."""

import sys
import time
from collections.abc import Callable
from importlib import import_module

PERIOD_S = 0.2


def status_line(what: str, unit: str = "samples") -> Callable[..., None]:
    """`advance(done, total)` for work of that name; `total` may be missing or None.

    Only a notebook's kernel writes over what it has shown: terminals have the command line's bars.
    """
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if not hasattr(shell, "kernel"):
        return lambda *_: None
    display, began, said = import_module("IPython.display").display, time.monotonic(), float("-inf")
    shown = None

    def advance(done: int, total: int | None = None) -> None:
        nonlocal said, shown
        now = time.monotonic()
        if now - said < PERIOD_S and done != total:
            return
        said = now
        of_total = f" of {total:,}" if total else ""
        text = {"text/plain": f"{what}: {done:,}{of_total} {unit}, {now - began:.0f} s"}
        if shown is None:
            shown = display(text, raw=True, display_id=True)
        else:
            shown.update(text, raw=True)

    return advance
