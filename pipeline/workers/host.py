"""The process that makes batches for several loaders (`workers.shared`): `python -m feedline.pipeline.workers.host
LISTENER INDEX SETUP`, three inherited descriptors. No torch, and no plan: it only sees tasks.

A batch is known by its samples, epoch and image size, and made once for whoever asks while it is there. Guests who
have been shown the same batches are a *group*. A batch stays until all of its group have had it, so the hindmost sets
the pace, and the others lead by as many batches as there are slots: each guest brings as many as it would have alone,
which is also why nobody waits for a slot that cannot come. Who holds the others up for PATIENCE_S is a group of its
own from then on, as is who begins too far behind them. Each group adds as many workers as one loader would have.
"""

import json
import os
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from feedline.pipeline.base.errors import WorkerError
from feedline.pipeline.workers import counters
from feedline.pipeline.workers.memory import SharedMemory
from feedline.pipeline.workers.messages import BROKEN, DONE, MAX_BYTES, Reply, Task
from feedline.pipeline.workers.pool import WorkerCrew
from feedline.pipeline.workers.shared import RELEASED, SHOWN, request_layout
from feedline.pipeline.workers.slots import SlotLayout

PATIENCE_S = 5.0
"""So long the others wait for one who asks for nothing, or who has begun behind them."""
CATCH_UP = 128
"""Batches by which one may begin behind the others and be waited for."""
LOOK_MS = 200
FIRST_S = 60.0
"""Without a guest for so long after its start, the host ends."""

Place = tuple[int, int]
"""Epoch, and the batch's number in it."""


@dataclass(eq=False)
class Batch:
    place: Place
    px: int
    group: int
    maker: "Guest"
    """Who asked first."""
    task: Task
    samples_N: Any
    hints_N: Any
    guests: "set[tuple[Guest, int]]" = field(default_factory=set["tuple[Guest, int]"])
    """Who has asked for it and not given it back, each with its own slot's number."""
    slot: int = -1
    reply: Reply | None = None
    """None until it is made."""
    waits_since_s: float = 0.0
    """For a slot that others, who are behind, keep from it."""


@dataclass(eq=False)
class Guest:
    connection: socket.socket
    group: int
    requests: SharedMemory | None = None
    place: Place = (-1, -1)
    """Of what it asked for last."""
    px: int = 0
    due: dict[int, tuple[bytes, Batch]] = field(default_factory=dict[int, "tuple[bytes, Batch]"])
    """By its own slot's number: what it has asked for and not given back."""


