"""Storage that fails, stalls and lies under a loader; whole commands killed.

A file system (`chaos://`, over local files through fsspec), an HTTP server and, where one can be mounted, a file
system of the kernel's (`slow_files`) each do one wrong thing at one of their answers, once or many times in a row. A
loader may end in an error that names what happened, or deliver every sample exactly; it may not deliver anything
else.
"""

import http.server
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import psutil

from tests.lab import tiny_split
from tests.lab.chaos_live import SAMPLES, Epochs, Outcome, gone, problems_of
from tests.lab.chaos_steps import Ended, in_child
from tests.lab.slow_files import mounted, why_not

WRONGS = ("error", "timeout", "short", "flipped", "empty", "slow")
MOUNTED_WRONGS = ("error", "short", "stall", "gone")
FEW_READS = 8
"""Of a mounted split: the kernel keeps what it has read."""
HTTP_WRONGS = ("status 503", "reset", "cut off", "flipped", "no ranges", "slow", "not found")
SCRIPT = """
import sys, time
from feedline.pipeline.loader import Loader
loader = Loader(sys.argv[1], batch_size=8, image_size=16, num_workers=2, rank=0, world_size=1)
for epoch in range(1000):
    for batch in loader:
        time.sleep(0.005)
"""


class Turns:
    """Whose turn it is to go wrong: `times` answers from the one numbered `at`."""

    def __init__(self, at: int, times: int) -> None:
        self._first, self._last = at, at + times
        self._answers = 0

    def next(self) -> bool:
        self._answers += 1
        return self._first < self._answers <= self._last

    def end(self) -> None:
        self._last = 0


def storage(folder: Path, faults: int, rng: random.Random) -> Iterator[Outcome]:
    import_module("feedline.pipeline.loader")  # once, not in every fork

    split = folder / "train"
    in_child(lambda: bool(tiny_split.write(split, SAMPLES, 3, px=32)))
    for number in range(faults or 120):
        at, times, epoch = rng.randrange(30), rng.choice((1, 1, 2, 3, 50)), rng.randrange(5)
        cache = folder / f"cache-{number}"
        if number % 3 == 2 and not why_not():
            wrong = rng.choice(MOUNTED_WRONGS)
            ended = in_mount(split, folder / f"mount-{number}", wrong, at, times, epoch, cache)
            yield f"storage: mounted, {wrong}", problems_of(ended)
        elif number % 3:
            wrong = rng.choice(HTTP_WRONGS)
            ended = in_child(lambda w=wrong, a=at, t=times, e=epoch, c=cache: over_http(split, w, a, t, e, c))
            yield f"storage: http server, {wrong}", problems_of(ended)
        else:
            wrong = rng.choice(WRONGS)
            ended = in_child(lambda w=wrong, a=at, t=times, e=epoch, c=cache: over_fsspec(split, w, a, t, e, c))
            yield f"storage: file system, {wrong}", problems_of(ended)
        shutil.rmtree(cache, ignore_errors=True)


def delivered(address: str, epoch: int, cache: Path, calm: Callable[[], object]) -> list[str]:
    """What is wrong with an epoch over `address`: nothing, if it is exact or ends in an error of ours. `calm` ends
    all faults: the same epoch is then the measure."""
    from feedline.pipeline.base.errors import FeedlineError

    had: list[list[int]] = []
    try:
        had = Epochs(address, 0, cache_dir=cache).run(epoch)
    except FeedlineError as error:
        return [] if "\n" not in str(error) else ["an error of several lines"]
    finally:
        parts = [path.name for path in cache.rglob("*.tmp")]
    calm()
    expected = Epochs(address, 0, cache_dir=cache).run(
        epoch
    )  # not a local split's order: it goes by windows of shards
    exact = had == expected and len({label for batch in had for label in batch}) == SAMPLES
    problems = [] if exact else ["not exact"]
    return problems + [f"left: {part}" for part in parts]


def in_mount(split: Path, place: Path, wrong: str, at: int, times: int, epoch: int, cache: Path) -> Ended:
    """A mount for each fault: a kernel that was told too little of a file takes it for the whole."""
    with mounted(split, place, latency_s=0.001, stall_s=0.3) as slow:
        slow.tell(fault=wrong, after=at % FEW_READS, times=times)
        return in_child(lambda: delivered(str(place), epoch, cache, lambda: slow.tell(times=0)))


