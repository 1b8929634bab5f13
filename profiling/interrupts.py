"""Ctrl-C and its like, while a script is profiled: the script has the first, the report is still written."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from feedline.profiling.record.journal import Journal

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
FOR_THE_SCRIPT = (signal.SIGUSR1, signal.SIGUSR2)
"""What a batch system sends to all processes of a job, and a training may have a handler for: nothing ends here."""
SAME_S = 0.25  # signals this close are one: `timeout` sends to its child, then to the whole group


class Interrupted(BaseException):
    """A signal breaks off what `Interrupts.breaking_off` holds."""


class Interrupts:
    """Ctrl-C and its like, from before the script starts until the report is written.

    The first signal goes to the script, whose own handlers decide how it ends. Nothing new begins after it (whoever
    starts something asks `number`), and the report of what was seen is written. A second one ends everything at once
    with SystemExit.
    """

    def __init__(self, witness: "subprocess.Popen[bytes]") -> None:
        self.number = 0  # of the first signal; 0 while there was none
        self._witness = witness
        self._heard_s = 0.0
        self._ending = False
        self._breaks_off = False
        self._script: tuple[subprocess.Popen[bytes], Journal] | None = None
        self._passed_on = False

    @property
    def status(self) -> int:
        """Exit status after a signal, as a shell tells it; 0 without one."""
        return self.number and 128 + self.number

    @contextmanager
    def passed_on_to(self, child: "subprocess.Popen[bytes]", journal: Journal) -> Generator[None]:
        self._passed_on, self._script = False, (child, journal)
        try:
            if self.number and not self._passed_on:  # it came before the script was there
                self._pass_on(heard_too=False)
            yield
        finally:
            self._script = None

    @contextmanager
    def breaking_off(self) -> Generator[None]:
        """Work of our own: the first signal raises Interrupted in it."""
        self._breaks_off = True
        try:
            if self.number:
                raise Interrupted
            yield
        finally:
            self._breaks_off = False

    def hear(self, number: int, _frame: FrameType | None) -> None:
        if not self.number:
            self.number, self._heard_s = number, time.monotonic()
            if self._script is not None:
                self._pass_on(heard_too=True)
            if self._breaks_off:
                raise Interrupted
        elif time.monotonic() - self._heard_s > SAME_S and not self._ending:
            self._ending = True
            raise SystemExit(128 + number)

    def _pass_on(self, *, heard_too: bool) -> None:
        """`heard_too`: if the whole group has had the signal, the script, which is in it, has had it as well."""
        assert self._script is not None
        child, journal = self._script
        self._passed_on = True
        with suppress(ProcessLookupError):
            if heard_too and os.getpgid(child.pid) == os.getpgrp():
                with suppress(subprocess.TimeoutExpired):
                    self._witness.wait(SAME_S)
            if not heard_too or not self._witness.returncode:
                child.send_signal(self.number)
        journal.write("interrupted", {})  # no more windows of ours in it


_hearing: list[Interrupts] = []


@contextmanager
def hearing() -> Generator[Interrupts]:
    """From here on signals are `Interrupts`: those of the longer piece of work that this one is part of, else new."""
    if _hearing:
        yield _hearing[0]
        return
    # A signal to the whole process group ends this process too. Without it nobody could tell whether the script has
    # had a signal already, and its handlers must not run twice. It ends with us, since its input does.
    command = [sys.executable, "-I", "-S", "-c", "import sys; sys.stdin.read()"]
    nowhere = subprocess.DEVNULL
    witness = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=nowhere, stderr=nowhere)
    interrupts = Interrupts(witness)
    before: dict[signal.Signals, Any] = {}
    try:
        if threading.current_thread() is threading.main_thread():  # nobody sends signals to other threads
            heard = [number for number in PASSED_ON if signal.getsignal(number) is not signal.SIG_IGN]  # nohup
            before = {number: signal.signal(number, interrupts.hear) for number in heard}
            before |= {number: signal.signal(number, lambda *_: None) for number in FOR_THE_SCRIPT}
        _hearing.append(interrupts)
        yield interrupts
    finally:
        _hearing.clear()
        witness.kill()
        witness.communicate()
        for number, handler in before.items():
            signal.signal(number, handler)
