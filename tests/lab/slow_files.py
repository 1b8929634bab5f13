"""A folder shown again through /dev/fuse, as slow or as broken as it is told to be; read only.

    with mounted(folder, work / "slow", latency_s=0.02, bytes_per_s=50e6) as slow:
        read(slow.path / "train" / "train-000000.tar")
        slow.tell(fault="error", times=1)
        slow.counts()  # {"reads": …, "bytes": …, "most_at_once": …}

`latency_s` passes for any number of requests at once, as on a network, where a name is looked up or bytes are read;
`seek_s` for one at a time, and not where a read goes on behind the last one, as on a spinning disk; `bytes_per_s` is
shared. Faults, for `times` reads behind the next `after`: `error` (EIO), `short` (half the bytes), `stall` (answered
`stall_s` later), `gone` (the server ends: the mount is there and nobody behind it).

The server is a process of its own that speaks the kernel's protocol (linux/fuse.h, 7.31) without threads: a request
is answered when it is due. Needs root (`why_not`).
"""

import ctypes
import errno
import heapq
import itertools
import json
import os
import select
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LIBC = ctypes.CDLL(None, use_errno=True)
READ_ONLY, DETACH = 1 | 2 | 4, 2
"""MS_RDONLY, MS_NOSUID, MS_NODEV of mount(2); MNT_DETACH of umount2(2)."""
LARGEST = 1 << 17
"""Of one request, as kernels have it where nobody asks for more."""
IN, OUT = struct.Struct("<IIQQIIIHH"), struct.Struct("<IiQ")
ATTR, ENTRY, READ = struct.Struct("<6Q10I"), struct.Struct("<4Q2I"), struct.Struct("<QQIIQII")
LOOKUP, FORGET, GETATTR, OPEN, READ_FILE, STATFS, RELEASE = 1, 2, 3, 14, 15, 17, 18
INIT, OPENDIR, READDIR, RELEASEDIR, INTERRUPT, DESTROY, BATCH_FORGET = 26, 27, 28, 29, 36, 38, 42
ASYNC_READ, ASYNC_DIO, PARALLEL_DIROPS = 1 << 0, 1 << 15, 1 << 18
KEEP_CACHE = 2
AT_ONCE = 1024
"""Requests that the kernel may have in the background."""
FOREVER_S = 3600


@dataclass(kw_only=True)
class Settings:
    latency_s: float = 0.0
    seek_s: float = 0.0
    bytes_per_s: float = 0.0
    """0: no limit."""
    fault: str = ""
    after: int = 0
    times: int = 0
    stall_s: float = 0.0


class Refused(Exception):
    """The number says why."""


