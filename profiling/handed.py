"""Files that somebody hands over by their path: read whole, with an end in sight.

A pipe or a device may never end, or never begin; what is larger than any of its kind would only fill the memory.
"""

import errno
import os
import stat
from pathlib import Path

RECORDING_BYTES = 256 << 20
"""A recording of a day's steps has a tenth of it."""


def read_handed(path: Path, most_bytes: int) -> bytes:
    """Raises OSError, with a reason in words, for what is no regular file or is larger."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe would wait for its other end
    try:
        said = os.fstat(descriptor)
        if not stat.S_ISREG(said.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        if said.st_size > most_bytes:
            raise OSError(errno.EFBIG, f"it is larger than {most_bytes >> 20} MiB", str(path))
        with open(descriptor, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(descriptor)
