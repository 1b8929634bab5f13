"""One crew of workers for several loaders with equal settings, each in a process of its own on this host.

    guest 1 ─ tasks ─→           ─→ worker
    guest 2 ─ tasks ─→   host    ─→ worker     slots: anonymous memory that host, workers and guests map
    guest 3 ←─ slots ─           ←─ slots

Whoever comes first starts the host (`workers.host`), which ends with its last guest. A guest sends it the tasks that
it would send to workers of its own, so order, epochs and state are each loader's own business, as ever; what several
ask for is made once and shown to each. Where there is no host, or no longer, a guest goes on with workers of its own
from the very task that was not answered.

The host's address is a name in Linux's abstract namespace, made of the user and of all that decides a batch's bytes:
bound by one process at a time, and gone with it, however it ends.
"""

import errno
import hashlib
import json
import os
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

from feedline.pipeline.base.errors import WorkerError
from feedline.pipeline.base.process import start_python
from feedline.pipeline.workers.memory import SharedMemory
from feedline.pipeline.workers.messages import MAX_BYTES, Reply, Task
from feedline.pipeline.workers.pool import WorkerCrew
from feedline.pipeline.workers.slots import Slot, SlotLayout

HOST = "feedline.pipeline.workers.host"
RELEASED = -1
"""The samples of a task that says: its slot is needed no more."""
SHOWN = struct.Struct("<iB3x")
"""Before each reply: the host's slot that shows the batch (-1: none), and whether it was made for another guest."""
_PEER = struct.Struct("3i")
_TRIES, _PAUSE_S = 10, 0.02


class Share(NamedTuple):
    among: int
    """Loaders at most."""
    order: tuple[Any, ...]
    """Plain JSON: what decides the batches, beside what the workers are told."""


def sharing(among: int, *order: Any) -> Share | None:
    return Share(among, order) if among > 1 else None


def request_layout(layout: SlotLayout) -> SlotLayout:
    """A guest's own memory has the numbers of its tasks and no pixels."""
    return replace(layout, px=1)


def address(order: tuple[Any, ...], start: dict[str, Any]) -> str:
    decisive = {name: value for name, value in start.items() if name not in ("rows", "index_layout")}
    text = json.dumps([order, decisive], sort_keys=True)
    return f"\0feedline-{os.getuid()}-{hashlib.sha256(text.encode()).hexdigest()[:32]}"