class Host:
    def __init__(self, listener: socket.socket, index: SharedMemory, setup: dict[str, Any]) -> None:
        self._layout = SlotLayout(**setup["slot_layout"])
        self._asking, self._per_guest, self._among = request_layout(self._layout), setup["slots"], setup["among"]
        self._workers, self._prefetch = setup["workers"], setup["prefetch"]
        self._most_workers = self._workers * self._among
        slots = self._per_guest * self._among
        self._memory = SharedMemory("slots", slots * self._layout.slot_bytes)
        self._view = self._memory.view
        rows = setup["rows"] = self._most_workers + 1
        self._rows = SharedMemory("counters", rows * counters.ROW_BYTES)
        self._crew = WorkerCrew(self._workers, setup, [self._memory, index, self._rows], str)
        self._listener = listener
        self._free = list(range(slots))
        self._guests: dict[int, Guest] = {}
        """By descriptor."""
        self._groups = 0
        self._batches: dict[bytes, Batch] = {}
        """Those that have a slot, or wait for one, by what they are of; oldest first."""
        self._making: dict[int, Batch] = {}
        """By slot."""
        self._poll = select.poll()
        for source in (listener, self._crew):
            self._poll.register(source, select.POLLIN)

    def serve(self) -> None:
        """Until the last guest has left. Raises WorkerError."""
        began_s = time.monotonic()
        while self._guests or (not self._groups and time.monotonic() - began_s < FIRST_S):
            for descriptor, _ in self._poll.poll(LOOK_MS):
                if descriptor == self._listener.fileno():
                    self._admit()
                elif descriptor in self._guests:
                    self._hear(self._guests[descriptor])
            while self._crew.ready():  # raises for a worker that has ended
                self._made(self._crew.receive())
            self._make()

    # --- guests -------------------------------------------------------------------------------------------

    def _admit(self) -> None:
        connection, _ = self._listener.accept()
        connection.setblocking(False)
        self._groups += 1
        self._guests[connection.fileno()] = Guest(connection, self._groups)
        self._poll.register(connection, select.POLLIN)

    def _hear(self, guest: Guest) -> None:
        """All that it has said. One whose end has come, or that makes no sense, is seen off."""
        try:
            if guest.requests is None:
                self._welcome(guest)
            while data := guest.connection.recv(MAX_BYTES):
                task = Task.unpack(data)
                if task.samples == RELEASED:
                    self._give_back(guest, task.slot)
                else:
                    self._ask(guest, task)
        except BlockingIOError:
            return
        except (OSError, ValueError, LookupError, struct.error):
            pass
        self._see_off(guest)

    def _welcome(self, guest: Guest) -> None:
        hello, descriptors, _, _ = socket.recv_fds(guest.connection, MAX_BYTES, 1)
        guest.requests = SharedMemory.received(descriptors[0])
        if len(self._guests) > self._among:
            refusal = {"refusal": f"{self._among} loaders share it already"}
            guest.connection.send(json.dumps(refusal).encode())
            raise ConnectionError
        self._spread(set(json.loads(hello)["cores"]))
        socket.send_fds(guest.connection, [json.dumps({"pid": os.getpid()}).encode()], [self._memory.descriptor])

    def _spread(self, cores: set[int]) -> None:
        """Workers may use what any of the guests may."""
        cores |= os.sched_getaffinity(0)
        for pid in (0, *self._crew.pids):
            with suppress(OSError):
                os.sched_setaffinity(pid, cores)

    def _see_off(self, guest: Guest) -> None:
        self._poll.unregister(guest.connection)
        del self._guests[guest.connection.fileno()]
        guest.connection.close()
        for number in list(guest.due):
            self._give_back(guest, number)

    def _ask(self, guest: Guest, task: Task) -> None:
        assert guest.requests is not None
        asked = self._asking.slot(guest.requests.view, task.slot)
        samples_N = asked.samples_N[: task.samples].copy()
        key = b"%d %d " % (task.epoch, task.px) + samples_N.tobytes()
        place = task.epoch, task.turn
        if guest.place == (-1, -1):
            self._begin_beside(guest, place, task.px)
        guest.place, guest.px = place, task.px
        batch = self._batches.get(key)
        if batch is None:
            hints_N = asked.hints_N[: task.hints].copy()
            batch = Batch(place, task.px, guest.group, guest, task, samples_N, hints_N)
            self._batches[key] = batch
        guest.group = batch.group
        batch.guests.add((guest, task.slot))
        guest.due[task.slot] = key, batch
        if batch.reply is not None:
            self._show(batch, guest, task.slot, batch.reply)

    def _begin_beside(self, guest: Guest, place: Place, px: int) -> None:
        """Of those not far ahead, who will be waited for."""
        for other in self._guests.values():
            ahead = other.place[1] - place[1]
            if other.place[0] == place[0] and other.px == px and 0 <= ahead <= CATCH_UP:
                guest.group = other.group

    def _give_back(self, guest: Guest, number: int) -> None:
        key, batch = guest.due.pop(number)
        batch.guests.discard((guest, number))
        if batch.slot < 0 and not batch.guests:  # nobody waits for it any more
            del self._batches[key]

    def _show(self, batch: Batch, guest: Guest, number: int, reply: Reply) -> None:
        shown = batch.slot if reply.kind == DONE else -1
        data = SHOWN.pack(shown, batch.maker is not guest) + reply._replace(slot=number).pack()
        try:
            guest.connection.send(data)
        except OSError:  # it has ended, or hears nothing: `_hear` sees it off
            with suppress(OSError):
                guest.connection.shutdown(socket.SHUT_RDWR)

    # --- slots and workers --------------------------------------------------------------------------------

    def _make(self) -> None:
        """What is asked for goes to the workers, the hindmost first, as far as there are slots."""
        waiting = [batch for batch in self._batches.values() if batch.slot < 0]
        if not waiting:
            return
        groups = len({guest.group for guest in self._guests.values() if guest.due})
        while self._crew.count < min(self._workers * groups, self._most_workers):
            self._crew.add()
        for batch in sorted(waiting, key=lambda batch: batch.place):
            if len(self._making) >= self._crew.count * self._prefetch:
                return
            number = self._room(batch)
            if number is None:
                self._lose_patience(batch)
                continue
            batch.slot, self._making[number], task = number, batch, batch.task
            slot = self._layout.slot(self._view, number)
            slot.samples_N[: task.samples], slot.hints_N[: task.hints] = batch.samples_N, batch.hints_N
            self._crew.submit(task._replace(run=0, batch=0, slot=number))

    def _room(self, batch: Batch) -> int | None:
        """A slot for it: a free one; that of a batch which nobody will ask for; or of one that is needed last, ahead
        of it or of a group that has more than it brought."""
        if self._free:
            return self._free.pop()
        idle = [(key, other) for key, other in self._batches.items() if other.reply is not None and not other.guests]
        spare = next((found for found in idle if not self._is_wanted(found[1])), None)
        if spare is None:
            later = [found for found in idle if self._may_go(found[1], batch)]
            if not later:
                return None
            spare = max(later, key=lambda found: found[1].place)
        del self._batches[spare[0]]
        return spare[1].slot

    def _is_wanted(self, batch: Batch) -> bool:
        return any(guest.place < batch.place for guest in self._of(batch.group))

    def _may_go(self, other: Batch, batch: Batch) -> bool:
        if other.group == batch.group:
            return other.place > batch.place
        held = sum(found.slot >= 0 and found.group == other.group for found in self._batches.values())
        return held > self._per_guest * len(list(self._of(other.group)))

    def _of(self, group: int) -> Iterator[Guest]:
        return (guest for guest in self._guests.values() if guest.group == group)

    def _lose_patience(self, batch: Batch) -> None:
        now_s = time.monotonic()
        batch.waits_since_s = batch.waits_since_s or now_s
        behind = [guest for guest in self._of(batch.group) if guest.place < batch.place]
        if behind and now_s - batch.waits_since_s > PATIENCE_S:
            self._groups += 1
            min(behind, key=lambda guest: guest.place).group = self._groups
            batch.waits_since_s = 0.0

    def _made(self, reply: Reply) -> None:
        if reply.kind == BROKEN:
            raise WorkerError(reply.text)
        batch = self._making.pop(reply.slot)
        for guest, number in list(batch.guests):
            self._show(batch, guest, number, reply)
        if reply.kind == DONE:
            batch.reply = reply
        else:  # told; who asks again is told anew
            for guest, number in batch.guests:
                del guest.due[number]
            self._batches = {key: other for key, other in self._batches.items() if other is not batch}
            self._free.append(reply.slot)

    def close(self) -> None:
        self._listener.close()  # whoever comes now starts another host
        self._crew.close()


def main(words: list[str]) -> None:
    listener, index, setup = map(int, words)
    if os.fork():  # nobody's child: it outlives who started it
        os._exit(0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's; we end with our guests
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (1, 2):  # whoever reads what the first guest prints waits for nobody else
        os.dup2(nothing, number)
    settings = json.loads(bytes(SharedMemory.received(setup).view).rstrip(b"\0"))
    host = Host(socket.socket(fileno=listener), SharedMemory.received(index), settings)
    try:
        host.serve()
    except WorkerError:
        pass  # the guests, who hear no more, go on alone and find out for themselves
    finally:
        host.close()


if __name__ == "__main__":
    main(sys.argv[1:])