class Server:
    def __init__(self, source: Path, settings: Settings) -> None:
        self.settings = settings
        self._paths = {1: source}
        self._nodes = {source: 1}
        self._due: list[tuple[float, int, int, Callable[[], list[bytes]]]] = []
        """When, a number that keeps equals apart, the request, its answer."""
        self._number = itertools.count()
        self._free_s = 0.0
        """When the device has done all it was asked for."""
        self._end: tuple[int, int] = (0, 0)
        """Node and offset behind the last read."""
        self._files: dict[int, int] = {}
        self.counts = {"reads": 0, "bytes": 0, "most_at_once": 0}

    def mount(self, place: Path) -> None:
        """Raises OSError."""
        self._fuse = os.open("/dev/fuse", os.O_RDWR | os.O_NONBLOCK)
        options = f"fd={self._fuse},rootmode=40000,user_id=0,group_id=0,allow_other"
        if LIBC.mount(b"slow", os.fsencode(place), b"fuse", READ_ONLY, options.encode()):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(place))

    def serve(self) -> None:
        """Until it is unmounted, or whoever started it is gone."""
        while True:
            wait_s = max(0.0, self._due[0][0] - time.monotonic()) if self._due else None
            ready, _, _ = select.select([self._fuse, 0], [], [], wait_s)
            if 0 in ready and not self._told():
                return
            if self._fuse in ready:
                try:
                    self._take(os.read(self._fuse, LARGEST + (1 << 12)))
                except (BlockingIOError, InterruptedError):  # it was withdrawn
                    pass
                except OSError as error:
                    if error.errno == errno.ENODEV:
                        return
                    if error.errno != errno.ENOENT:
                        raise
            while self._due and self._due[0][0] <= time.monotonic():
                _, _, unique, answer = heapq.heappop(self._due)
                self._answer(unique, answer)

    def _told(self) -> bool:
        line = sys.stdin.readline()
        for name, value in json.loads(line or "{}").items():
            setattr(self.settings, name, value)
        print(json.dumps(self.counts), flush=True)
        return bool(line)

    def _take(self, request: bytes) -> None:
        _, opcode, unique, node, *_ = IN.unpack_from(request)
        body, settings = request[IN.size :], self.settings
        if opcode in (FORGET, BATCH_FORGET, INTERRUPT):
            return
        fault = self._next_fault() if opcode == READ_FILE else ""
        due_s = time.monotonic() + (settings.latency_s if opcode in (LOOKUP, READ_FILE) else 0.0)
        if opcode == READ_FILE:
            due_s = self._read_due(node, body) + (settings.stall_s if fault == "stall" else 0.0)
        waiting = due_s, next(self._number), unique, lambda: self._done(opcode, node, body, fault)
        heapq.heappush(self._due, waiting)
        self.counts["most_at_once"] = max(self.counts["most_at_once"], len(self._due))

    def _read_due(self, node: int, body: bytes) -> float:
        settings, now_s = self.settings, time.monotonic()
        _, offset, size, *_ = READ.unpack_from(body)
        busy_s = 0.0 if self._end == (node, offset) else settings.seek_s
        busy_s += size / settings.bytes_per_s if settings.bytes_per_s else 0.0
        self._end = node, offset + size
        self._free_s = max(self._free_s, now_s) + busy_s
        return self._free_s + settings.latency_s

    def _next_fault(self) -> str:
        settings = self.settings
        if settings.after > 0 or settings.times <= 0:
            settings.after -= 1
            return ""
        settings.times -= 1
        return settings.fault

    def _answer(self, unique: int, answer: Callable[[], list[bytes]]) -> None:
        parts, number = list[bytes](), 0
        try:
            parts = answer()
        except Refused as refused:
            number = refused.args[0]
        except OSError as error:
            number = error.errno or errno.EIO
        with suppress(FileNotFoundError):  # nobody waits for it any more
            os.writev(self._fuse, [OUT.pack(OUT.size + sum(map(len, parts)), -number, unique), *parts])

    def _done(self, opcode: int, node: int, body: bytes, fault: str) -> list[bytes]:
        if opcode == INIT:
            return [struct.pack("<4I2H2I2H8I", 7, 31, LARGEST, ASYNC_READ | ASYNC_DIO | PARALLEL_DIROPS,
                                AT_ONCE, AT_ONCE, LARGEST, 1, 0, 0, *[0] * 8)]  # fmt: skip
        if opcode == LOOKUP:
            path = self._paths[node] / os.fsdecode(body.rstrip(b"\0"))
            attributes = self._attributes(path)
            return [ENTRY.pack(self._node(path), 0, FOREVER_S, FOREVER_S, 0, 0), attributes]
        if opcode == GETATTR:
            return [struct.pack("<QII", FOREVER_S, 0, 0), self._attributes(self._paths[node])]
        if opcode in (OPEN, OPENDIR):
            return [struct.pack("<QII", 0, KEEP_CACHE, 0)]
        if opcode == READ_FILE:
            return [self._read(node, body, fault)]
        if opcode == READDIR:
            return [self._listed(self._paths[node], body)]
        if opcode == STATFS:
            return [struct.pack("<5Q10I", *[0] * 5, 4096, 255, 4096, *[0] * 7)]
        if opcode in (RELEASE, RELEASEDIR, DESTROY):
            return []
        raise Refused(errno.ENOSYS)

    def _node(self, path: Path) -> int:
        node = self._nodes.setdefault(path, len(self._nodes) + 1)
        self._paths[node] = path
        return node

    def _attributes(self, path: Path) -> bytes:
        of = path.stat()
        times, parts = (int(of.st_atime), int(of.st_mtime), int(of.st_ctime)), (0, 0, 0)
        mode, owner = of.st_mode, (of.st_uid, of.st_gid)
        return ATTR.pack(
            self._node(path), of.st_size, -(-of.st_size // 512), *times, *parts, mode, 1, *owner, 0, 4096, 0
        )

    def _read(self, node: int, body: bytes, fault: str) -> bytes:
        _, offset, size, *_ = READ.unpack_from(body)
        if fault == "gone":
            os._exit(0)
        if fault == "error":
            raise Refused(errno.EIO)
        if node not in self._files:
            self._files[node] = os.open(self._paths[node], os.O_RDONLY)
        data = os.pread(self._files[node], size, offset)
        self.counts["reads"] += 1
        self.counts["bytes"] += len(data)
        return data[: len(data) // 2] if fault == "short" else data

    def _listed(self, folder: Path, body: bytes) -> bytes:
        _, first, size, *_ = READ.unpack_from(body)
        listing = b""
        for number, path in enumerate(sorted(folder.iterdir())):
            name = os.fsencode(path.name)
            kind = stat.S_IFMT(path.stat().st_mode) >> 12
            entry = struct.pack("<QQII", self._node(path), number + 1, len(name), kind) + name
            entry += b"\0" * (-len(entry) % 8)
            if number >= first and len(listing) + len(entry) <= size:
                listing += entry
        return listing


@dataclass(frozen=True)
class Slow:
    path: Path
    server: "subprocess.Popen[str]"

    def tell(self, **settings: Any) -> dict[str, int]:
        """Fields of Settings, from the next request on; what was read so far."""
        assert self.server.stdin is not None and self.server.stdout is not None
        self.server.stdin.write(json.dumps(settings) + "\n")
        self.server.stdin.flush()
        return json.loads(self.server.stdout.readline())

    def counts(self) -> dict[str, int]:
        return self.tell()


@contextmanager
def mounted(source: Path, place: Path, **settings: float) -> Generator[Slow]:
    """`place` is made, and empty again afterwards. Raises OSError where it cannot be mounted."""
    place.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "tests.lab.slow_files", str(source), str(place), json.dumps(settings)]
    server = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdin is not None and server.stdout is not None
    try:
        if not server.stdout.readline():
            raise OSError(f"{place} cannot be mounted: its server ended with status {server.wait()}")
        yield Slow(place, server)
    finally:
        LIBC.umount2(os.fsencode(place), DETACH)
        server.kill()
        server.wait()
        server.stdin.close()
        server.stdout.close()


def why_not() -> str:
    """Why nothing can be mounted here; "" where it can."""
    if os.geteuid():
        return "only root mounts"
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR))
    except OSError as error:
        return f"/dev/fuse: {error.strerror}"
    return ""


def main() -> None:
    source, place, settings = sys.argv[1:]
    server = Server(Path(source), Settings(**json.loads(settings)))
    server.mount(Path(place))
    print("ready", flush=True)
    server.serve()


if __name__ == "__main__":
    main()
