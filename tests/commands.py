"""`feedline …` in a process of its own that has not to import everything first: it is forked from one that has.

Whatever a command is by then has happened there: this is for what it does and says, not for how it starts.
And whether processes are gone.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Self

import psutil

SERVER = """
import json, os, sys
from feedline.cli.main import run
for line in iter(sys.stdin.readline, ""):
    asked = json.loads(line)
    pid = os.fork()
    if not pid:
        break
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
else:
    sys.exit()
for number, (path, flags) in enumerate(asked["streams"]):
    descriptor = os.open(path, flags)
    os.dup2(descriptor, number)
    os.close(descriptor)
os.environ.clear()
os.environ.update(asked["environment"])
os.chdir(asked["folder"])
sys.argv[1:] = asked["words"]
exec(asked["first"])
run()
"""


class Commands:
    """`with Commands() as feedline: feedline("verify", "OUT")`."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        """`environment`: what the imports see."""
        self._environment = environment
        self._server: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.communicate()

    def __call__(
        self, *words: str, cwd: Path | str = ".", given: bytes = b"", first: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> "subprocess.CompletedProcess[str]":  # fmt: skip
        """`given`: its standard input. `first`: Python that runs before the command."""
        server = self._server = self._server or subprocess.Popen(
            [sys.executable, "-c", SERVER],
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert server.stdin and server.stdout
        with tempfile.TemporaryDirectory() as folder:
            streams = [Path(folder, name) for name in ("in", "out", "error")]
            for stream in streams:
                stream.write_bytes(given if stream.name == "in" else b"")
            asked = {
                "words": words,
                "folder": str(Path(cwd).absolute()),
                "first": first,
                "environment": dict(os.environ if environment is None else environment),
                "streams": [(str(stream), os.O_RDWR | os.O_APPEND) for stream in streams],
            }
            server.stdin.write(json.dumps(asked) + "\n")
            server.stdin.flush()
            status = int(server.stdout.readline())
            said, errors = (stream.read_bytes().decode(errors="surrogateescape") for stream in streams[1:])
        return subprocess.CompletedProcess(words, status, said, errors)


def all_gone(processes: Iterable[int | psutil.Process], within_s: float = 20.0) -> bool:
    """A killed process takes a while to go; zombies count as gone: whoever adopts them reaps them when it likes."""
    end_s = time.monotonic() + within_s
    while any(map(_alive, processes := list(processes))):
        if time.monotonic() > end_s:
            return False
        time.sleep(0.02)
    return True


def _alive(process: int | psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        one = psutil.Process(process) if isinstance(process, int) else process
        return one.is_running() and one.status() != psutil.STATUS_ZOMBIE
    return False
