"""A control group with little memory, page cache included, for one program at a time. Needs root and cgroups that may
be written (v1, or v2 where the memory controller is handed down)."""

import os
import shutil
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress

from feedline.pipeline.base.process import cgroup_folders

LIMITS = ("memory.max", "memory.limit_in_bytes")
JOIN = 'echo $$ > "$0/cgroup.procs" && exec "$@"'


@contextmanager
def small_memory(limit_bytes: int) -> Generator[list[str]]:
    """The words before a command that runs it in there. Raises OSError where there can be no such group."""
    shell = shutil.which("sh") or "/bin/sh"
    folder = next(iter(cgroup_folders("memory")), None)
    if folder is None:
        raise FileNotFoundError("there are no control groups of memory here")
    group = folder / f"feedline-{os.getpid()}"
    group.mkdir()
    try:
        limit = next((group / name for name in LIMITS if (group / name).exists()), None)
        if limit is None:
            raise FileNotFoundError(f"{group} limits no memory")
        limit.write_text(str(limit_bytes))
        yield [shell, "-c", JOIN, str(group)]
    finally:
        for _ in range(50):  # a group whose last process is still being buried
            with suppress(OSError):
                group.rmdir()
                break
            time.sleep(0.1)


def why_not() -> str:
    """Why there can be none here; "" where there can."""
    try:
        with small_memory(1 << 30):
            return ""
    except OSError as error:
        return f"no control group: {error}"
