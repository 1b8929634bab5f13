"""Processes that only burn CPU: what sharing the cores costs a model that computes on them."""

import os
import subprocess
import sys
from collections.abc import Sequence

BURN = """
import os, sys
print(flush=True)
while os.getppid() == int(sys.argv[1]):
    for _ in range(100_000):
        pass
"""
"""Ends by itself, within milliseconds of its parent."""


class Crowd:
    """So many of them, from here to `leave`."""

    def __init__(self, count: int) -> None:
        # Isolated and without site: nothing of the script's environment, and no probe, gets in.
        command = [sys.executable, "-I", "-S", "-c", BURN, str(os.getpid())]
        self._members: Sequence[subprocess.Popen[bytes]] = [
            subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) for _ in range(count)
        ]
        for one in self._members:
            assert one.stdout is not None
            one.stdout.readline()  # it burns from now on

    def leave(self) -> None:
        for one in self._members:
            one.kill()
        for one in self._members:
            one.communicate()
