"""A folder over HTTP on the loopback interface, with range requests, as slow as it is told to be.

    with served(folder, latency_s=0.02, bytes_per_s=50e6) as slow:
        Loader(f"{slow.address}/train", …)
        slow.sent_bytes

Every request is answered `latency_s` later, any number of them at once; `bytes_per_s` is shared by all.
"""

import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

PIECE_BYTES = 1 << 17
"""Sent in turn, so that a sample need not wait for the whole shards before it."""


class SlowServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def __init__(self, folder: Path, latency_s: float, bytes_per_s: float) -> None:
        self.latency_s, self._bytes_per_s = latency_s, bytes_per_s
        self.sent_bytes = 0
        self._free_s, self._turn = 0.0, threading.Lock()
        super().__init__(("127.0.0.1", 0), lambda *given: Handler(*given, directory=str(folder)))

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def take_turn(self, size_bytes: int) -> None:
        """Returns when so much has come through the line that all share."""
        with self._turn:
            self.sent_bytes += size_bytes
            now_s = time.monotonic()
            self._free_s = max(now_s, self._free_s) + (size_bytes / self._bytes_per_s if self._bytes_per_s else 0.0)
            wait_s = self._free_s - now_s
        time.sleep(wait_s)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no error."""


class Handler(SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else the body waits 40 ms for the headers' receipt
    server: SlowServer

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is printed."""

    def do_GET(self) -> None:
        time.sleep(self.server.latency_s)
        path = Path(self.translate_path(self.path))
        if not path.is_file():
            return self.send_error(404)
        size_bytes, wanted = path.stat().st_size, self.headers.get("Range", "")
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        begin, end = int(first or 0), min(int(last) + 1, size_bytes) if last else size_bytes
        self.send_response(206 if wanted else 200)
        if wanted:
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{size_bytes}")
        self.send_header("Content-Length", str(end - begin))
        self.end_headers()
        with path.open("rb") as file:
            for at in range(begin, end, PIECE_BYTES):
                self.server.take_turn(min(PIECE_BYTES, end - at))
                self.connection.sendfile(file, at, min(PIECE_BYTES, end - at))
        return None


@contextmanager
def served(folder: Path, *, latency_s: float = 0.0, bytes_per_s: float = 0.0) -> Generator[SlowServer]:
    """`bytes_per_s` 0: no limit."""
    with SlowServer(folder, latency_s, bytes_per_s) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
