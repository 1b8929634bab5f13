"""Reads ahead by threads, for storage that makes nothing of advice: the bytes are for the page cache alone."""

import os
import queue
import threading
from contextlib import suppress

from feedline.pipeline.base.process import open_files_limit
from feedline.pipeline.format.local import PIECE_BYTES

MOST = 32
"""Threads, and so requests under way, of one worker."""
MOST_DUE = 4096
"""Each holds a descriptor; of those that are allowed at most a quarter, as half of them may be open shards."""
IDLE_S = 2.0
"""A thread without work ends after so long."""


class ReadThreads:
    """Started when they are needed. Each holds no more than a piece of a sample and ends by itself; a mount that has
    gone away does not keep the process."""

    def __init__(self, most: int = MOST) -> None:
        self._most, self._most_due = most, min(MOST_DUE, open_files_limit() // 4)
        self._due: queue.SimpleQueue[tuple[int, int, int]] = queue.SimpleQueue()
        self._turn = threading.Lock()
        self._running = 0

    def read(self, descriptor: int, offset: int, length: int) -> None:
        """Returns at once. Nothing is read where too much is due. Raises OSError for no descriptor."""
        if self._due.qsize() >= self._most_due:
            return
        self._due.put((os.dup(descriptor), offset, length))  # whose owner may close it meanwhile
        with self._turn:
            starts = self._running < min(self._most, self._due.qsize())
            self._running += starts
        if starts:
            try:
                threading.Thread(target=self._work, name="feedline-ahead", daemon=True).start()
            except RuntimeError:  # the process may have no more: those that run do it
                with self._turn:
                    self._running -= 1

    def _work(self) -> None:
        buffer = bytearray(PIECE_BYTES)
        while True:
            try:
                descriptor, offset, length = self._due.get(timeout=IDLE_S)
            except queue.Empty:
                with self._turn:
                    if self._due.empty():  # whoever puts something there now sees one thread fewer
                        self._running -= 1
                        return
                continue
            with suppress(OSError):  # whoever needs it says what is wrong
                for start in range(offset, offset + length, PIECE_BYTES):
                    os.preadv(descriptor, [memoryview(buffer)[: min(PIECE_BYTES, offset + length - start)]], start)
            with suppress(OSError):
                os.close(descriptor)