class SharedCrew:
    """What a workshop has in place of its crew: takes tasks, gives replies, and knows which slot shows which."""

    def __init__(self, share: Share, setup: dict[str, Any], index: SharedMemory, layout: SlotLayout,
                 own: Callable[[SharedMemory], WorkerCrew]) -> None:  # fmt: skip
        """`setup`: what workers are told, with how many `slots` our ledger has, how many `workers` there were alone,
        and the batches under way for each (`prefetch`). `own` hires workers for slots of our own."""
        self.count: int = setup["workers"]
        self._slots: int = setup["slots"]
        self._layout, self._asking, self._own = layout, request_layout(layout), own
        self._requests = SharedMemory("requests", self._slots * self._asking.slot_bytes)
        self._asked: dict[int, Task] = {}
        """By slot, tasks without a reply."""
        self._shown: dict[int, int] = {}
        """By slot of ours, the host's that shows the batch."""
        self._mine: tuple[SharedMemory, WorkerCrew] | None = None
        self._host: socket.socket | None = None
        self.memory = self._requests
        """Of the batches that are shown."""
        self._host_pid, self._batches, self._from_others = 0, 0, 0
        self.why_alone = ""
        start = setup | {"among": share.among}
        try:
            self._join(address(share.order, start), start, index)
        except OSError as error:
            self._go_alone(f"no host could be had ({error.strerror or error})")

    def _join(self, name: str, start: dict[str, Any], index: SharedMemory) -> None:
        """Raises OSError."""
        for _ in range(_TRIES):
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            try:
                connection.connect(name)
                _, user, _ = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
                if user != os.getuid():
                    raise PermissionError(0, "its name is another user's")
                hello = json.dumps({"cores": sorted(os.sched_getaffinity(0))}).encode()
                socket.send_fds(connection, [hello], [self._requests.descriptor])
                welcome, descriptors, _, _ = socket.recv_fds(connection, MAX_BYTES, 1)
                if descriptors:
                    self._host, self._host_pid = connection, json.loads(welcome)["pid"]
                    self.memory = SharedMemory.received(descriptors[0])
                    return
                if welcome:
                    raise OSError(0, json.loads(welcome)["refusal"])
            except (ConnectionError, BrokenPipeError):
                start_host(name, start, index)  # none yet, or it is ending
            finally:
                if self._host is not connection:
                    connection.close()
            time.sleep(_PAUSE_S)
        raise OSError(0, "none answers")

    # --- as a workshop asks a crew ------------------------------------------------------------------------

    @property
    def pids(self) -> list[int]:
        """Of workers of our own; the host's are not ours."""
        return self._mine[1].pids if self._mine else []

    def submit(self, task: Task) -> None:
        self._asked[task.slot] = task
        if self._mine is not None:
            self._mine[1].submit(task)
        else:
            self._send(task)

    def ready(self) -> bool:
        if self._mine is not None:
            return self._mine[1].ready()
        assert self._host is not None
        try:
            return bool(self._host.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except BlockingIOError:
            return False
        except OSError:
            return False  # `receive` finds out

    def receive(self) -> Reply:
        """Raises WorkerError, for a worker of our own."""
        while self._mine is None:
            assert self._host is not None
            try:
                data = self._host.recv(MAX_BYTES + SHOWN.size)
            except OSError:
                data = b""
            if data:
                return self._take(*SHOWN.unpack_from(data), Reply.unpack(data[SHOWN.size :]))
            self._go_alone("the host has ended")
        reply = self._mine[1].receive()
        self._asked.pop(reply.slot, None)
        return reply

    def _take(self, at: int, from_others: int, reply: Reply) -> Reply:
        task = self._asked.pop(reply.slot)
        if at >= 0:
            self._shown[reply.slot] = at
            self._batches += 1
            self._from_others += from_others
        return reply._replace(run=task.run, batch=task.batch)

    def slot(self, number: int) -> Slot:
        """What shows the batch, once there is a reply; until then what the task is written into."""
        if (at := self._shown.get(number)) is not None:
            return self._layout.slot(self.memory.view, at)
        if self._mine is not None:
            return self._layout.slot(self._mine[0].view, number)
        return self._asking.slot(self._requests.view, number)

    def released(self, number: int) -> None:
        """The slot is free again."""
        if self._shown.pop(number, None) is not None and self._mine is None:
            self._send(Task(0, 0, number, RELEASED, 0, 0))

    def _send(self, task: Task) -> None:
        assert self._host is not None
        with suppress(OSError):  # `receive` finds out
            self._host.send(task.pack())

    def _go_alone(self, why: str) -> None:
        """What the host has shown stays as it is, for as long as we map its memory."""
        self.why_alone = why
        if self._host is not None:
            self._host.close()
        memory = SharedMemory("slots", self._slots * self._layout.slot_bytes)
        if self._host is None:
            self.memory = memory
        crew = self._own(memory)
        for number, task in self._asked.items():
            asked, mine = self._asking.slot(self._requests.view, number), self._layout.slot(memory.view, number)
            mine.samples_N[:], mine.hints_N[:] = asked.samples_N, asked.hints_N
            crew.submit(task)
        self._mine = memory, crew

    def describe(self) -> dict[str, Any]:
        """Plain JSON: `host_pid`, `batches` that it has shown us, `from_others` of them: made for another loader;
        `alone`: why we have workers of our own, or ""."""
        return {"host_pid": self._host_pid, "batches": self._batches, "from_others": self._from_others,
                "alone": self.why_alone}  # fmt: skip

    def close(self) -> None:
        self._own = _closed  # it leads back to who owns us: the memory must not wait for the cycle collector
        if self._host is not None:
            self._host.close()
        if self._mine is not None:
            self._mine[1].close()
            self._mine[0].close_descriptor()
        self._requests.close_descriptor()
        self.memory.close_descriptor()


def _closed(memory: SharedMemory) -> WorkerCrew:
    raise WorkerError("the loader has been closed")


def start_host(name: str, start: dict[str, Any], index: SharedMemory) -> None:
    """Unless another process has just done so. Raises OSError."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    text = json.dumps(start).encode()
    setup = SharedMemory("setup", len(text))
    setup.view[: len(text)] = text
    handed = [listener.fileno(), index.descriptor, setup.descriptor]
    try:
        listener.bind(name)
        listener.listen(start["among"])
        starter = start_python(HOST, [*map(str, handed)], handed)
        if starter.wait():
            raise OSError(0, "it could not be started")
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
    finally:
        listener.close()
        setup.close_descriptor()
