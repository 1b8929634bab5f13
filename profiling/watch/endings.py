"""How processes of the script end, where nobody else would tell: `os._exit`, after which nothing runs any more, and
workers that a signal has killed.

A forked child of multiprocessing ends by `os._exit`, too. Who has killed a worker is known to the process that waits
for it: a signal that it has sent itself (`terminate`, `kill`) is an end like any other.
"""

import functools
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType
from typing import Any

from feedline.profiling.watch.capture import Capture
from feedline.profiling.watch.patches import Patches

TELL_S = 3.0
"""The longest that `os._exit` waits for what is still to be written: it may be called in a signal handler, while the
locks that writing takes are held."""
SENT = "_feedline_sent"


class Endings:
    def __init__(self, capture: Capture, patches: Patches, leave: Callable[[], None]) -> None:
        """`leave` writes down what this process has seen."""
        self._capture = capture
        patches.replace(os, "_exit", functools.partial(self._telling, leave))
        for module in ("multiprocessing.popen_fork", "multiprocessing.popen_forkserver"):
            patches.after_import(module, functools.partial(self._watch_children, patches))

    def _telling(self, leave: Callable[[], None], original: Any) -> Any:
        @functools.wraps(original)
        def _exit(status: int) -> Any:
            if self._capture.watch is not None and self._capture.pid == os.getpid():
                with suppress(Exception):
                    telling = threading.Thread(target=leave, daemon=True)
                    telling.start()
                    telling.join(TELL_S)
            return original(status)

        return _exit

    def _watch_children(self, patches: Patches, module: ModuleType) -> None:
        own = vars(module.Popen)
        for name, watched in (("poll", self._noting), ("_send_signal", self._marking)):
            if name in own:  # else it is inherited
                patches.replace(module.Popen, name, watched)

    def _noting(self, original: Any) -> Any:
        @functools.wraps(original)
        def poll(child: Any, *args: Any, **kwargs: Any) -> Any:
            known = child.returncode
            status = original(child, *args, **kwargs)
            if known is None and status is not None and status < 0 and -status != getattr(child, SENT, 0):
                self._capture.journal.write(f"killed-{child.pid}", {"signal": -status})
            return status

        return poll

    def _marking(self, original: Any) -> Any:
        @functools.wraps(original)
        def _send_signal(child: Any, number: int) -> Any:
            setattr(child, SENT, int(number))
            return original(child, number)

        return _send_signal