def over_fsspec(split: Path, wrong: str, at: int, times: int, epoch: int, cache: Path) -> list[str]:
    import fsspec
    from fsspec.implementations.local import LocalFileSystem

    turns = Turns(at, times)

    def spoilt(data: bytes) -> bytes:
        return spoil(data, wrong) if turns.next() else data

    class Chaotic(LocalFileSystem):
        protocol = "chaos"
        cachable = False

        def cat_file(self, path: str, start: Any = None, end: Any = None, **named: Any) -> bytes:
            return spoilt(bytes(Path(self._strip_protocol(path)).read_bytes()[start:end]))

        def get_file(self, rpath: str, lpath: Any, *rest: Any, **named: Any) -> None:
            Path(lpath).write_bytes(spoilt(Path(self._strip_protocol(rpath)).read_bytes()))

        @classmethod
        def _strip_protocol(cls, path: Any) -> str:
            return LocalFileSystem._strip_protocol(str(path).removeprefix("chaos://"))

    fsspec.register_implementation("chaos", Chaotic, clobber=True)
    return delivered(f"chaos://{split}", epoch, cache, turns.end)


def spoil(data: bytes, wrong: str) -> bytes:
    if wrong == "error":
        raise OSError(5, "Input/output error")
    if wrong == "timeout":
        raise TimeoutError("no answer")
    if wrong == "slow":
        time.sleep(0.05)
    middle = len(data) // 2
    flipped = data[:middle] + bytes([data[middle] ^ 0x40]) + data[middle + 1 :] if data else data
    return {"short": data[:middle], "flipped": flipped, "empty": b""}.get(wrong, data)


def over_http(split: Path, wrong: str, at: int, times: int, epoch: int, cache: Path) -> list[str]:
    turns = Turns(at, times)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _handler(split, wrong, turns))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return delivered(f"http://127.0.0.1:{server.server_address[1]}", epoch, cache, turns.end)


def _handler(split: Path, wrong: str, turns: Turns) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            """Nothing is printed."""

        def do_HEAD(self) -> None:
            self._answer(head=True)

        def do_GET(self) -> None:
            self._answer(head=False)

        def _answer(self, *, head: bool) -> None:
            now = wrong if not head and turns.next() else ""
            path = split / self.path.lstrip("/")
            if now in ("status 503", "not found") or not path.is_file():
                self.send_error(503 if now == "status 503" else 404)
                return
            if now == "reset":
                self.close_connection = True
                self.connection.close()
                return
            whole = path.read_bytes()
            asked = self.headers.get("Range")
            data, status, first = whole, 200, ""
            if asked and now != "no ranges":
                first, _, last = asked.removeprefix("bytes=").partition("-")
                data, status = whole[int(first) : int(last) + 1 if last else None], 206
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            if status == 206:
                self.send_header("Content-Range", f"bytes {first}-{int(first) + len(data) - 1}/{len(whole)}")
            self.end_headers()
            if not head:
                self.wfile.write({"cut off": data[: len(data) // 2]}.get(now, spoil(data, now)))
                self.close_connection = now == "cut off"

    return Handler


# --- whole commands -----------------------------------------------------------------------------------


def commands(folder: Path, faults: int, rng: random.Random) -> Iterator[Outcome]:
    """`feedline profile` killed at random moments; its script, its workers and its files must not outlive it."""
    split, script, scratch = folder / "train", folder / "script.py", folder / "tmp"
    in_child(lambda: bool(tiny_split.write(split, SAMPLES, 3, px=32)))
    script.write_text(SCRIPT)
    scratch.mkdir()
    for number in range(faults or 8):
        victim = ("feedline profile", "the script")[number % 2]
        yield f"profile: {victim} killed", profile_killed(split, script, scratch, number % 2 == 0, rng)


def profile_killed(split: Path, script: Path, scratch: Path, parent: bool, rng: random.Random) -> list[str]:
    feedline = str(Path(sys.executable).with_name("feedline"))
    command = [feedline, "profile", "--json", str(scratch / "out.json"), "--seconds", "3", str(script), str(split)]
    started = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        env=os.environ | {"TMPDIR": str(scratch)},
    )  # fmt: skip
    family: list[psutil.Process] = []
    until_s = time.monotonic() + 60
    while len(family) < 3 and time.monotonic() < until_s and started.poll() is None:
        time.sleep(0.02)
        family = psutil.Process(started.pid).children(recursive=True)
    time.sleep(rng.random() * 2)
    family = psutil.Process(started.pid).children(recursive=True) if started.poll() is None else family
    if parent:
        started.kill()
    elif family:
        family[0].send_signal(signal.SIGKILL)
    problems: list[str] = []
    try:
        started.wait(60)
    except subprocess.TimeoutExpired:
        started.kill()
        problems.append("feedline profile hung after its script's death")
    return problems + gone([one.pid for one in family], 15)
